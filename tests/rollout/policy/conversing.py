"""Plays an episode with a scripted model: the real episode, the real conversation, no network in between."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from taskapp_kit import TaskApp
from taskapp_kit.records.events import Called, Event, fold
from taskapp_kit.records.protocols import SystemClock
from taskapp_kit.records.trajectory import Decision, Trajectory
from taskapp_kit.rollout.episode.episode import Episode
from taskapp_kit.rollout.policy.conversation import Conversation
from taskapp_kit.rollout.policy.options import read_options
from taskapp_kit.rollout.request import NoPolicy, RequestPlanner
from taskapp_kit.testing.mock_model.chat_request import check
from taskapp_kit.wire.chat.conversation import ChatReply
from tests.rollouts import a_request

Message = dict[str, Any]


def call(name: str, arguments: Any, identity: str | None = "c1") -> Message:
    """A tool call as an endpoint writes it."""
    told = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return told if identity is None else {"id": identity, **told}


def calling(*calls: Message, content: str | None = None, **members: Any) -> Message:
    """An assistant's message with calls."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **members}


def saying(content: str | None, **members: Any) -> Message:
    """An assistant's message of words."""
    return {"role": "assistant", "content": content, **members}


@dataclass
class Talk:
    """What was sent in each turn, what was answered, and the episode."""

    bodies: list[dict[str, Any]] = field(default_factory=list)
    answers: list[Decision] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def trajectory(self) -> Trajectory:
        return fold(self.events)

    def messages(self, turn: int) -> list[Message]:
        found: list[Message] = self.bodies[turn]["messages"]
        return found


def talk(
    app: TaskApp,
    said: Sequence[Message | ChatReply] | Callable[[dict[str, Any]], Message | ChatReply],
    *,
    output_mode: Any = "tool_calls",
    policy_config: dict[str, Any] | None = None,
    logprobs: bool = False,
    mode: Any = "eval",
    structured: Any = None,
    **given: Any,
) -> Talk:
    """One episode; it ends by itself, or after the last of `said`. Every body passes the strictest vendor's check."""
    spec = app.freeze()
    request = a_request(None, policy_config=policy_config or {}, mode=mode, **given)
    plan = RequestPlanner(spec, app.file.parent).plan(request, own=NoPolicy())
    if not callable(said):
        plan.max_turns = len(said)
    asking = read_options(
        request.policy.config,
        output_mode=output_mode,
        structured_config=structured,
        record_logprobs=logprobs,
        mode=mode,
    )
    conversation = Conversation(spec, plan.environment, asking)
    episode = Episode(plan, SystemClock())
    events = episode.events()
    told = Talk()
    event = next(events, None)
    while event is not None:
        told.events.append(event)
        if isinstance(event, Called):
            body = conversation.ask(episode.view)
            check(body)
            told.bodies.append(copy.deepcopy(body))
            message = said(body) if callable(said) else said[len(told.answers)]
            reply = message if isinstance(message, ChatReply) else ChatReply(message)
            answer = conversation.read(reply)
            told.answers.append(answer)
            event = events.send(answer)
        else:
            event = next(events, None)
    return told
