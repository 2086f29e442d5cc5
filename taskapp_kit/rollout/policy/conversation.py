"""The conversation with a language model in one episode: the system prompt, the tools, and the requests and replies.

A Conversation is synchronous, has no network access, and runs in the environment's thread. `ask` returns the body of a
chat-completions request, which the episode's driver sends, and `read` converts the reply to a Decision. Each rollout has its
own Conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from taskapp_kit.config import CALLS_PER_ANSWER
from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.records.content import Content, Image, Json, images, text_of
from taskapp_kit.records.protocols import Tool, View
from taskapp_kit.records.trajectory import Decision, PlayedStep, ToolCall
from taskapp_kit.rollout.policy.options import EstimatedTokens, OutputMode, PolicyOptions, characters_of
from taskapp_kit.rollout.policy.parsed_message import ParsedMessage, clean, parse_message
from taskapp_kit.rollout.policy.sampling import example_call, example_text
from taskapp_kit.rollout.policy.text.structured import response_format
from taskapp_kit.rollout.policy.text.text_actions import ParsedActions, parse_actions, without_thoughts
from taskapp_kit.wire.chat.conversation import ChatReply
from taskapp_kit.wire.chat.dialect_body import chat_tool

Message = dict[str, Json]

_Section = tuple[str | None, Content]
"""A heading line or None, and an observation."""

NEXT_MESSAGE = "in the next message"
EMPTY = "Nothing was done: the answer was empty."
NOTHING = "(nothing to see)"
"""Sent for an observation of None, because many endpoints reject a message without text."""

MessageContent = str | list[dict[str, Json]]
"""The content of a message: a string or a list of parts."""


def only_words(tools: Sequence[Tool]) -> bool:
    """Return whether plain text is the only action. Such a rollout is a plain chat, unless the caller passes a schema."""
    return len(tools) == 1 and tools[0].text


def system_prompt(app: AppSpec, environment: EnvironmentSpec, mode: OutputMode, tools: Sequence[Tool]) -> str:
    """Return the environment's or the app's system prompt, or else build a prompt from the docstrings and limits.

    In the modes `text` and `structured`, the prompt also lists the actions and explains how to write one.
    """
    declared = environment.system_prompt or app.system_prompt
    words = next((tool for tool in tools if tool.text), None)
    parts: list[str]
    # an author's prompt is complete, and generated rules might contradict it
    if declared is not None:
        parts = [declared]
    else:
        parts = [environment.description, *_rules(mode, tools, words), *_limits(environment, tools)]
    if mode == "text" and not only_words(tools):
        parts += [_catalogue(tools), _text_form(tools, words)]
    elif mode == "structured" and not only_words(tools):
        parts += [_catalogue(tools), _structured_form(tools)]
    return "\n\n".join(part.strip() for part in parts if part.strip())


def tool_schemas(tools: Sequence[Tool]) -> list[dict[str, Json]]:
    """Return the actions as the `tools` of a request, without the action for plain text."""
    return [
        chat_tool(tool.name, {"type": "object", "properties": {}, **_plain(tool.parameters)}, tool.description)
        for tool in tools
        if not tool.text
    ]


def _rules(mode: OutputMode, tools: Sequence[Tool], words: Tool | None) -> list[str]:
    if only_words(tools):
        return [tools[0].description]
    if mode != "tool_calls":
        return []
    text = "Act by calling the tools. Several calls in one answer are done in the order in which they stand."
    if words is not None:
        text += f" An answer in plain words, without a call, is an action too: {words.description}"
    return [text]


def _limits(environment: EnvironmentSpec, tools: Sequence[Tool]) -> list[str]:
    limits = []
    if only_words(tools) and environment.max_steps is None and environment.max_turns is None:
        return []
    if environment.max_steps is not None:
        limits.append(f"after {environment.max_steps} {'action' if environment.max_steps == 1 else 'actions'}")
    if environment.max_turns is not None:
        limits.append(f"after {environment.max_turns} of your answers")
    return [f"The episode ends at the latest {' or '.join(limits)}."] if limits else []


def _catalogue(tools: Sequence[Tool]) -> str:
    """Return the prompt's list of actions, with descriptions and the schemas of the arguments."""
    lines = ["The actions are:"]
    for tool in tools:
        description = " ".join(tool.description.split())
        schema = orjson.dumps(_plain(tool.parameters)).decode()
        takes = "takes no arguments" if not tool.parameters.get("properties") else f"arguments: {schema}"
        lines.append(f"- {tool.name}: {description}\n  {takes}")
    return "\n".join(lines)


def _text_form(tools: Sequence[Tool], words: Tool | None) -> str:
    shown = next((tool for tool in tools if not tool.text), tools[0])
    text = (
        "Answer with one action, written as a JSON object, for example:\n"
        f"{example_text(shown)}\n"
        "You may think in words before it; the answer holds one such object and no other."
    )
    if words is not None:
        text += f" An answer without such an object is taken as the action {words.name}, as it stands."
    return text


def _structured_form(tools: Sequence[Tool]) -> str:
    shown = next((tool for tool in tools if not tool.text), tools[0])
    example = orjson.dumps({"action": example_call(shown)}, default=dict).decode()
    return f"Answer with one action as a JSON object that fits the response format, for example:\n{example}"


def _plain(schema: Mapping[str, Any]) -> dict[str, Json]:
    """Return a copy that can be serialized as JSON, because a schema may be a read-only mapping."""
    copied: dict[str, Json] = orjson.loads(orjson.dumps(schema, default=dict))
    return copied


def words_of(observation: Content, *, pictures: str = "not shown") -> str:
    """Return the observation as a string. An image is replaced with its size and the note `pictures`."""
    if type(observation) is list:
        lines = [
            f"[picture {block.width} x {block.height}: {pictures}]" if isinstance(block, Image) else block
            for block in observation
        ]
        return "\n".join(lines) or NOTHING
    return text_of(observation) or NOTHING


def has_pictures(observation: Content) -> bool:
    """Return whether the observation contains an image."""
    return next(images(observation), None) is not None


def joined(shown: list[tuple[str | None, Content]]) -> tuple[MessageContent, MessageContent]:
    """Join observations with images and their headings into one message. Return the content to send and the content to record."""
    sent: list[dict[str, Json]] = []
    recorded: list[dict[str, Json]] = []
    for line, observation in shown:
        for block in ([line] if line else []) + (observation if type(observation) is list else [words_of(observation)]):
            if isinstance(block, Image):
                sent.append(_picture(block.data_url()))
                # the record contains the hash of an image, because the bytes are stored once
                recorded.append(_picture(f"/blobs/{block.hash}"))
            else:
                sent.append({"type": "text", "text": block})
                recorded.append(sent[-1])
    return sent, recorded


def _picture(address: str) -> dict[str, Json]:
    return {"type": "image_url", "image_url": {"url": address}}


@dataclass(slots=True)
class _Exchange:
    """A reply of the model and the messages that follow it, with the size in characters."""

    messages: list[Message] = field(default_factory=list)
    characters: int = 0

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self.characters += characters_of(message)


class Conversation:
    """The messages of one model in one episode. `name` is the name of the policy.

    most_calls: the limit on tool calls that are executed from one reply. Of the calls beyond this limit, only the first is
    parsed and sent back. Raises RequestError if `tool_choice` names an unknown action.
    """

    def __init__(
        self,
        app: AppSpec,
        environment: EnvironmentSpec,
        options: PolicyOptions,
        *,
        name: str = "model",
        most_calls: int = CALLS_PER_ANSWER,
    ) -> None:
        self.name = name
        _check_choice(options, environment)
        self._app = app
        self._environment = environment
        self._options = options
        self._most_calls = most_calls
        self._counter = EstimatedTokens()
        self._exchanges: list[
            _Exchange
        ] = []  # the first exchange is the opening: the system prompt and the first observation
        self._new_messages: list[Message] = []  # the recorded messages that are new in this turn
        self._calls: list[ToolCall] = []  # the calls of the previous reply
        self._fixed: dict[str, Json] = {}
        self._tools: dict[str, Tool] = {}
        self._turn = -1
        self._sent = 0
        self._left_out = 0

    # -- requests -------------------------------------------------------------------------------------------------

    def ask(self, view: View) -> dict[str, Json]:
        """Return the body of the turn's request without `model`. A second call in the same turn returns an equal body."""
        if view.turn != self._turn:
            self._turn = view.turn
            self._new_messages = []
            if not self._exchanges:
                self._start(view)
            else:
                self._add_results(view.results)
        return self._body()

    def _start(self, view: View) -> None:
        self._tools = {tool.name: tool for tool in view.tools}
        self._fixed = self._members(view.tools)
        self._exchanges.append(_Exchange())
        prompt = system_prompt(self._app, self._environment, self._options.mode, view.tools)
        if prompt:
            self._add_message("system", prompt, prompt)
        sections: list[_Section] = [(None, view.initial)]
        sections += [(f"Done by the caller, not by you: {_label(step)}", step.observation) for step in view.results]
        self._add_user_message(sections)
        # endpoints count the tools as part of the prompt
        self._exchanges[0].characters += len(orjson.dumps(self._fixed.get("tools")))

    def _members(self, tools: Sequence[Tool]) -> dict[str, Json]:
        """Return the fields of a request except the messages. These fields are the same in each turn."""
        options = self._options
        members: dict[str, Json] = {}
        offered = tool_schemas(tools) if options.mode == "tool_calls" else []
        if offered:
            members["tools"] = offered
            words = any(tool.text for tool in tools)
            # a model that may reply in plain text, without an action for it, would be refused in each turn
            members["tool_choice"] = options.tool_choice or ("auto" if words else "required")
        if options.mode == "structured" and (options.structured is not None or not only_words(tools)):
            members["response_format"] = response_format(options, tools)
        members |= options.sampling
        if not offered:
            members.pop("parallel_tool_calls", None)  # endpoints reject this field without tools
        if options.logprobs:
            members["logprobs"] = True
        if options.token_ids:
            members["return_token_ids"] = True
        return {**members, **options.extra}

    def _body(self) -> dict[str, Json]:
        opening, *exchanges = self._exchanges
        first = self._options.history.first(opening.characters, [item.characters for item in exchanges], self._counter)
        shown = [opening, *exchanges[first:]]
        self._left_out = first
        self._sent = sum(item.characters for item in shown)
        return {"messages": [message for item in shown for message in item.messages], **self._fixed}

    def _add_message(self, role: str, sent: Json, recorded: Json, **members: Json) -> None:
        message = {"role": role, **members, "content": sent}
        self._exchanges[-1].add(message)
        self._new_messages.append(message if recorded is sent else {**message, "content": recorded})

    # -- results of the previous answer ---------------------------------------------------------------------------

    def _add_results(self, steps: Sequence[PlayedStep]) -> None:
        """Add the steps' observations, as tool messages for the model's calls and as a user message for all other steps."""
        calls, self._calls = self._calls, []
        own, others = _match_steps(calls, steps, next((tool.name for tool in self._tools.values() if tool.text), ""))
        sections: list[_Section] = []
        # vendors reject a conversation in which a call has no result
        if any(call.id for call in calls):
            shown = [self._answer_call(call, step) for call, step in zip(calls, own, strict=True)]
            sections = [(f"What {step.tool} showed:", step.observation) for step in shown if step is not None]
        else:
            done = [step for step in own if step is not None]
            sections = [(_label(step) if len(done) > 1 else None, step.observation) for step in done]
            sections = sections or [(None, None)]  # a reply must be followed by a message
        sections += [(f"Done by the caller, not by you: {_label(step)}", step.observation) for step in others]
        if sections:
            self._add_user_message(sections)

    def _answer_call(self, call: ToolCall, step: PlayedStep | None) -> PlayedStep | None:
        """Add the result of a tool call. If its images need a separate message, return the step."""
        if step is None:
            words = "This was not done."
        else:
            words = words_of(step.observation, pictures=NEXT_MESSAGE if self._options.pictures else "not shown")
        self._add_message("tool", words, words, tool_call_id=call.id)
        # most endpoints reject images in tool messages, so they follow in a user message
        return step if step is not None and self._options.pictures and has_pictures(step.observation) else None

    def _add_user_message(self, sections: list[_Section]) -> None:
        if self._options.pictures and any(has_pictures(observation) for _, observation in sections):
            self._add_message("user", *joined(sections))
            return
        words = "\n\n".join((f"{line}\n" if line else "") + words_of(observation) for line, observation in sections)
        self._add_message("user", words, words)

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, reply: ChatReply) -> Decision:
        """Convert the reply to a Decision. Never raises.

        The Decision's `problem` describes an error in the whole reply, or arguments that are not JSON. Such arguments
        remain a str.
        """
        parsed_message = parse_message(
            reply.message,
            self._tools,
            self._turn,
            thoughts=self._options.reasoning,
            most_calls=self._most_calls + 1,  # one more than allowed, to detect too many calls
        )
        calls, output, problem = self._interpret(parsed_message)
        # otherwise the model only learns that its JSON is incomplete, and not why
        if problem is not None and reply.finish_reason == "length":
            problem = f"Your answer was cut off at its limit of tokens. {problem}"
        if reply.usage.get("prompt_tokens"):
            self._counter.learn(self._sent, reply.usage["prompt_tokens"])
        self._exchanges.append(_Exchange())
        # Send the model's message unchanged. Each prompt then begins with the previous prompt and reply, so an engine's
        # prefix cache stays valid, and a trainer can join the turns.
        self._exchanges[-1].add(parsed_message.back)
        self._calls = calls[: self._most_calls + 1]
        messages, self._new_messages = [*self._new_messages, parsed_message.message], []
        return Decision(
            # copies, because the next turn compares the calls with the executed steps
            tool_calls=[replace(call) for call in calls],
            output=output,
            messages=messages,
            usage={name: count for name, count in reply.usage.items() if clean(count) is not None},
            token_ids=reply.token_ids,
            logprobs=reply.logprobs,
            policy_version=reply.policy_version,
            prompt_token_ids=reply.prompt_token_ids,
            problem=problem,
            details=self._details(reply, parsed_message),
        )

    def _interpret(self, parsed_message: ParsedMessage) -> tuple[list[ToolCall], str | None, str | None]:
        """Return the calls, the text and the problem of a reply."""
        words = parsed_message.words
        tools = list(self._tools.values())
        if not parsed_message.calls and self._options.mode != "tool_calls":
            return read_written(words, tools)
        words = _spoken(words)
        if parsed_message.calls:
            return parsed_message.calls, words, parsed_message.problem
        text = next((tool for tool in tools if tool.text), None)
        # text is not an error if an action accepts it
        return [], words, None if text is not None and words else self._no_call(words)

    def _no_call(self, words: str | None) -> str:
        names = ", ".join(self._tools)
        if only_words(list(self._tools.values())):
            return EMPTY
        # without a tool call parser at the endpoint, a model writes calls as text in each turn, so correct it
        if words and parse_actions(words, list(self._tools.values())).calls:
            return f"Nothing was done: a call stands in the words. Make it a tool call. The tools are: {names}."
        return f"Nothing was done: answer with a tool call. The tools are: {names}."

    def _details(self, reply: ChatReply, parsed_message: ParsedMessage) -> dict[str, Json]:
        """Return the recorded details of a model call: the duration, and values that are not the default."""
        details: dict[str, Json] = {
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
            "rewritten_arguments": parsed_message.rewritten,
            "left_out_calls": parsed_message.left_out_calls,
        }
        details |= {name: part for name, part in optional.items() if part}
        return {name: part for name, value in details.items() if (part := clean(value)) not in (None, "")}


def _check_choice(options: PolicyOptions, environment: EnvironmentSpec) -> None:
    choice = options.tool_choice
    name = choice["function"]["name"] if isinstance(choice, dict) else None
    offered = [action.name for action in environment.actions.values() if not action.tool.text]
    if name is not None and name not in offered:
        message = f"policy.config.tool_choice names the unknown tool {name[:80]!r}; expected: {', '.join(offered) or 'no tool'}."
        raise RequestError(message, fields=(FieldProblem(("body", "policy", "config", "tool_choice"), message),))


def _match_steps(
    calls: Sequence[ToolCall], steps: Sequence[PlayedStep], words: str
) -> tuple[list[PlayedStep | None], list[PlayedStep]]:
    """Match a reply's tool calls with the steps that followed. Steps that the caller scripted have no call.

    Returns a list with the step of each call, or None if the call was not executed, and a list of the steps without a call.
    words: the name of the action for plain text, or "" if there is no such action.
    """
    if not calls:  # plain text, or an empty reply, is one step of the episode
        # an empty reply is also a step, which the environment refused
        fits = len(steps) > 0 and steps[0].tool in ("", words)
        return list(steps[:fits]), list(steps[fits:])
    own: list[PlayedStep | None] = []
    at = 0
    # in order, because calls may be skipped, and the caller may act between two calls
    for call in calls:
        fits = at < len(steps) and steps[at].tool == call.tool and steps[at].args == call.args
        own.append(steps[at] if fits else None)
        at += fits
    return own, list(steps[at:])


def _label(step: PlayedStep) -> str:
    return f"{step.tool} {orjson.dumps(step.args, default=str).decode()}:"


def read_written(words: str | None, tools: Sequence[Tool]) -> tuple[list[ToolCall], str | None, str | None]:
    """Parse a reply in which actions are written as text. Return the calls, the text and the problem."""
    words = _spoken(words)
    text = next((tool for tool in tools if tool.text), None)
    if only_words(tools):
        return [], words, None if words else EMPTY
    parsed = parse_actions(words or "", tools)
    if text is not None and words and not parsed.calls and not parsed.attempted:
        return [], words, None
    return parsed.calls, _output_of(parsed, text, words), parsed.problem


def _spoken(words: str | None) -> str | None:
    """Return the reply's text without the model's thoughts."""
    if words is not None and (spoken := without_thoughts(words)) != words:
        return spoken.strip() or None
    return words


def _output_of(parsed: ParsedActions, text: Tool | None, words: str | None) -> str | None:
    """Return the reply's text. For a call of the action for plain text, return the argument."""
    if text is not None and len(parsed.calls) == 1 and parsed.calls[0].tool == text.name:
        args = parsed.calls[0].args
        said = next(iter(args.values()), None) if isinstance(args, dict) else None
        if isinstance(said, str):
            return said
    return words


def prompt_of(app: AppSpec, environment: EnvironmentSpec, options: PolicyOptions, view: View) -> dict[str, Json]:
    """Return the first request of an episode without `model`, exactly as a `Conversation` sends it for this view."""
    return Conversation(app, environment, options).ask(view)
