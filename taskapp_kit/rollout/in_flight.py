"""A rollout in flight: who requested it, its plan, its result, and who listens meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from taskapp_kit.contract.chat import Endpoint
from taskapp_kit.contract.events import Event
from taskapp_kit.contract.protocols import StoredRollout
from taskapp_kit.contract.result import Story
from taskapp_kit.contract.trajectory import Recording
from taskapp_kit.errors import Failure
from taskapp_kit.rollout.outcome import Outcome
from taskapp_kit.rollout.request import PlannedRollout


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks for a rollout.

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
    its deadline, counted from there. stopped: why the server ended it, when it did.
    """

    rollout_id: str
    planned: PlannedRollout
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


@dataclass(slots=True)
class Finished:
    """What came of a rollout: played, given up or cancelled.

    timing: seconds in environment, policy, scoring, framework and in all (`total`). row: as the store keeps it, None
    without a store. pictures: PNG bytes by hash. cause: the exception behind a failure. body: the answer, when it was
    written where the rollout was played.
    """

    outcome: Outcome
    story: Story
    timing: dict[str, float]
    row: StoredRollout | None = None
    pictures: dict[str, bytes] = field(default_factory=dict)
    cause: BaseException | None = None
    body: bytes | None = None


RolloutObserver = Callable[[InFlightRollout, Finished], None]
"""Is given each rollout when it is over and kept: scored, failed or cancelled. On the event loop; must not raise.

`Finished.outcome` has its numbers at no cost; looking into `story` may decode what a worker process sent.
"""


Listener = Callable[[Event], None]
"""Is given each event of a rollout as it happens; must not raise."""


class ListenerGate:
    """Who listens to a thread that plays. One that was abandoned and goes on talking is no longer heard."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._heard = 0
        self._closed = False

    def __call__(self, event: Event) -> None:
        """Passes on one event; called in the thread that plays."""
        with self._lock:
            if not self._closed:
                self._heard += 1
                self._listener(event)

    def close(self) -> None:
        """From now on nothing is heard of who plays."""
        with self._lock:
            self._closed = True

    def rest(self, events: Sequence[Event]) -> None:
        """The rollout ended otherwise than by playing: passes on what of its whole story was not heard yet."""
        for event in events[self._heard :]:
            self._listener(event)
        self._heard = len(events)
