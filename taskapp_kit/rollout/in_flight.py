"""A rollout in flight: its caller, its plan, and its observers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from taskapp_kit.errors import Failure
from taskapp_kit.records.content import Json
from taskapp_kit.records.events import Event
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.episode.plan import EpisodePlan
from taskapp_kit.wire.chat.conversation import ChatReply, ModelFailed


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller that requests a rollout.

    key_label: of the key that was used, never the key. max_in_flight: the limit on rollouts in flight under this label,
    None without one. traceparent, tracestate: W3C trace context of the request. admin: may see and cancel the rollouts of
    every key label, not only of its own.
    """

    key_label: str | None = None
    max_in_flight: int | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    admin: bool = False

    def may_see(self, key_label: str | None) -> bool:
        """Whether the caller may fetch, cancel, list, replay and compare rollouts of this key label."""
        return self.admin or (self.key_label is not None and self.key_label == key_label)


ANYONE = Caller(admin=True)
"""The caller of a service in the same process: the command line, a test."""


Answers = Callable[[dict[str, Json]], Awaitable[ChatReply | ModelFailed]]
"""Receives what a policy asks and returns the reply. On the event loop."""
Asked = Callable[["dict[str, Json] | None"], None]
"""Called with what the policy asks next; None when it asks nothing more, or the turn failed."""


class QuickDriver(Protocol):
    """Drives an episode in which short turns need not wait for the event loop."""

    def quick(self, reply: ChatReply, asked: Asked) -> bool:
        """Goes on with a reply, without the rollout's task, and returns True; False: this one cannot.

        After None was asked, and after False, `Answers` has to return the same reply, so that the task goes on.
        """
        ...


class EventRecord(Protocol):
    """The events of a rollout, which are added to while it is played."""

    def events(self) -> list[Event]:
        """Returns those until now."""
        ...


@dataclass(slots=True)
class InFlightRollout:
    """One rollout, from its admission to its end.

    own: a policy in this process replaces the named one. created_at: unix seconds. began: on the service's monotonic clock.
    seconds: its deadline, counted from `began`. driver: set while the policy may be asked and short turns need not wait for
    the event loop. settling: it was played, and its result is being stored. stopped: why the server ended it, if it did.
    recorded: its events; None before it runs.
    """

    rollout_id: str
    plan: EpisodePlan
    caller: Caller
    created_at: float
    began: float
    seconds: float
    own: bool = False
    task: asyncio.Task[object] | None = None
    driver: QuickDriver | None = None
    recorded: EventRecord | None = None
    settling: bool = False
    stopped: Failure | None = None

    def events(self) -> list[Event]:
        """The events until now."""
        return [] if self.recorded is None else self.recorded.events()


RolloutObserver = Callable[[InFlightRollout, Rollout], None]
"""Called with each rollout that has ended and is stored: scored, failed or cancelled. On the event loop; must not raise.

Reading the result's numbers is cheap; `events` and `trajectory` may decode data from a worker process.
"""


Listener = Callable[[Event], None]
"""Called with each event of a rollout as it happens; must not raise."""
