"""An action read out of a model's words, for output mode `text`; and what is said when there is none, or a choice.

Looked for in this order, and the first way that finds something decides: the notations of chat templates, tags, fenced
blocks, JSON anywhere, `\\boxed{…}`, a bare name. What a model thought between `<think>` tags is no answer. Nothing is ever
evaluated, and the time is linear in the words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from taskapp_kit.contract.protocols import Tool
from taskapp_kit.contract.trajectory import ToolCall
from taskapp_kit.rollout.policy.example_arguments import example_text
from taskapp_kit.rollout.policy.text.action_json import UnreadableJson, actions_in, decode_at, recordable
from taskapp_kit.rollout.policy.text.action_tags import TagMatch, bare, marked, tagged, word_tool

ATTEMPTS = 200
"""Places at which JSON is tried, and"""
WORK = 4
"""how often the words may be read for it."""
BLOCKS = 256
BOXES = 64
MANY = 64
"""Different actions told apart in a refusal."""

_THOUGHT = re.compile(r"<(/?)(think|thinking|thought|reasoning)>")
_FENCE = "```"
_LABEL = re.compile(
    r"^[\s>*_#-]{0,8}(?:final )?(?:action|tool|move|answer)[*_]{0,2}\s{0,4}[:=][*_]{0,2}", re.IGNORECASE
)


@dataclass(slots=True)
class ParsedActions:
    """calls: the actions, in order. problem: why there is none. attempted: the words tried to be an action."""

    calls: list[ToolCall] = field(default_factory=list)
    problem: str | None = None
    attempted: bool = False


def parse_actions(words: str, tools: Sequence[Tool]) -> ParsedActions:
    """The actions in the model's words. Takes any text, and never raises."""
    named = {tool.name: tool for tool in tools}
    text = without_thoughts(words)
    broken: str | None = None
    for look in _WAYS:
        try:
            found = look(text, named)
        except UnreadableJson as error:
            found = TagMatch(broken=str(error))
        if found.calls:
            return _decided(found, tools)
        broken = broken or found.broken
        if found.broken is not None and look is marked:
            break
    if broken is not None:
        return ParsedActions(problem=f"Nothing was done: {broken}. {how(tools)}", attempted=True)
    said = "no action was found in the answer" if text.strip() else "the answer was empty"
    return ParsedActions(problem=f"Nothing was done: {said}. {how(tools)}")


def how(tools: Sequence[Tool]) -> str:
    """How to answer, with one valid example for a tool at hand, and the tools' names."""
    if not tools:
        return "No action is possible now."
    shown = next((tool for tool in tools if not tool.text), tools[0])
    names = ", ".join(tool.name for tool in tools)
    return f"Answer with one JSON object, for example {example_text(shown)}. The tools are: {names}."


def without_thoughts(words: str) -> str:
    """The words without what stands between `<think>` tags. A tag that only closes ends thoughts that began before."""
    kept: list[str] = []
    at, depth = 0, 0
    for mark in _THOUGHT.finditer(words):
        if mark[1]:  # closing
            if depth == 0:
                kept.clear()  # the chat template had opened it
            depth = max(0, depth - 1)
        else:
            if depth == 0:
                kept.append(words[at : mark.start()])
            depth += 1
        at = mark.end()
    if depth == 0:
        kept.append(words[at:])
    return "".join(kept)


def _decided(found: TagMatch, tools: Sequence[Tool]) -> ParsedActions:
    """Several actions where several are meant; the same one twice is one; two different ones are a question back."""
    if found.several:
        return ParsedActions(found.calls, attempted=True)
    distinct: list[ToolCall] = []
    for call in found.calls[:MANY]:
        if not any(call.tool == other.tool and call.args == other.args for other in distinct):
            distinct.append(call)
    if len(distinct) == 1 and found.broken is None:
        return ParsedActions(distinct, attempted=True)
    if len(distinct) == 1:
        return ParsedActions(problem=f"Nothing was done: {found.broken}. {how(tools)}", attempted=True)
    told = " and ".join(_short(call) for call in distinct[:2])
    more = "" if len(distinct) == 2 else f" and {len(distinct) - 2} more"
    sentence = (
        f"Nothing was done: the answer holds different actions ({told}{more}), and it is not plain which is meant."
    )
    return ParsedActions(problem=f"{sentence} {how(tools)}", attempted=True)


def _short(call: ToolCall) -> str:
    return f"{call.tool[:40]} {str(call.args)[:60]}"


def fenced(text: str, tools: Mapping[str, Tool]) -> TagMatch:
    """Code blocks: JSON, tags or a bare name in them. Several actions in the only block that holds any may be meant so."""
    found = TagMatch()
    holding = 0
    at = text.find(_FENCE)
    for _ in range(BLOCKS):
        if at < 0:
            break
        start = at + len(_FENCE)
        end = text.find(_FENCE, start)
        block = text[start : end if end >= 0 else len(text)]
        info, line, body = block.partition("\n")
        if not line:  # all on one line
            info, body = "", block.removeprefix("json")
        held = _held(info.strip().lower(), body.strip(), tools)
        holding += bool(held.calls)
        found.several = held.several if held.calls and holding == 1 else found.several and not held.calls
        found.calls += held.calls
        found.broken = found.broken or held.broken
        at = text.find(_FENCE, end + len(_FENCE)) if end >= 0 else -1
    return found


def _held(info: str, body: str, tools: Mapping[str, Tool]) -> TagMatch:
    """What one code block holds."""
    if body[:1] in ("{", "["):
        held = embedded(body, tools)
        if info not in ("json", "tool_call", "action", ""):
            held.broken = None
        return held
    held = tagged(body, tools)
    return held if held.calls or held.broken else TagMatch([*bare(body, tools)])


def _looks_like_one(text: str, tools: Mapping[str, Tool]) -> bool:
    """True when broken JSON was meant as an action."""
    head = text[:400]
    return any(f'"{word}"' in head or f"'{word}'" in head for word in ("tool", "name", "arguments", "args", *tools))


def embedded(text: str, tools: Mapping[str, Tool]) -> TagMatch:
    """JSON anywhere. Several are meant where the words are nothing else, or where one value is a list of them."""
    found = TagMatch()
    start = len(text) - len(text.lstrip())
    at = start if text[start : start + 1] == "[" else text.find("{")
    budget = WORK * len(text) + 10_000
    only, holding = at == start, 0
    for _ in range(ATTEMPTS):
        if at < 0 or budget <= 0:
            break
        try:
            value, end = decode_at(text, at)
            calls = actions_in(value, tools, bare=found.broken is None)  # else it may be a part of what is broken
        except UnreadableJson as error:
            budget -= error.read + 64
            if found.broken is None and _looks_like_one(text[at : at + 400], tools):
                found.broken = f"the JSON in the answer cannot be read: {error}"
            only, at = False, text.find("{", at + 1)
            continue
        budget -= end - at
        holding += bool(calls)
        found.calls += calls or ()
        at = text.find("{", end)
        only = only and not text[end : at if at >= 0 else len(text)].strip(" \t\r\n;,")
    if found.calls:
        found.broken = None
    found.several = only or holding == 1
    return found


def boxed(text: str, tools: Mapping[str, Tool]) -> TagMatch:
    """`\\boxed{…}`: the argument of the only tool that takes words."""
    only = word_tool(tools)
    found = TagMatch()
    at = text.find("\\boxed{") if only is not None else -1
    for _ in range(BOXES):
        if at < 0 or only is None:
            break
        start = at + len("\\boxed{")
        end = _closing_brace(text, start)
        if end < 0:
            found.broken = found.broken or "\\boxed{ is not closed by }"
            break
        found.calls.append(ToolCall(only[0].name, {only[1]: recordable(text[start:end].strip())}))
        at = text.find("\\boxed{", end)
    return found


_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for mark in _BRACE.finditer(text, start):
        if mark[0] == "{":
            depth += 1
        elif mark[0] == "}":
            depth -= 1
            if depth == 0:
                return mark.start()
    return -1


def named(text: str, tools: Mapping[str, Tool]) -> TagMatch:
    """A tool's name alone, as the whole answer or as its last line, where it needs no arguments."""
    stripped = text.strip()
    calls = [*bare(stripped, tools)]
    if not calls:
        last = stripped[-400:].rpartition("\n")[2]
        calls = [*bare(_LABEL.sub("", last), tools)]
    return TagMatch(calls)


_WAYS: tuple[Callable[[str, Mapping[str, Tool]], TagMatch], ...] = (marked, tagged, fenced, embedded, boxed, named)
