"""A stored rollout of a policy without a model, such as `gold` or a person, as the conversation of a model that does the same.

`rollout/policy/conversation.py` builds the conversation, as it builds a model's, from the app as it is declared now.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import orjson

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.evaluate.export.conversation import (
    NO_MODEL,
    PICTURES,
    UNREADABLE,
    Chat,
    Message,
    Unfit,
    plain_messages,
)
from taskapp_kit.records.content import Json
from taskapp_kit.records.events import Answered, Observed, Stepped, from_json
from taskapp_kit.records.protocols import StoredRollout, Tool, View
from taskapp_kit.records.trajectory import Decision, PlayedStep
from taskapp_kit.rollout.policy.conversation import Conversation
from taskapp_kit.rollout.policy.options import EstimatedTokens, PolicyOptions, characters_of
from taskapp_kit.wire.chat.conversation import ChatReply
from taskapp_kit.wire.chat.dialect_body import chat_call

UNKNOWN = "an environment or an action that the app does not declare"
READ = ("observed", "answered", "stepped")


def demonstration_of(stored: StoredRollout, app: AppSpec) -> Chat:
    """The conversation, with tool calls as a model makes them. Raises Unfit when it cannot be one."""
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
    """The answer as a model sends it: an action that takes words is no tool of a model, but its words."""
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
