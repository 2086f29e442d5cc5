"""Admission of rollouts: callers, limits, the health of the store, and the failures that end a rollout from outside."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from taskapp_kit.errors import Failure, Saturated, StoreError, StoreRefusal
from taskapp_kit.net.response import Peer
from taskapp_kit.records.content import Json
from taskapp_kit.records.events import Event
from taskapp_kit.records.protocols import Clock
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.episode.plan import EpisodePlan
from taskapp_kit.wire.chat.conversation import ChatReply, ModelFailed


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that requests a rollout.

    Attributes:
        key_label: The label of the caller's key, never the key itself.
        max_in_flight: The limit on concurrent rollouts with this label, or None for unlimited.
        traceparent: W3C trace context of the request.
        tracestate: W3C trace state of the request.
        admin: Whether the caller may see and cancel the rollouts of every key label.
    """

    key_label: str | None = None
    max_in_flight: int | None = None
    # stored here, because spans are built after the request has ended
    traceparent: str | None = None
    tracestate: str | None = None
    admin: bool = False

    def may_see(self, key_label: str | None) -> bool:
        """Return whether the caller may fetch, cancel, list, replay and compare rollouts of this key label."""
        return self.admin or (self.key_label is not None and self.key_label == key_label)


# an admin, because code in the same process can read everything anyway
ANYONE = Caller(admin=True)
"""The caller for code in the service's process, such as the command line or a test."""


Answers = Callable[[dict[str, Json]], Awaitable[ChatReply | ModelFailed]]
"""Receives a policy's request to its model and returns the reply. Called on the event loop."""
Asked = Callable[["dict[str, Json] | None"], None]
"""Called with the policy's next request, or with None if the policy sends no further request or the turn failed."""


class QuickDriver(Protocol):
    """Runs short turns of an episode without waking the rollout's asyncio task."""

    def quick(self, reply: ChatReply, asked: Asked) -> bool:
        """Run the policy's turn with this reply without waking the rollout's asyncio task, and call `asked` afterwards.

        Returns False if the turn cannot be run this way. If this method returns False or calls `asked` with None, the
        caller must wake the task: the call of `Answers` that the task awaits must return the same reply.
        """
        ...


class EventRecord(Protocol):
    """The growing list of events of a running rollout."""

    def events(self) -> list[Event]:
        """Return the events so far."""
        ...


@dataclass(slots=True)
class RunningRollout:
    """A rollout in flight, from its admission to its end.

    Attributes:
        rollout_id: The rollout's id.
        plan: The validated request.
        caller: The client that requested the rollout.
        created_at: The time of the request in unix seconds.
        began: The time of the request on the service's monotonic clock, in seconds.
        seconds: The deadline, in seconds after `began`.
        own: Whether a policy object in this process replaces the requested policy.
        task: The asyncio task that runs the rollout.
        driver: Runs short turns without waking the asyncio task. None while that is not possible.
        recorded: The rollout's events, or None before the rollout runs.
        settling: Whether the rollout has ended and its result is being stored.
        stopped: The failure with which the server ended the rollout, or None if the server did not end it.
    """

    rollout_id: str
    plan: EpisodePlan
    caller: Caller
    created_at: float
    began: float
    seconds: float
    # a worker process would run the requested policy instead
    own: bool = False
    task: asyncio.Task[object] | None = None
    driver: QuickDriver | None = None
    recorded: EventRecord | None = None
    settling: bool = False
    stopped: Failure | None = None

    def events(self) -> list[Event]:
        """Return the events so far. You can call this at any time, even on the event loop while the rollout's thread hangs."""
        return [] if self.recorded is None else self.recorded.events()


RolloutObserver = Callable[[RunningRollout, Rollout], None]
"""Called on the event loop with each scored, failed or cancelled rollout after it is stored. It must not raise.

Reading the result's numbers is cheap. `events` and `trajectory` may have to decode data from a worker process.
"""


Listener = Callable[[Event], None]
"""Called with each event of a rollout as it happens. It must not raise."""


log = logging.getLogger("taskapp_kit.service")

# Only a restart releases the memory and the capacity that a stuck thread occupies.
HUNG_LIMIT = 8
"""With this many stuck threads the server rejects new rollouts. `/health` reports `draining`, so the server is replaced."""
STOPPING_SECONDS = 5.0
"""How long the server waits until stopped rollouts are stored."""


class AdmissionControl:
    """Counts the rollouts in flight and enforces the limits. Use it on the service's event loop.

    most: the maximum number of rollouts in flight. hung: a function that returns the number of stuck threads.
    """

    def __init__(self, most: int, hung: Callable[[], int]) -> None:
        self.most = most
        self._hung = hung
        self._taken = 0
        self._of_label: Counter[str | None] = Counter()
        # peers that are reading a response, by key label and rollout
        self._unread: dict[str | None, dict[str, set[Peer]]] = {}
        self._running: dict[str, RunningRollout] = {}
        self._closed = False
        self._empty: asyncio.Event | None = None

    @property
    def taken(self) -> int:
        """The number of rollouts in flight."""
        return self._taken

    @property
    def draining(self) -> bool:
        """Whether new rollouts are rejected because the server is stopping or has too many stuck threads."""
        return self._closed or self._hung() >= HUNG_LIMIT

    def check_open(self) -> None:
        """Raise Saturated if the server is stopping."""
        if self._closed:
            message = "The server is stopping and accepts no new rollouts."
            raise Saturated(message, code="draining", retry_after_seconds=5)

    def take(self, caller: Caller) -> None:
        """Count a rollout as in flight. Raises Saturated if the server is draining, or the server or key is at its limit."""
        # checked before the request is planned, so that a flooded server rejects cheaply
        self.check_open()
        if self._hung() >= HUNG_LIMIT:
            raise Saturated(
                f"The server rejects new rollouts because {self._hung()} of its threads are stuck in environments that do not "
                "return. Restart the server.",
                code="draining",
                retry_after_seconds=30,
            )
        if self._taken >= self.most:
            raise Saturated(f"This server is already running {self._taken} rollouts, which is its limit.")
        if caller.max_in_flight is not None and (own := self._own(caller.key_label)) >= caller.max_in_flight:
            raise Saturated(
                f"The key {caller.key_label!r} has reached its limit. Rollouts that are running or have a response that was "
                f"not read yet: {own}.",
                code="key_quota_reached",
            )
        # Planning may wait for the store, so count first: two requests must not both get the last slot.
        self._taken += 1
        self._of_label[caller.key_label] += 1

    def give_back(self, caller: Caller) -> None:
        """Stop counting a rollout as in flight."""
        self._taken -= 1
        self._of_label[caller.key_label] -= 1
        if not self._of_label[caller.key_label]:
            del self._of_label[caller.key_label]
        if not self._taken and self._empty is not None:
            self._empty.set()

    @contextmanager
    def unread(self, key_label: str | None, rollout_id: str, peer: Peer) -> Iterator[None]:
        """Count a rollout towards its key's limit while its response is being read. Several readers of a response count once.

        The count ends when one reader has received the whole response, so a client that reconnects need not wait until
        the server notices the lost connection.
        """
        if not rollout_id:
            yield
            return
        own = self._unread.setdefault(key_label, {})
        readers = own.setdefault(rollout_id, set())
        readers.add(peer)
        try:
            yield
            # one reader has received the whole response, so the others no longer count
            if not peer.gone:
                readers.clear()
        finally:
            readers.discard(peer)
            if not readers and own.get(rollout_id) is readers:
                del own[rollout_id]
            if not own and self._unread.get(key_label) is own:
                del self._unread[key_label]

    def _own(self, key_label: str | None) -> int:
        unread = self._unread.get(key_label, ())
        return self._of_label[key_label] + sum(rollout_id not in self._running for rollout_id in unread)

    def running(self) -> list[RunningRollout]:
        """Return the running rollouts in the order in which they started."""
        return list(self._running.values())

    def enter(self, rollout: RunningRollout) -> None:
        """Register the rollout as running in the current asyncio task."""
        rollout.task = asyncio.current_task()
        self._running[rollout.rollout_id] = rollout

    def leave(self, rollout: RunningRollout) -> None:
        """Remove a rollout that has ended."""
        del self._running[rollout.rollout_id]
        rollout.task = None  # a failed task refers to its exception, whose traceback refers to the rollout
        self.give_back(rollout.caller)

    async def drain(self, grace_seconds: float) -> None:
        """Reject new rollouts and wait for running rollouts. After the grace period, cancel and store the rest."""
        # uvicorn serves until this returns, so trainers get the code `draining` instead of a refused connection
        self._closed = True
        if self._empty is None:
            self._empty = asyncio.Event()
        if not self._taken:
            return
        log.info("draining in_flight=%d grace_seconds=%g", self._taken, grace_seconds)
        if await _within(self._empty, grace_seconds):
            return
        # a rollout that is being stored has ended, so it is not cancelled
        stopped = [rollout for rollout in self._running.values() if not rollout.settling and rollout.stopped is None]
        for rollout in stopped:
            message = f"the server stopped, after a grace period of {grace_seconds:g} s, before the rollout ended"
            rollout.stopped = with_id(Failure("cancelled", "server_stopping", message, "Send the request again."))
            if rollout.task is not None:
                rollout.task.cancel()
        log.warning("stopped rollouts=%d grace_seconds=%g", len(stopped), grace_seconds)
        if not await _within(self._empty, STOPPING_SECONDS):
            log.error("still running in_flight=%d", self._taken)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def with_id(failure: Failure) -> Failure:
    """Return the failure with a new error id."""
    failure.error_id = uuid.uuid4().hex[:12]
    return failure


def cancelled() -> Failure:
    """Return the failure of a rollout that a client cancelled, or whose client disconnected."""
    message = "the client disconnected or cancelled the rollout before it ended"
    return with_id(Failure("cancelled", "cancelled", message))


def overdue(seconds: float, *, played: bool) -> Failure:
    """Return the failure of a rollout whose thread did not return before the deadline.

    played: whether the episode had ended, so that scoring or encoding exceeded the deadline.
    """
    if played:
        message = f"the episode ended, but it was not scored and encoded within the rollout's deadline of {seconds:g} s"
        return _logged(Failure("timeout", "deadline", message, "Increase safety.max_time_s."))
    message = f"the environment did not return within the rollout's deadline of {seconds:g} s and blocks its thread"
    return _logged(Failure("timeout", "environment_hung", message, "Add timeouts to the environment's blocking calls."))


def no_thread(seconds: float) -> Failure:
    """Return the failure of a rollout for which no thread became free."""
    message = f"no thread became free within the rollout's deadline of {seconds:g} s, so the episode did not begin"
    return _logged(Failure("timeout", "no_thread", message, "Send fewer rollouts at once, or raise safety.max_time_s."))


def thread_blocked() -> Failure:
    """Return the failure of a rollout whose shared thread is blocked by another rollout."""
    message = "the environment of another rollout blocked the thread that both rollouts shared"
    hint = 'Send the request again. Add timeouts to the environment\'s blocking calls, or set isolation="process".'
    return _logged(Failure("timeout", "thread_blocked", message, hint))


def _logged(failure: Failure) -> Failure:
    with_id(failure)
    log.error("%s (error_id %s)", failure.message, failure.error_id)
    return failure


store_log = logging.getLogger("taskapp_kit.store")

PROBE_SECONDS = 2.0
"""The pause between two retries of a failed write, and the value of `Retry-After`."""

T = TypeVar("T")
Write = Callable[[], Awaitable[Any]]


class StoreState:
    """Tracks whether writes to the store succeed. Use it on one event loop, and close it before the store.

    A rollout takes minutes and costs model calls, and its client gets an error if the rollout cannot be stored. After a
    failed write, new rollouts are therefore rejected before they run. Every PROBE_SECONDS, the same write is retried: on a
    full disk, a smaller write may succeed although a rollout cannot be stored. A retry may store a rollout whose client has
    already received `store_failed`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing_since: float | None = None
        self._failures = 0
        self._again: Write | None = None
        self._probing: asyncio.Task[None] | None = None

    @property
    def failing(self) -> bool:
        """Whether the last write failed."""
        return self._failing_since is not None

    def to_json(self) -> dict[str, Json]:
        """Return the fields for `/health`: `failing`, `since` (Unix seconds, or null) and the number of failed writes."""
        return {"failing": self.failing, "since": self._failing_since, "failures": self._failures}

    def check(self) -> None:
        """Raise Saturated if the last write failed."""
        if self.failing:
            raise Saturated(
                "The rollout did not run because the store is failing. The server's log reports the cause.",
                code="store_failing",
                retry_after_seconds=round(PROBE_SECONDS),
            )

    async def write(self, write: Callable[[], Awaitable[T]], *, again: Write | None = None) -> T:
        """Call `write` and return its result. After a StoreError, retry `again` (by default `write`) in the background.

        A StoreRefusal concerns one rollout and does not count as a failure of the store. Raises the errors of `write`.
        """
        try:
            result = await write()
        # the rollout is at fault, not the store, so other rollouts still run
        except StoreRefusal:
            raise
        except StoreError as error:
            self._failed(error, again or write)
            raise
        self._succeeded()
        return result

    async def close(self) -> None:
        """Stop retrying the failed write."""
        probing, self._probing = self._probing, None
        if probing is not None:
            probing.cancel()
            with suppress(asyncio.CancelledError):
                await probing

    def _failed(self, error: StoreError, again: Write) -> None:
        self._failures += 1
        self._again = again
        if not self.failing:
            self._failing_since = self._clock.now()
            store_log.error("the store is failing; new rollouts are rejected until a write succeeds: %s", error)
        # The server must retry by itself: while it rejects rollouts, no other write shows that the store works again.
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe(), name="taskapp-store-probe")

    def _succeeded(self) -> None:
        if self.failing:
            store_log.warning("the store works again failed_writes=%d", self._failures)
        self._failing_since = self._again = None

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            if self._again is None:
                return
            try:
                await self._again()
            except StoreRefusal:  # the store works and refuses only this rollout
                pass
            except StoreError as error:
                self._failures += 1
                store_log.debug("the store is still failing: %s", error)
                continue
            except Exception:  # an error of a store plugin
                self._failures += 1
                store_log.exception("the store is still failing")
                continue
            self._succeeded()
            return
