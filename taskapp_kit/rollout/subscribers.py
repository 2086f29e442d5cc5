"""A rollout and its subscribers, which wait for or follow it. A rollout without subscribers is cancelled unless detached."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from taskapp_kit.errors import RolloutFailed, Saturated
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import IdempotencyRecord, StoredResult
from taskapp_kit.rollout.admission import cancelled
from taskapp_kit.rollout.event_buffer import EventBuffer

MAX_SUBSCRIBERS = 256
"""The maximum number of requests that wait for or follow a rollout, so that one key cannot occupy all connections."""


class Subscriber:
    """A client that waits for a rollout.

    When the last subscriber leaves, the rollout is cancelled after `grace_seconds`, unless another client subscribes.
    """

    def __init__(self, shared: SharedRollout, grace_seconds: float) -> None:
        self._shared: SharedRollout | None = shared
        self._grace_seconds = grace_seconds

    def leave(self) -> None:
        """End the subscription. A second call does nothing."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared._left(self._grace_seconds)


@dataclass(eq=False)
class EndedRollout:
    """The result of an ended rollout. Concurrent readers share one object.

    key_label: the label of the key that requested the rollout. lines: the events as JSON. calls: the calls of judges and
    auxiliary models, as `details.model_calls` returns them. with_events: the response with the events. lines, calls and
    with_events are None until a reader requests them.
    """

    settled: StoredResult
    key_label: str | None = None
    lines: list[bytes] | None = None
    calls: dict[str, Json] | None = None
    with_events: bytes | None = None
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)


class SharedRollout:
    """A rollout with its events, result and subscribers.

    rollout_id, key_label: set when the rollout is admitted. created_at: unix seconds. is_local: whether this process runs the
    rollout. replayed: whether the rollout had ended before this request. detached: whether the rollout continues without
    subscribers. ended_result: if `replayed`, the result, which concurrent readers share.
    """

    def __init__(self, event_buffer: EventBuffer, *, detached: bool = False) -> None:
        self.rollout_id = ""
        self.created_at = 0.0
        self.key_label: str | None = None
        self.event_buffer = event_buffer
        self.is_local = False
        self.replayed = False
        self.ended_result: EndedRollout | None = None
        self.detached = detached
        self.task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._admitted = asyncio.Event()
        self._over: asyncio.Future[StoredResult] = self._loop.create_future()
        self._over.add_done_callback(_retrieve)
        self._subscribers = 0
        self._cancelled = False
        self._settling = False
        self._grace_ends = 0.0
        self._cancel_timer: asyncio.TimerHandle | None = None

    # -- for the task that plays it -------------------------------------------------------------------------------

    def admit(self, record: IdempotencyRecord) -> None:
        """Set the rollout's id, with which it can be found from now on."""
        self.rollout_id, self.created_at, self.key_label = record.rollout_id, record.created_at, record.key_label
        self._admitted.set()

    def begin_settling(self) -> None:
        """Mark the rollout as being stored, so that it can no longer be cancelled."""
        self._settling = True

    def settle(self, settled: StoredResult) -> None:
        """End the rollout with a result."""
        if not self._over.done():
            self._over.set_result(settled)
        self._ended()

    def fail(self, error: BaseException) -> None:
        """End the rollout with an error and without a result."""
        if not self._over.done():
            if isinstance(error, asyncio.CancelledError):  # the rollout's task was cancelled, not its subscribers
                error = RolloutFailed(cancelled(), rollout_id=self.rollout_id)
            self._over.set_exception(error)
        self._ended()

    def _ended(self) -> None:
        self._admitted.set()
        self.event_buffer.close()

    # -- for subscribers ------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the rollout has ended."""
        return self._over.done()

    @property
    def answer_bytes(self) -> int:
        """The size of the response in bytes, or 0 if the rollout has no response yet."""
        done = self._over.done() and not self._over.cancelled() and self._over.exception() is None
        return len(self._over.result().answer or b"") if done else 0

    @property
    def cancelled(self) -> bool:
        """Whether the rollout was cancelled, even if it has not ended yet. New requests must not join it."""
        return self._cancelled

    def subscribe(self, grace_seconds: float = 0.0) -> Subscriber:
        """Add a subscriber, which prevents the rollout's cancellation. Raises Saturated if there are already MAX_SUBSCRIBERS."""
        if self._subscribers >= MAX_SUBSCRIBERS:
            message = f"This rollout has reached its limit of {MAX_SUBSCRIBERS} waiting or following requests."
            raise Saturated(message, code="key_quota_reached")
        self._subscribers += 1
        if self._cancel_timer is not None:
            self._cancel_timer.cancel()
        return Subscriber(self, grace_seconds)

    async def admitted(self) -> None:
        """Wait until the rollout is admitted. Raises the errors of `Service.admit`, and IdempotencyKeyReused."""
        await self._admitted.wait()
        if not self.rollout_id:
            await asyncio.shield(self._over)

    async def result(self, seconds: float | None = None) -> StoredResult | None:
        """Wait for the result. Return None after `seconds`. If the rollout ended without a result, raise its error."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._over)
        return None

    async def ended(self) -> None:
        """Wait until the rollout has ended, with or without a result."""
        await asyncio.wait((self._over,))

    def cancel(self) -> None:
        """Cancel the rollout, unless its result is already being stored."""
        if self.task is not None and not self.over and not self._settling:
            self._cancelled = True
            self.task.cancel()

    def _left(self, grace_seconds: float) -> None:
        """Remove a subscriber. The longest grace period of all former subscribers applies."""
        self._subscribers -= 1
        now = self._loop.time()
        # the longest grace period, because a patient client may reconnect although an impatient client left later
        self._grace_ends = max(self._grace_ends, now + grace_seconds)
        if self._subscribers == 0 and not self.detached and not self.over:
            if self._grace_ends > now:
                self._cancel_timer = self._loop.call_at(self._grace_ends, self._cancel_if_unsubscribed)
            else:
                self._cancel_if_unsubscribed()

    def _cancel_if_unsubscribed(self) -> None:
        if self._subscribers == 0 and not self.detached:
            self.cancel()


def _retrieve(future: asyncio.Future[StoredResult]) -> None:
    """Retrieve the error, because asyncio logs errors that are never retrieved."""
    if not future.cancelled():
        future.exception()
