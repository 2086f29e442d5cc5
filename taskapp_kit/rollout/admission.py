"""Rollouts in flight: who requests one, which are admitted, and the failures of those that do not end by themselves."""

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
    """The caller that requests a rollout.

    key_label: of the key that was used, never the key. max_in_flight: the limit on rollouts in flight under this label,
    None without one. traceparent, tracestate: W3C trace context of the request. admin: may see and cancel the rollouts of
    every key label, not only of its own.
    """

    key_label: str | None = None
    max_in_flight: int | None = None
    # Kept with the caller, since the spans are built after the request has gone.
    traceparent: str | None = None
    tracestate: str | None = None
    admin: bool = False

    def may_see(self, key_label: str | None) -> bool:
        """Whether the caller may fetch, cancel, list, replay and compare rollouts of this key label."""
        return self.admin or (self.key_label is not None and self.key_label == key_label)


# In the same process there is nobody to protect the rollouts from.
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
class RunningRollout:
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
    # A worker process would play the policy that the request names instead.
    own: bool = False
    task: asyncio.Task[object] | None = None
    driver: QuickDriver | None = None
    recorded: EventRecord | None = None
    settling: bool = False
    stopped: Failure | None = None

    def events(self) -> list[Event]:
        """The events until now."""
        # Read while it is played, also from the event loop while its thread hangs.
        return [] if self.recorded is None else self.recorded.events()


RolloutObserver = Callable[[RunningRollout, Rollout], None]
"""Called with each rollout that has ended and is stored: scored, failed or cancelled. On the event loop; must not raise.

Reading the result's numbers is cheap; `events` and `trajectory` may decode data from a worker process.
"""


Listener = Callable[[Event], None]
"""Called with each event of a rollout as it happens; must not raise."""


log = logging.getLogger("taskapp_kit.service")

# A stuck thread holds memory and a place for ever; only a new process gets rid of them.
HUNG_LIMIT = 8
"""At this number of stuck threads the server accepts nothing new: `/health` reports `draining`, so that it is replaced."""
STOPPING_SECONDS = 5.0
"""The time that stopped rollouts have to be stored."""


class AdmissionControl:
    """Counts the rollouts in flight and enforces the limits. Use it on the service's event loop.

    most: the limit on rollouts in flight. hung: returns the current number of stuck threads.
    """

    def __init__(self, most: int, hung: Callable[[], int]) -> None:
        self.most = most
        self._hung = hung
        self._taken = 0
        self._of_label: Counter[str | None] = Counter()
        self._unread: dict[
            str | None, dict[str, set[Peer]]
        ] = {}  # peers that receive an answer, by key label and rollout
        self._under_way: dict[str, RunningRollout] = {}
        self._closed = False
        self._empty: asyncio.Event | None = None

    @property
    def taken(self) -> int:
        """Rollouts in flight."""
        return self._taken

    @property
    def draining(self) -> bool:
        """Whether new rollouts are refused because the server stops or has too many stuck threads."""
        return self._closed or self._hung() >= HUNG_LIMIT

    def check_open(self) -> None:
        """Raises Saturated when the server stops."""
        if self._closed:
            raise Saturated(
                "The server is stopping and accepts no new rollouts.", code="draining", retry_after_seconds=5
            )

    def take(self, caller: Caller) -> None:
        """Counts a rollout as in flight. Raises Saturated when the server or the caller's key has reached its limit."""
        # Before anything is planned: a refusal has to be cheap when a server is flooded.
        self.check_open()
        if self._hung() >= HUNG_LIMIT:
            raise Saturated(
                f"{self._hung()} threads are stuck in environments that do not return; the server must be restarted and "
                "accepts no new rollouts until then.",
                code="draining",
                retry_after_seconds=30,
            )
        if self._taken >= self.most:
            raise Saturated(f"{self._taken} rollouts are under way, the limit of this server.")
        if caller.max_in_flight is not None and (own := self._own(caller.key_label)) >= caller.max_in_flight:
            raise Saturated(
                f"{own} rollouts of the key {caller.key_label!r} are under way or have answers that are not read yet, "
                "the limit of this key.",
                code="key_quota_reached",
            )
        # Before the request is planned, which may wait for the store: two requests cannot both take the last place.
        self._taken += 1
        self._of_label[caller.key_label] += 1

    def give_back(self, caller: Caller) -> None:
        """Ends the count of a rollout as in flight."""
        self._taken -= 1
        self._of_label[caller.key_label] -= 1
        if not self._of_label[caller.key_label]:
            del self._of_label[caller.key_label]
        if not self._taken and self._empty is not None:
            self._empty.set()

    @contextmanager
    def unread(self, key_label: str | None, rollout_id: str, peer: Peer) -> Iterator[None]:
        """Counts a rollout as under way for the key that reads its answer, once for any number of readers.

        The count ends when one of the readers has the whole answer, so that a caller who reconnects need not wait until the
        server notices the lost connection.
        """
        if not rollout_id:
            yield
            return
        own = self._unread.setdefault(key_label, {})
        readers = own.setdefault(rollout_id, set())
        readers.add(peer)
        try:
            yield
            # The whole answer was sent, so the key's limit is free, whoever else still reads.
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
        return self._of_label[key_label] + sum(rollout_id not in self._under_way for rollout_id in unread)

    def under_way(self) -> list[RunningRollout]:
        """The rollouts that are running, in the order in which they began."""
        return list(self._under_way.values())

    def enter(self, rollout: RunningRollout) -> None:
        """Registers the rollout, which runs in the current task."""
        rollout.task = asyncio.current_task()
        self._under_way[rollout.rollout_id] = rollout

    def leave(self, rollout: RunningRollout) -> None:
        """Removes a rollout that has ended."""
        del self._under_way[rollout.rollout_id]
        rollout.task = None  # which has the exception of one that failed, whose traceback has the rollout
        self.give_back(rollout.caller)

    async def drain(self, grace_seconds: float) -> None:
        """Refuses new rollouts and waits for running ones. After the grace the rest is cancelled, and stored as cancelled."""
        # Closed first, answered throughout: uvicorn keeps serving until this returns, and a trainer reads `draining`
        # instead of a refused connection.
        self._closed = True
        if self._empty is None:
            self._empty = asyncio.Event()
        if not self._taken:
            return
        log.info("draining in_flight=%d grace_seconds=%g", self._taken, grace_seconds)
        if await _within(self._empty, grace_seconds):
            return
        # What is being stored is finished instead: it was played to its end.
        stopped = [rollout for rollout in self._under_way.values() if not rollout.settling and rollout.stopped is None]
        for rollout in stopped:
            message = f"the server stopped, and the rollout had not ended within its grace of {grace_seconds:g} s"
            rollout.stopped = with_id(Failure("cancelled", "server_stopping", message, "Send it again."))
            if rollout.task is not None:
                rollout.task.cancel()
        log.warning("stopped rollouts=%d grace_seconds=%g", len(stopped), grace_seconds)
        if not await _within(self._empty, STOPPING_SECONDS):
            log.error("still under way in_flight=%d", self._taken)


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
    """Return the failure of a rollout that a client cancelled, or that no client waits for."""
    message = "the client went away, or cancelled the rollout, before it ended"
    return with_id(Failure("cancelled", "cancelled", message))


def overdue(seconds: float, *, played: bool) -> Failure:
    """Return the failure of a thread that did not return in time. Its events so far are stored, the rest is lost.

    played: the episode is over, and scoring or writing it takes long.
    """
    if played:
        message = (
            f"the rollout reached its deadline of {seconds:g} s after its episode, before it was scored and written"
        )
        return _logged(Failure("timeout", "deadline", message, "Give safety.max_time_s more seconds."))
    message = f"the environment did not come back within the rollout's deadline of {seconds:g} s; its thread is stuck"
    return _logged(Failure("timeout", "environment_hung", message, "Give the environment's own calls a time limit."))


def no_thread(seconds: float) -> Failure:
    """Return the failure of a rollout for which no thread became free."""
    message = f"no thread came free within the rollout's deadline of {seconds:g} s, so the episode never began"
    return _logged(Failure("timeout", "no_thread", message, "Send fewer rollouts at once, or give them more time."))


def thread_blocked() -> Failure:
    """Return the failure of a rollout whose thread another rollout blocks."""
    message = "the environment of another rollout blocked the thread that this rollout shared with it"
    hint = 'Send it again. Give the environment\'s own calls a time limit, or declare isolation="process".'
    return _logged(Failure("timeout", "thread_blocked", message, hint))


def _logged(failure: Failure) -> Failure:
    with_id(failure)
    log.error("%s (error_id %s)", failure.message, failure.error_id)
    return failure


store_log = logging.getLogger("taskapp_kit.store")

PROBE_SECONDS = 2.0
"""The pause between two attempts to write again; also the value of `Retry-After`."""

T = TypeVar("T")
Write = Callable[[], Awaitable[Any]]


class StoreState:
    """The state of one store by the results of its writes. Use it on one event loop; call `close` before the store's."""

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
        """For `/health`: failing; since when, in unix seconds, else null; the number of failed writes since the start."""
        return {"failing": self.failing, "since": self._failing_since, "failures": self._failures}

    def check(self) -> None:
        """Raises Saturated while the last write failed."""
        if self.failing:
            raise Saturated(
                "The store cannot store rollouts now, so nothing was played; the server's log says why.",
                code="store_failing",
                retry_after_seconds=round(PROBE_SECONDS),
            )

    async def write(self, write: Callable[[], Awaitable[T]], *, again: Write | None = None) -> T:
        """Calls `write` and returns its result. After a StoreError, `again` (by default `write`) is retried in the background.

        A StoreRefusal concerns one rollout and does not mean that the store fails. Raises what `write` raises.
        """
        try:
            result = await write()
        # The rollout is at fault and not the store, so others are still played.
        except StoreRefusal:
            raise
        except StoreError as error:
            self._failed(error, again or write)
            raise
        self._succeeded()
        return result

    async def close(self) -> None:
        """Stops the attempts to write again."""
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
            store_log.error("store failing, new rollouts are refused until a write succeeds: %s", error)
        # Written again by the server itself: while it refuses rollouts, none would find out that the store works.
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe(), name="taskapp-store-probe")

    def _succeeded(self) -> None:
        if self.failing:
            store_log.warning("store works again failed_writes=%d", self._failures)
        self._failing_since = self._again = None

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            if self._again is None:
                return
            try:
                await self._again()
            except StoreRefusal:  # the store works; it refuses this rollout only
                pass
            except StoreError as error:
                self._failures += 1
                store_log.debug("store still failing: %s", error)
                continue
            except Exception:  # an error of a store plugin
                self._failures += 1
                store_log.exception("store still failing")
                continue
            self._succeeded()
            return
