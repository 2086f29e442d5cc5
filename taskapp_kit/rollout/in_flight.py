"""A rollout in flight: who requested it, its plan, and who follows it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from taskapp_kit.contract.chat import Endpoint
from taskapp_kit.contract.events import Event
from taskapp_kit.contract.result import RolloutResult
from taskapp_kit.contract.trajectory import Recording
from taskapp_kit.errors import Failure
from taskapp_kit.rollout.episode.plan import EpisodePlan

Finished = RolloutResult
"""The name under which docs/observability.md imported it from here until 2026-11-22."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who requests a rollout.

    key_label: of the key that was used, never the key. max_in_flight: so many rollouts under this label at once, None
    without such a bound. traceparent, tracestate: W3C trace context that came with the request. admin: may see and
    cancel the rollouts of every key label, not only of its own.
    """

    key_label: str | None = None
    max_in_flight: int | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    admin: bool = False

    def may_see(self, key_label: str | None) -> bool:
        """Whether a rollout of this key label is theirs to fetch, cancel, list, replay and compare."""
        return self.admin or (self.key_label is not None and self.key_label == key_label)


ANYONE = Caller(admin=True)
"""Who calls the service in its own process: the command line, a test."""


@dataclass(slots=True)
class InFlightRollout:
    """One rollout, from its admission to its end.

    recording: what a replay plays. endpoint: of the model that decides, None where none does. own: a policy in this
    process acts in place of the named one. created_at: unix seconds. began: on the service's monotonic clock. seconds:
    its deadline, counted from there. settling: it was played, and its result is being stored. stopped: why the server
    ended it, when it did.
    """

    rollout_id: str
    plan: EpisodePlan
    caller: Caller
    created_at: float
    began: float
    seconds: float
    recording: Recording | None = None
    endpoint: Endpoint | None = None
    own: bool = False
    task: asyncio.Task[object] | None = None
    settling: bool = False
    stopped: Failure | None = None


RolloutObserver = Callable[[InFlightRollout, RolloutResult], None]
"""Is called with each rollout when it is over and stored: scored, failed or cancelled. On the event loop; must not raise.

The result's numbers cost nothing; `events` and `trajectory` may decode what a worker process sent.
"""


Listener = Callable[[Event], None]
"""Is called with each event of a rollout as it happens; must not raise."""
