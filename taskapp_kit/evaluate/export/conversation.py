"""Converts a stored rollout to one conversation for chat templates and trainers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import orjson

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.errors import ConfigError
from taskapp_kit.records.content import Json, plain, read_exactly
from taskapp_kit.records.events import Answered, EpisodeRecord, Observed, Stepped, from_json
from taskapp_kit.records.protocols import StoredRollout, Tool, View
from taskapp_kit.records.scorecard import TOKEN_COUNTS
from taskapp_kit.records.trajectory import Decision, PlayedStep
from taskapp_kit.rollout.policy.conversation import Conversation, tool_schemas
from taskapp_kit.rollout.policy.options import EstimatedTokens, PolicyOptions, characters_of
from taskapp_kit.wire.chat.conversation import ChatReply
from taskapp_kit.wire.chat.dialect_body import chat_call

Message = dict[str, Json]

NO_MODEL = "no language model played"
REWRITTEN = "the model did not read one growing conversation (policy.config.history, or an app's own loop)"
PICTURES = "messages with images"
UNREADABLE = "a tool call without a name, or whose arguments are not a JSON object"
EMPTY_ANSWER = "a reply without content, reasoning and tool calls"


class Unfit(Exception):
    """The rollout cannot be represented as one conversation.

    The message is the reason. Reports count rollouts by reason.
    """


@dataclass(frozen=True, slots=True)
class Chat:
    """The messages that a model read and wrote, from the system prompt to its last reply.

    Assistant messages may have `reasoning_content`, and `tool_calls` whose arguments are JSON objects. Tool call ids
    are renumbered, so that conversations with the same calls are equal.

    Attributes:
        messages: The messages.
        answers: The indexes of the messages that the model wrote. Other assistant messages are examples in the prompt.
        tools: The names of the episode's actions.
        tokens: The number of tokens in the conversation, as reported for the last model call, or estimated.
    """

    messages: list[Message]
    answers: list[int]
    tools: tuple[str, ...]
    tokens: int

    @property
    def calls_tools(self) -> bool:
        """Whether the model called a tool."""
        return any("tool_calls" in message for message in self.messages)

    @property
    def has_empty_answer(self) -> bool:
        """Whether one of the model's replies is empty."""
        answers = [self.messages[at] for at in self.answers]
        return not all(
            each["content"].strip() or each.get("reasoning_content", "").strip() or "tool_calls" in each
            for each in answers
        )


def recorded_messages(stored: StoredRollout) -> list[Message]:
    """Return the recorded messages of the policy's model in all turns. The list is empty if the policy has no model."""
    return [message for answer in EpisodeRecord.of(stored.events).answers for message in answer.get("messages") or ()]


def conversation_of(stored: StoredRollout) -> Chat:
    """Return the rollout's conversation.

    Raises Unfit if no model played, or if the prompt of a turn was not the conversation up to this turn.
    """
    episode = EpisodeRecord.of(stored.events)
    turns = [answer for answer in episode.answers if answer.get("messages")]
    if not turns:
        raise Unfit(NO_MODEL)
    opening = turns[0]["messages"][0]
    if any(_is_rewritten(answer, opening, later=index > 0) for index, answer in enumerate(turns)):
        raise Unfit(REWRITTEN)
    recorded = [message for answer in turns for message in answer["messages"]]
    messages: list[Message] = []
    answers: list[int] = []
    calls: dict[str, Message] = {}
    numbers = count(1)
    for turn in turns:
        began = len(messages)
        messages += [_plain(message, calls, numbers) for message in turn["messages"]]
        answers += _answers(messages, began, (turn.get("details") or {}).get("model_calls", 1))
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    _check_order(messages)
    return Chat(messages, answers, episode.tools, _tokens(turns[-1], recorded))


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Convert the messages of a request to the format of a Chat. Raises Unfit for images and invalid tool calls."""
    calls: dict[str, Message] = {}
    numbers = count(1)
    return [_plain(message, calls, numbers) for message in messages]


def _answers(messages: Sequence[Message], began: int, model_calls: int) -> list[int]:
    """Return the indexes of a turn's replies: the last assistant messages, one for each model call."""
    # A prompt may contain examples, whose messages also have the role `assistant`. A trainer must not learn from them,
    # so the export lists which messages the model wrote, according to the recorded turns.
    answers = [place for place in range(began, len(messages)) if messages[place]["role"] == "assistant"]
    return answers[-model_calls:] if model_calls else []


def _is_rewritten(answer: Mapping[str, Any], opening: Message, *, later: bool) -> bool:
    """Return whether the turn's prompt omits or repeats a part of the conversation before it."""
    if (answer.get("details") or {}).get("left_out_turns"):
        return True
    first = answer["messages"][0]
    return later and (first == opening or first.get("role") == "system")


def _plain(message: Mapping[str, Any], calls: dict[str, Message], numbers: Iterator[int]) -> Message:
    """Return the message with the fields that chat templates use.

    calls: The earlier tool calls, by the ids that the endpoint assigned to them.
    """
    role = message.get("role")
    plain: Message = {"role": role, "content": _text(message.get("content"))}
    if role == "assistant":
        thoughts = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thoughts, str):
            plain["reasoning_content"] = thoughts
        if message.get("tool_calls"):
            plain["tool_calls"] = [_call(call, calls, numbers) for call in message["tool_calls"]]
    elif role == "tool":
        answered = calls.get(str(message.get("tool_call_id") or ""))
        if answered is None:
            raise Unfit(REWRITTEN)
        plain |= {"tool_call_id": answered["id"], "name": answered["function"]["name"]}
    return plain


def _call(call: Any, calls: dict[str, Message], numbers: Iterator[int]) -> Message:
    try:
        name, arguments, identity = call["function"]["name"], call["function"]["arguments"], str(call.get("id") or "")
        if isinstance(arguments, str):
            arguments = plain(read_exactly(arguments.strip() or "null"), "arguments")
    except (KeyError, TypeError, AttributeError, ValueError):
        raise Unfit(UNREADABLE) from None
    arguments = {} if arguments is None else arguments
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise Unfit(UNREADABLE)
    function = {"name": name, "arguments": arguments}
    calls[identity] = {"id": f"call_{next(numbers)}", "type": "function", "function": function}
    return calls[identity]


def _text(content: Json) -> str:
    """Return the content as one string. Raises Unfit if a part is not text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise Unfit(PICTURES)
        texts.append(text)
    return "\n".join(texts)


def _check_order(messages: Sequence[Message]) -> None:
    """Raise Unfit unless every reply follows a user or tool message, and every tool message follows its call."""
    before, open_calls = "", set[str]()
    for message in messages:
        role = message["role"]
        fits = {
            "system": before == "",
            "developer": before == "",
            "user": True,
            "assistant": before in ("user", "tool"),
            "tool": message.get("tool_call_id") in open_calls,
        }
        if not fits.get(role, False):
            raise Unfit(REWRITTEN)
        if role == "assistant":
            open_calls = {call["id"] for call in message.get("tool_calls", ())}
        before = role
    if before != "assistant":
        raise Unfit(NO_MODEL)


def _tokens(last: Mapping[str, Any], recorded: Sequence[Message]) -> int:
    usage = last.get("usage") or {}
    counts = [usage[name] for name in TOKEN_COUNTS if name in usage]
    if counts:
        return int(sum(counts))
    return int(EstimatedTokens().tokens(sum(map(characters_of, recorded))))


class ToolSchemas:
    """The tools of each environment by name.

    spec_hash: the hash of the declarations; None if unknown. app: the declarations; None if a server described the
    tools.
    """

    def __init__(
        self, environments: Mapping[str, Mapping[str, Tool]], spec_hash: str | None, app: AppSpec | None = None
    ) -> None:
        self._environments = environments
        self.spec_hash = spec_hash
        self.app = app

    @classmethod
    def of_app(cls, spec: AppSpec) -> ToolSchemas:
        """Return the tools of an app's declarations."""
        tools = {
            name: {action.tool.name: action.tool for action in environment.actions.values()}
            for name, environment in spec.environments.items()
        }
        return cls(tools, spec.hash, spec)

    @classmethod
    def of_info(cls, info: Mapping[str, Any]) -> ToolSchemas:
        """Return the tools in a response of `GET /info`. Raises ConfigError if it describes no tools."""
        try:
            tools = {
                name: {
                    tool["name"]: Tool(tool["name"], tool["description"], tool["parameters"], text=tool["text"])
                    for tool in environment["action_space"]["tools"]
                }
                for name, environment in info["environments"].items()
            }
        except (KeyError, TypeError, AttributeError):
            raise ConfigError(
                "The server's /info does not describe its tools.", hint="Pass the app: --app APP."
            ) from None
        return cls(tools, None)

    def of(self, environment: str, names: Sequence[str]) -> list[dict[str, Json]] | None:
        """Return `tools` of a chat request with these actions, or None if the app does not declare all of them."""
        known = self._environments.get(environment, {})
        if any(name not in known for name in names):
            return None
        return tool_schemas([known[name] for name in names])


FindTools = Callable[[], Awaitable[ToolSchemas | None]]
"""Looks up the tools of the app whose rollouts are exported; None if the app is unknown."""


UNKNOWN = "an environment or an action that the app does not declare"
READ = ("observed", "answered", "stepped")


def demonstration_of(stored: StoredRollout, app: AppSpec) -> Chat:
    """Return a rollout of a policy without a model, such as `gold` or a person, as if a model had played it.

    The prompts are built as for a model (`rollout/policy/conversation.py`), from the app's current declarations. Raises
    Unfit if the rollout cannot be converted.
    """
    environment = app.environments.get(stored.environment)
    if environment is None:
        raise Unfit(UNKNOWN)
    recorded = [event for event in stored.events if event["kind"] in READ]
    if any(_has_pictures(event) for event in recorded):
        raise Unfit(PICTURES)
    events = [from_json(event) for event in recorded]
    first = next((event for event in events if isinstance(event, Observed)), None)
    decisions = [event.answer for event in events if isinstance(event, Answered)]
    if first is None or not decisions:
        raise Unfit(NO_MODEL)
    declared = {action.tool.name: action.tool for action in environment.actions.values()}
    if any(name not in declared for name in first.tools):
        raise Unfit(UNKNOWN)
    tools = [declared[name] for name in first.tools]
    conversation = Conversation(app, environment, PolicyOptions(), most_calls=max(len(d.tool_calls) for d in decisions))
    results: list[PlayedStep] = []
    body: dict[str, Json] = {}
    numbers = count(1)
    turn = 0
    for event in events:
        if isinstance(event, Stepped):
            results.append(event.step)
        elif isinstance(event, Answered):
            seen = results[-1].observation if results else first.observation
            body = conversation.ask(View(turn, seen, results, tools, initial=first.observation))
            message = _message(event.answer, declared, numbers)
            conversation.read(ChatReply(message))
            results, turn = [], turn + 1
    messages = plain_messages([*body["messages"], message])
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    tokens = EstimatedTokens().tokens(sum(map(characters_of, messages)))
    return Chat(messages, answers, tuple(first.tools), int(tokens))


def _message(decision: Decision, declared: Mapping[str, Tool], numbers: count[int]) -> Message:
    """Convert the decision to the message that a model would send.

    The text of an action that takes text becomes the message's content, not a tool call.
    """
    words = [call for call in decision.tool_calls if call.tool in declared and declared[call.tool].text]
    if words:
        said = list(words[0].args.values()) if isinstance(words[0].args, dict) else []
        if len(decision.tool_calls) > 1 or len(said) != 1 or not isinstance(said[0], str):
            raise Unfit(UNREADABLE)
        return {"role": "assistant", "content": said[0]}
    message: Message = {"role": "assistant", "content": decision.output}
    if decision.tool_calls:
        message["tool_calls"] = [
            chat_call(f"call_{next(numbers)}", call.tool, orjson.dumps(call.args or {}).decode())
            for call in decision.tool_calls
        ]
    return message


def _has_pictures(event: Mapping[str, Any]) -> bool:
    observation = event["step"]["observation"] if event["kind"] == "stepped" else event.get("observation")
    return isinstance(observation, list) and any(isinstance(block, dict) for block in observation)
