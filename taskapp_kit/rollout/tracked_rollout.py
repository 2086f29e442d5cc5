"""One rollout that several may wait for and follow; a plain one belongs to the request that asked for it."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from dataclasses import dataclass, field

from taskapp_kit.contract.protocols import IdempotencyRecord, StoredResult
from taskapp_kit.errors import Failure, RolloutFailed
from taskapp_kit.rollout.event_buffer import EventBuffer


class Subscriber:
    """Somebody waits for a rollout. When the last one leaves, it is cancelled: after `grace_seconds`, unless one comes."""

    def __init__(self, live: TrackedRollout, grace_seconds: float) -> None:
        self._live: TrackedRollout | None = live
        self._grace_seconds = grace_seconds

    def leave(self) -> None:
        """Does not wait any longer. A second call does nothing."""
        live, self._live = self._live, None
        if live is not None:
            live._left(self._grace_seconds)


@dataclass(eq=False)
class EndedRollout:
    """What came of a rollout that is over: one object for all who read it at the same time.

    key_label: of the key that asked for it. lines: its events as JSON, with_events: its answer with them; None until one
    of the readers wants them.
    """

    settled: StoredResult
    key_label: str | None = None
    lines: list[bytes] | None = None
    with_events: bytes | None = None
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)


class TrackedRollout:
    """One rollout as those see it who wait for it.

    rollout_id, key_label: known once it is admitted. created_at: unix seconds. journal: its events. here: this process
    plays it. replayed: it was over before it was asked for. detached: it goes on when nobody waits. shared: the result,
    when it is shared with others who read it.
    """

    def __init__(self, journal: EventBuffer, *, detached: bool = False) -> None:
        self.rollout_id = ""
        self.created_at = 0.0
        self.key_label: str | None = None
        self.journal = journal
        self.here = False
        self.replayed = False
        self.shared: EndedRollout | None = None
        self.detached = detached
        self.task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._admitted = asyncio.Event()
        self._over: asyncio.Future[StoredResult] = self._loop.create_future()
        self._over.add_done_callback(_looked_at)
        self._seats = 0
        self._leaving = False
        self._keeping = False
        self._patience_ends = 0.0
        self._alone: asyncio.TimerHandle | None = None

    # -- for who plays it -----------------------------------------------------------------------------------------

    def admit(self, ticket: IdempotencyRecord) -> None:
        """It has an id, and can be found by it."""
        self.rollout_id, self.created_at, self.key_label = ticket.rollout_id, ticket.created_at, ticket.key_label
        self._admitted.set()

    def keep(self) -> None:
        """It was played to its end, and that is being settled: too late to cancel it."""
        self._keeping = True

    def settle(self, settled: StoredResult) -> None:
        """It is over."""
        if not self._over.done():
            self._over.set_result(settled)
        self._ended()

    def fail(self, error: BaseException) -> None:
        """It is over, and nothing came of it that could be settled."""
        if not self._over.done():
            if isinstance(error, asyncio.CancelledError):  # of its task: those who wait are not cancelled
                error = RolloutFailed(cancellation(), rollout_id=self.rollout_id)
            self._over.set_exception(error)
        self._ended()

    def _ended(self) -> None:
        self._admitted.set()
        self.journal.close()

    # -- for who waits --------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Nothing more will happen."""
        return self._over.done()

    @property
    def answer_bytes(self) -> int:
        """The size of the answer; 0 until there is one."""
        done = self._over.done() and not self._over.cancelled() and self._over.exception() is None
        return len(self._over.result().answer or b"") if done else 0

    @property
    def leaving(self) -> bool:
        """It was cancelled: over, or about to be. Nobody new should join it."""
        return self._leaving

    def attend(self, grace_seconds: float = 0.0) -> Subscriber:
        """A seat; as long as somebody has one the rollout is not cancelled for want of an audience."""
        self._seats += 1
        if self._alone is not None:
            self._alone.cancel()
        return Subscriber(self, grace_seconds)

    async def admitted(self) -> None:
        """Waits until the rollout is under way. Raises what `Service.admit` raises, or IdempotencyKeyReused."""
        await self._admitted.wait()
        if not self.rollout_id:
            await asyncio.shield(self._over)

    async def result(self, seconds: float | None = None) -> StoredResult | None:
        """What came of it; None when that is not known after `seconds`. Raises what broke on the way to be settled."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._over)
        return None

    async def ended(self) -> None:
        """Waits until it is over, whatever came of it."""
        await asyncio.wait((self._over,))

    def cancel(self) -> None:
        """Ends it now."""
        if self.task is not None and not self.over and not self._keeping:
            self._leaving = True
            self.task.cancel()

    def _left(self, grace_seconds: float) -> None:
        """Whoever left last but may come back within a longer grace is waited for too."""
        self._seats -= 1
        now = self._loop.time()
        self._patience_ends = max(self._patience_ends, now + grace_seconds)
        if self._seats == 0 and not self.detached and not self.over:
            if self._patience_ends > now:
                self._alone = self._loop.call_at(self._patience_ends, self._cancel_if_alone)
            else:
                self._cancel_if_alone()

    def _cancel_if_alone(self) -> None:
        if self._seats == 0 and not self.detached:
            self.cancel()


def _looked_at(future: asyncio.Future[StoredResult]) -> None:
    """Whoever waited may have gone; asyncio need not complain of an error that nobody took."""
    if not future.cancelled():
        future.exception()


def cancellation() -> Failure:
    """Of a rollout whose audience has gone."""
    return Failure(
        "cancelled",
        "cancelled",
        "the client went away, or cancelled the rollout, before it ended",
        error_id=uuid.uuid4().hex[:12],
    )
