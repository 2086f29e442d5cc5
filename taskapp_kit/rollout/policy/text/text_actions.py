"""Parses the action in a model's text for output mode `text`, or explains to the model why no action was found.

The parsers run in this order until one of them finds an action: the notations of chat templates, tags, fenced
blocks, JSON anywhere, `\\boxed{…}`, a tool's name alone. Text in `<think>` tags is ignored. The text is never
evaluated, and parsing takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from taskapp_kit.records.protocols import Tool
from taskapp_kit.records.trajectory import ToolCall
from taskapp_kit.rollout.policy.parsed_message import UnreadableJson, decode_at, recordable
from taskapp_kit.rollout.policy.sampling import example_text
from taskapp_kit.rollout.policy.text.notations import TagMatch, actions_in, bare, marked, tagged, word_tool

ATTEMPTS = 200
"""The maximum number of positions at which JSON is tried."""
WORK = 4
"""The limit on characters parsed in these attempts, as a multiple of the text's length."""
BLOCKS = 256
BOXES = 64
MANY = 64
"""The maximum number of different actions to count for a refusal."""

_THOUGHT = re.compile(r"<(/?)(think|thinking|thought|reasoning)>")
_FENCE = "```"
_LABEL = re.compile(
    r"^[\s>*_#-]{0,8}(?:final )?(?:action|tool|move|answer)[*_]{0,2}\s{0,4}[:=][*_]{0,2}", re.IGNORECASE
)


@dataclass(slots=True)
class ParsedActions:
    """The actions that were parsed from a text.

    Attributes:
        calls: The actions in order.
        problem: Why no action was parsed, as a message for the model.
        attempted: Whether the text seems to be intended as an action.
    """

    calls: list[ToolCall] = field(default_factory=list)
    problem: str | None = None
    attempted: bool = False


def parse_actions(words: str, tools: Sequence[Tool]) -> ParsedActions:
    """Parse the actions in a model's text. Never raises.

    Args:
        words: The model's text. Text in `<think>` tags is ignored.
        tools: The actions of the environment.

    Returns:
        The actions, or why no action was parsed.
    """
    named = {tool.name: tool for tool in tools}
    # models consider actions in their thoughts, which must not count as the answer
    text = without_thoughts(words)
    broken: str | None = None
    for search in _SEARCHES:
        try:
            found = search(text, named)
        except UnreadableJson as error:
            found = TagMatch(broken=str(error))
        if found.calls:
            return _resolve(found, tools)
        broken = broken or found.broken
        # the model intended a call, and another parser would find something else inside it
        if found.broken is not None and search is marked:
            break
    if broken is not None:
        return ParsedActions(problem=f"Nothing was done: {broken}. {how(tools)}", attempted=True)
    reason = "no action was found in the answer" if text.strip() else "the answer was empty"
    return ParsedActions(problem=f"Nothing was done: {reason}. {how(tools)}")


def how(tools: Sequence[Tool]) -> str:
    """Return a message that tells the model how to answer, with a valid example for one tool and the names of all tools."""
    if not tools:
        return "No action is possible now."
    shown = next((tool for tool in tools if not tool.text), tools[0])
    names = ", ".join(tool.name for tool in tools)
    return f"Answer with one JSON object, for example {example_text(shown)}. The tools are: {names}."


def without_thoughts(words: str) -> str:
    """Return the text without its `<think>` sections. A closing tag without an opening tag ends a section from the start."""
    parts: list[str] = []
    at, depth = 0, 0
    for mark in _THOUGHT.finditer(words):
        if mark[1]:  # closing
            if depth == 0:
                parts.clear()  # the chat template opened the section in the prompt
            depth = max(0, depth - 1)
        else:
            if depth == 0:
                parts.append(words[at : mark.start()])
            depth += 1
        at = mark.end()
    if depth == 0:
        parts.append(words[at:])
    return "".join(parts)


def _resolve(found: TagMatch, tools: Sequence[Tool]) -> ParsedActions:
    """Return the found actions. Equal actions count once. Different actions are refused unless several are clearly intended."""
    # in a notation for calls, or in a list, several actions are clearly intended
    if found.several:
        return ParsedActions(found.calls, attempted=True)
    distinct: list[ToolCall] = []
    for call in found.calls[:MANY]:
        if not any(call.tool == other.tool and call.args == other.args for other in distinct):
            distinct.append(call)
    # different actions in prose are not executed, because the model may have rejected the first
    if len(distinct) == 1 and found.broken is None:
        return ParsedActions(distinct, attempted=True)
    if len(distinct) == 1:
        return ParsedActions(problem=f"Nothing was done: {found.broken}. {how(tools)}", attempted=True)
    shown = " and ".join(_short(call) for call in distinct[:2])
    more = "" if len(distinct) == 2 else f" and {len(distinct) - 2} more"
    sentence = (
        f"Nothing was done: the answer holds different actions ({shown}{more}), and it is not plain which is meant."
    )
    return ParsedActions(problem=f"{sentence} {how(tools)}", attempted=True)


def _short(call: ToolCall) -> str:
    return f"{call.tool[:40]} {str(call.args)[:60]}"


def fenced(text: str, tools: Mapping[str, Tool]) -> TagMatch:
    """Parse JSON, tags or a tool's name in code blocks. Several actions are accepted only if one block contains all of them."""
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
        if not line:  # the whole block is on one line
            info, body = "", block.removeprefix("json")
        in_block = _in_block(info.strip().lower(), body.strip(), tools)
        holding += bool(in_block.calls)
        found.several = in_block.several if in_block.calls and holding == 1 else found.several and not in_block.calls
        found.calls += in_block.calls
        found.broken = found.broken or in_block.broken
        at = text.find(_FENCE, end + len(_FENCE)) if end >= 0 else -1
    return found


def _in_block(info: str, body: str, tools: Mapping[str, Tool]) -> TagMatch:
    """Parse one code block."""
    if body[:1] in ("{", "["):
        match = embedded(body, tools)
        if info not in ("json", "tool_call", "action", ""):
            match.broken = None
        return match
    match = tagged(body, tools)
    return match if match.calls or match.broken else TagMatch([*bare(body, tools)])


def _looks_like_one(text: str, tools: Mapping[str, Tool]) -> bool:
    """Return whether broken JSON seems to be intended as an action."""
    head = text[:400]
    return any(f'"{word}"' in head or f"'{word}'" in head for word in ("tool", "name", "arguments", "args", *tools))


def embedded(text: str, tools: Mapping[str, Tool]) -> TagMatch:
    """Parse JSON anywhere in the text. Several actions are accepted as one list, or if the text has nothing else."""
    found = TagMatch()
    start = len(text) - len(text.lstrip())
    at = start if text[start : start + 1] == "[" else text.find("{")
    budget = WORK * len(text) + 10_000
    alone, holding = at == start, 0
    for _ in range(ATTEMPTS):
        if at < 0 or budget <= 0:
            break
        try:
            value, end = decode_at(text, at)
            # after broken JSON, a bare object may be a part of it
            calls = actions_in(value, tools, bare=found.broken is None)
        except UnreadableJson as error:
            # count the characters of each attempt, because nested braces would take quadratic time
            budget -= error.read + 64
            if found.broken is None and _looks_like_one(text[at : at + 400], tools):
                found.broken = f"the JSON in the answer cannot be read: {error}"
            alone, at = False, text.find("{", at + 1)
            continue
        budget -= end - at
        holding += bool(calls)
        found.calls += calls or ()
        at = text.find("{", end)
        alone = alone and not text[end : at if at >= 0 else len(text)].strip(" \t\r\n;,")
    if found.calls:
        found.broken = None
    # several objects in prose may be examples, but a text that contains only objects is a list of actions
    found.several = alone or holding == 1
    return found


def boxed(text: str, tools: Mapping[str, Tool]) -> TagMatch:
    """Parse `\\boxed{…}` as the argument of the only tool that takes one string."""
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
    """Parse the name of a tool without required arguments, as the whole answer or as the last line."""
    stripped = text.strip()
    calls = [*bare(stripped, tools)]
    if not calls:
        # models often explain first and then name the action
        last = stripped[-400:].rpartition("\n")[2]
        calls = [*bare(_LABEL.sub("", last), tools)]
    return TagMatch(calls)


_SEARCHES: tuple[Callable[[str, Mapping[str, Tool]], TagMatch], ...] = (marked, tagged, fenced, embedded, boxed, named)
