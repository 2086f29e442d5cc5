"""The conversation of one episode with a language model: what is asked in each turn, and what its reply means.

Pure and synchronous, in the environment's thread: `ask` gives the body of a chat-completions request, whoever drives the
episode sends it, `read` makes the reply a Decision. One object for each rollout.

In the history `full` the messages only grow: each request begins with the messages of the one before and the model's own
message, unchanged. The one exception is a tool call whose arguments are no JSON object: chat templates read the arguments
of earlier turns and would fail for good, so those go back as `{"unreadable": "…"}`; the record keeps what came. And an
answer with more calls than are done keeps one of the others; `left_out_calls` says how many it had besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import orjson

from taskapp_kit.contract.chat import ChatReply
from taskapp_kit.contract.content import Content, Json
from taskapp_kit.contract.protocols import Tool, View
from taskapp_kit.contract.trajectory import CALLS_PER_ANSWER, Decision, PlayedStep, ToolCall
from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.rollout.policy.chat.parsed_message import ParsedMessage, clean, parse_message
from taskapp_kit.rollout.policy.chat.prompt import only_words, system_prompt, tool_schemas
from taskapp_kit.rollout.policy.chat.rendering import has_pictures, joined, words_of
from taskapp_kit.rollout.policy.history import EstimatedTokens, TokenCounter, characters_of
from taskapp_kit.rollout.policy.options import PolicyOptions
from taskapp_kit.rollout.policy.text.structured import response_format
from taskapp_kit.rollout.policy.text.text_actions import ParsedActions, parse_actions, without_thoughts

Message = dict[str, Json]

_Told = tuple[str | None, Content]
"""An observation, and the line that stands before it."""

NEXT_MESSAGE = "in the next message"


@dataclass(slots=True)
class _Exchange:
    """An answer of the model and what was said to it afterwards, with their characters."""

    messages: list[Message] = field(default_factory=list)
    characters: int = 0

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self.characters += characters_of(message)


class Conversation:
    """What one model reads and says in one episode. `name` is the policy's.

    counter: counts tokens for the history `{"tokens": N}`; by default characters, set right by the endpoint's usage.
    most_calls: so many calls of one answer are done; of those after them only the first is read and sent back.
    Raises RequestError for a `tool_choice` that names no action.
    """

    def __init__(
        self,
        app: AppSpec,
        environment: EnvironmentSpec,
        asking: PolicyOptions,
        *,
        name: str = "model",
        counter: TokenCounter | None = None,
        most_calls: int = CALLS_PER_ANSWER,
    ) -> None:
        self.name = name
        _check_choice(asking, environment)
        self._app = app
        self._environment = environment
        self._asking = asking
        self._most_calls = most_calls
        self._counter = counter or EstimatedTokens()
        self._exchanges: list[_Exchange] = []  # the first is the opening: system prompt and first observation
        self._fresh: list[Message] = []  # new in this turn, as they are kept
        self._calls: list[ToolCall] = []  # of the answer before
        self._fixed: dict[str, Json] = {}
        self._tools: dict[str, Tool] = {}
        self._asked = -1
        self._sent = 0
        self._left_out = 0

    # -- asking ---------------------------------------------------------------------------------------------------

    def ask(self, view: View) -> dict[str, Json]:
        """The body of the turn's request, without `model`. Asked twice in one turn it is the same."""
        if view.turn != self._asked:
            self._asked = view.turn
            self._fresh = []
            if not self._exchanges:
                self._open(view)
            else:
                self._tell(view.results)
        return self._body()

    def _open(self, view: View) -> None:
        self._tools = {tool.name: tool for tool in view.tools}
        self._fixed = self._members(view.tools)
        self._exchanges.append(_Exchange())
        said = system_prompt(self._app, self._environment, self._asking.mode, view.tools)
        if said:
            self._say("system", said, said)
        told: list[_Told] = [(None, view.initial)]
        told += [(f"Done by the caller, not by you: {_done(step)}", step.observation) for step in view.results]
        self._add_user_message(told)
        self._exchanges[0].characters += len(orjson.dumps(self._fixed.get("tools")))

    def _members(self, tools: Sequence[Tool]) -> dict[str, Json]:
        """Everything in a body but the messages: the same in each turn."""
        asking = self._asking
        told: dict[str, Json] = {}
        offered = tool_schemas(tools) if asking.mode == "tool_calls" else []
        if offered:
            told["tools"] = offered
            words = any(tool.text for tool in tools)
            told["tool_choice"] = asking.tool_choice or ("auto" if words else "required")
        if asking.mode == "structured" and (asking.schema is not None or not only_words(tools)):
            told["response_format"] = response_format(asking, tools)
        told |= asking.sampling
        if not offered:
            told.pop("parallel_tool_calls", None)  # refused where there are no tools
        if asking.logprobs:
            told["logprobs"] = True
        if asking.token_ids:
            told["return_token_ids"] = True
        return {**told, **asking.extra}

    def _body(self) -> dict[str, Json]:
        opening, *exchanges = self._exchanges
        first = self._asking.history.first(opening.characters, [item.characters for item in exchanges], self._counter)
        shown = [opening, *exchanges[first:]]
        self._left_out = first
        self._sent = sum(item.characters for item in shown)
        return {"messages": [message for item in shown for message in item.messages], **self._fixed}

    def _say(self, role: str, sent: Json, kept: Json, **members: Json) -> None:
        message = {"role": role, **members, "content": sent}
        self._exchanges[-1].add(message)
        self._fresh.append(message if kept is sent else {**message, "content": kept})

    # -- what came of the answer before ---------------------------------------------------------------------------

    def _tell(self, steps: Sequence[PlayedStep]) -> None:
        """Says what the steps showed: to each tool call its own result, everything else as the user."""
        calls, self._calls = self._calls, []
        own, others = _matched(calls, steps, next((tool.name for tool in self._tools.values() if tool.text), ""))
        told: list[_Told] = []
        if any(call.id for call in calls):
            shown = [self._answer_call(call, step) for call, step in zip(calls, own, strict=True)]
            told = [(f"What {step.tool} showed:", step.observation) for step in shown if step is not None]
        else:
            done = [step for step in own if step is not None]
            told = [(_done(step) if len(done) > 1 else None, step.observation) for step in done]
            told = told or [(None, None)]  # an answer is followed by something
        told += [(f"Done by the caller, not by you: {_done(step)}", step.observation) for step in others]
        if told:
            self._add_user_message(told)

    def _answer_call(self, call: ToolCall, step: PlayedStep | None) -> PlayedStep | None:
        """Says what a tool call came to; gives the step back when its pictures have to follow."""
        if step is None:
            words = "This was not done."
        else:
            words = words_of(step.observation, pictures=NEXT_MESSAGE if self._asking.pictures else "not shown")
        self._say("tool", words, words, tool_call_id=call.id)
        return step if step is not None and self._asking.pictures and has_pictures(step.observation) else None

    def _add_user_message(self, told: list[_Told]) -> None:
        if self._asking.pictures and any(has_pictures(observation) for _, observation in told):
            self._say("user", *joined(told))
            return
        words = "\n\n".join((f"{line}\n" if line else "") + words_of(observation) for line, observation in told)
        self._say("user", words, words)

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, reply: ChatReply) -> Decision:
        """The reply as a Decision; whatever the model said, it never raises.

        A problem of the whole answer, or of arguments that are no JSON (they stay words), is in `problem`.
        """
        heard = parse_message(
            reply.message,
            self._tools,
            self._asked,
            thoughts=self._asking.reasoning,
            most_calls=self._most_calls + 1,  # one too many is enough to refuse the rest
        )
        calls, output, problem = self._meant(heard)
        if problem is not None and reply.finish_reason == "length":
            problem = f"Your answer was cut off at its limit of tokens. {problem}"
        if reply.usage.get("prompt_tokens"):
            self._counter.learn(self._sent, reply.usage["prompt_tokens"])
        self._exchanges.append(_Exchange())
        self._exchanges[-1].add(heard.back)
        self._calls = calls[: self._most_calls + 1]
        messages, self._fresh = [*self._fresh, heard.message], []
        return Decision(
            tool_calls=[replace(call) for call in calls],
            output=output,
            messages=messages,
            usage={name: count for name, count in reply.usage.items() if clean(count) is not None},
            token_ids=reply.token_ids,
            logprobs=reply.logprobs,
            policy_version=reply.policy_version,
            prompt_token_ids=reply.prompt_token_ids,
            problem=problem,
            details=self._details(reply, heard),
        )

    def _meant(self, heard: ParsedMessage) -> tuple[list[ToolCall], str | None, str | None]:
        """The calls, the words, and the problem."""
        words = heard.words
        if words is not None and (said := without_thoughts(words)) != words:
            words = said.strip() or None
        if heard.calls:
            return heard.calls, words, heard.problem
        text = next((tool for tool in self._tools.values() if tool.text), None)
        tools = list(self._tools.values())
        if self._asking.mode == "tool_calls" or only_words(tools):
            return [], words, None if text is not None and words else self._no_call(words)
        parsed = parse_actions(words or "", tools)
        if text is not None and words and not parsed.calls and not parsed.attempted:
            return [], words, None
        return parsed.calls, _spoken(parsed, text, words), parsed.problem

    def _no_call(self, words: str | None) -> str:
        names = ", ".join(self._tools)
        if only_words(list(self._tools.values())):
            return "Nothing was done: the answer was empty."
        if words and parse_actions(words, list(self._tools.values())).calls:
            return f"Nothing was done: a call stands in the words. Make it a tool call. The tools are: {names}."
        return f"Nothing was done: answer with a tool call. The tools are: {names}."

    def _details(self, reply: ChatReply, heard: ParsedMessage) -> dict[str, Json]:
        """What is told of the call: what was not as usual, and how long it took."""
        told: dict[str, Json] = {
            "finish_reason": reply.finish_reason,
            "model": reply.model,
            "seconds": reply.seconds,
            "attempts": reply.attempts,
            "cost": reply.cost,
        }
        optional: dict[str, Json] = {
            "retries": reply.retries,
            "cached": reply.cached,
            "left_out_turns": self._left_out,
            "rewritten_arguments": heard.rewritten,
            "left_out_calls": heard.left_out_calls,
        }
        told |= {name: part for name, part in optional.items() if part}
        return {name: part for name, value in told.items() if (part := clean(value)) not in (None, "")}


def _check_choice(asking: PolicyOptions, environment: EnvironmentSpec) -> None:
    choice = asking.tool_choice
    name = choice["function"]["name"] if isinstance(choice, dict) else None
    offered = [action.name for action in environment.actions.values() if not action.tool.text]
    if name is not None and name not in offered:
        message = f"policy.config.tool_choice names {name[:80]!r}; the tools are {', '.join(offered) or 'none'}."
        raise RequestError(message, fields=(FieldProblem(("body", "policy", "config", "tool_choice"), message),))


def _matched(
    calls: Sequence[ToolCall], steps: Sequence[PlayedStep], words: str
) -> tuple[list[PlayedStep | None], list[PlayedStep]]:
    """The step of each call, None for one that was not done; and the steps that were not the model's (the caller's).

    words: the name of the action that takes words, "" without one.
    """
    if not calls:  # words, or nothing: the episode makes one step of them
        fits = len(steps) > 0 and steps[0].tool in ("", words)
        return list(steps[:fits]), list(steps[fits:])
    own: list[PlayedStep | None] = []
    at = 0
    for call in calls:
        fits = at < len(steps) and steps[at].tool == call.tool and steps[at].args == call.args
        own.append(steps[at] if fits else None)
        at += fits
    return own, list(steps[at:])


def _done(step: PlayedStep) -> str:
    return f"{step.tool} {orjson.dumps(step.args, default=str).decode()}:"


def _spoken(parsed: ParsedActions, text: Tool | None, words: str | None) -> str | None:
    """The words; of a call of the action that takes words, what it says."""
    if text is not None and len(parsed.calls) == 1 and parsed.calls[0].tool == text.name:
        args = parsed.calls[0].args
        said = next(iter(args.values()), None) if isinstance(args, dict) else None
        if isinstance(said, str):
            return said
    return words


def prompt_of(app: AppSpec, environment: EnvironmentSpec, asking: PolicyOptions, view: View) -> dict[str, Json]:
    """The first request of an episode, without `model`: exactly what a `Conversation` would send for this view."""
    return Conversation(app, environment, asking).ask(view)
