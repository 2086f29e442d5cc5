"""The replicas of one service and the calls to them, on the event loop of services. `service.py` defines the handle.

`route` makes one call on a ready replica. If that replica ends, the call is repeated on another replica if the method
is idempotent. `fanout` makes one call on every ready replica concurrently. A session uses one replica as long as the
session is open. A replica that ends is restarted. Before it is ready again, it executes the last
fanouts that set the replicas' state.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from taskapp_kit.errors import CallTimeout, EndpointRaised, ReplicaDied, ReplicaStartFailed, Saturated, ServiceError
from taskapp_kit.services.endpoints import EndpointMark
from taskapp_kit.services.replicas import (
    Backend,
    HasEnded,
    Operation,
    ReplicaHandle,
    ReplicaSpec,
    ReplicaState,
    ReplicaStats,
    ServiceStats,
)

log = logging.getLogger("taskapp_kit.services")

RESTART_SECONDS = (0.0, 0.1, 0.5, 5.0, 15.0, 60.0)
"""Seconds before a replica is restarted, by its number of failed starts. The last value applies to all later starts."""
START_TRIES = 3
"""Once every replica has failed to start this often, calls are rejected instead of waiting."""
MEASURED = 1000
"""How many of the most recent calls count in the latencies of `stats`."""
RETRY_AFTER_SECONDS = 1

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class ReplicaSlot:
    """A replica's position in its service. `handle` is the replica's current process."""

    index: int
    handle: ReplicaHandle | None = None
    state: ReplicaState = "starting"
    in_flight: int = 0
    sessions: int = 0
    calls: int = 0
    failures: int = 0
    restarts: int = 0
    failed_starts: int = 0
    state_calls: dict[str, bytes] = field(default_factory=dict)
    """The endpoints with `on_restart` that the current process has executed, with the encoded arguments."""


class Dispatcher:
    """The state of a service, used only on the event loop of services."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        spec: ReplicaSpec,
        endpoints: Mapping[str, EndpointMark],
        make: Callable[[int, HasEnded], ReplicaHandle],
    ) -> None:
        self.name = name
        self.backend = backend
        self.endpoints = endpoints
        self.stateful = spec.stateful
        self.options = spec.options
        self.slots = [ReplicaSlot(index) for index in range(spec.options.num_replicas)]
        self._make = make
        self._starting: asyncio.Task[None] | None = None
        self._started = False
        self.closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._state_calls: dict[str, bytes] = {}
        self._last_failure = ""
        self._numbers = itertools.count(1)
        self.retried = 0
        self._latencies: deque[float] = deque(maxlen=MEASURED)

    # -- start and end ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all replicas, or wait for a start in progress. If a replica fails, stop all and raise ReplicaStartFailed."""
        if self.closed:
            raise ServiceError(f"The service {self.name} is closed.", hint="Create a new service with as_service().")
        if self._started:
            return
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start_all())
        starting = self._starting
        await asyncio.wait((starting,))  # the start continues if its caller is cancelled
        if starting.cancelled():
            raise ServiceError(f"The service {self.name} was closed while it was starting.")
        starting.result()

    async def _start_all(self) -> None:
        outcomes = await asyncio.gather(*(self._begin(slot) for slot in self.slots), return_exceptions=True)
        failed = next((each for each in outcomes if isinstance(each, BaseException)), None)
        if failed is not None:
            await self._end_all()
            self._starting = None  # the next call starts the replicas again
            log.error("service %s cannot be started: %s", self.name, failed)
            raise failed
        self._started = True
        self._wake()

    async def aclose(self) -> None:
        """End every replica. Running calls raise ReplicaDied, and waiting calls raise ServiceError."""
        self.closed, self._started = True, False
        tasks = {*self._tasks, *({self._starting} if self._starting is not None else ())}
        for task in tasks:
            task.cancel()
        self._wake()
        if tasks:
            await asyncio.wait(tasks)
        await self._end_all()

    async def _end_all(self) -> None:
        handles = [slot.handle for slot in self.slots if slot.handle is not None]
        for slot in self.slots:
            slot.state, slot.handle = "ended", None
        await asyncio.gather(*(handle.end() for handle in handles), return_exceptions=True)

    async def _begin(self, slot: ReplicaSlot) -> None:
        """Start the slot's process, and repeat the calls that set a replica's state. Raises ReplicaStartFailed on failure."""

        def has_ended(reason: str) -> None:
            if slot.handle is handle:
                self._ended(slot, reason)

        slot.state = "starting"
        slot.handle = handle = self._make(slot.index, has_ended)
        slot.state_calls = {}
        slot.sessions = 0
        await handle.start()
        try:
            while missing := {k: v for k, v in self._state_calls.items() if slot.state_calls.get(k) != v}:
                for name, data in missing.items():  # no await between the last check and `ready`
                    await self._send(slot, "call", name, "", data, lambda: None)
                    slot.state_calls[name] = data
        except ServiceError as error:
            handle.kill()
            raise ReplicaStartFailed(
                f"A replica of {self.name} started, but restoring its state failed: {error}"
            ) from error
        slot.failed_starts = 0
        slot.state = "ready"

    def _ended(self, slot: ReplicaSlot, reason: str) -> None:
        """Handle the end of a process that was ready. If a process ends earlier, the code that starts it handles its end."""
        if self.closed or slot.state != "ready":
            return
        log.warning("service %s: replica %d ended (%s) and will be restarted", self.name, slot.index, reason)
        slot.state = "ended"
        self._background(self._restart(slot))

    async def _restart(self, slot: ReplicaSlot) -> None:
        while True:
            await asyncio.sleep(RESTART_SECONDS[min(slot.failed_starts, len(RESTART_SECONDS) - 1)])
            try:
                await self._begin(slot)
            except Exception as error:
                slot.state = "ended"
                slot.failed_starts += 1
                self._last_failure = str(error)
                log.error("service %s: replica %d: %s", self.name, slot.index, error)
                self._wake()  # waiting calls may now have to be rejected
            else:
                slot.restarts += 1
                self._wake()
                return

    # -- calls -----------------------------------------------------------------------------------------------------

    async def route(self, name: str, data: bytes, session: ReplicaSession | None) -> bytes:
        """Make one call and return the encoded result."""
        began = perf_counter()
        if session is not None:
            result = await session.call(name, data)
        else:
            if self.stateful:
                raise ServiceError(
                    f"{self.name}.{name} was called without a session. A stateful class requires a session, because "
                    "each session has its own instance.",
                    hint=f"Write: async with service.session() as session: await session.{name}.route(…)",
                )
            await self.start()
            result = await self._routed(name, data)
        self._latencies.append(perf_counter() - began)
        return result

    async def _routed(self, name: str, data: bytes) -> bytes:
        slot = await self._place(None)
        try:
            return await self._placed_call(slot, name, data)
        except ReplicaDied:
            # Only the author of the method knows whether a call may be executed twice.
            if not self.endpoints[name].idempotent or self.closed:
                raise
            self.retried += 1
        other = await self._place(slot)
        return await self._placed_call(other, name, data)

    async def _placed_call(self, slot: ReplicaSlot, name: str, data: bytes) -> bytes:
        return await self._send(slot, "call", name, "", data, partial(self._release, slot))

    async def _send(
        self,
        slot: ReplicaSlot,
        operation: Operation,
        name: str,
        session: str,
        data: bytes,
        ended: Callable[[], None],
    ) -> bytes:
        """Send an operation to the slot's process with `ReplicaHandle.call`. Raises the errors of `ServiceEndpoint.route`."""
        handle = slot.handle
        if handle is None:
            ended()
            raise ReplicaDied(f"Replica {slot.index} of {self.name} has ended.")
        slot.calls += 1
        try:
            frame, result = await handle.call(operation, name, session, data, self.options.call_seconds, ended)
            if (raised := frame.get("raised")) is not None:
                what = f"{self.name}.{name}" if operation == "call" else f"A session of {self.name}"
                raise EndpointRaised(
                    f"{what} raised {raised['type']}: {raised['text']}",
                    error_type=raised["type"],
                    error_text=raised["text"],
                    traceback=raised["traceback"],
                )
        except ServiceError:
            slot.failures += 1
            raise
        return result

    async def _place(self, avoid: ReplicaSlot | None) -> ReplicaSlot:
        """Wait for the least loaded ready replica and reserve it. Use `avoid` only if no other replica is ready."""
        if (slot := None if self._waiting else self._free(avoid)) is None:
            slot = await self._wait(lambda: self._free(avoid))
        slot.in_flight += 1
        return slot

    def _release(self, slot: ReplicaSlot) -> None:
        """Undo one reservation of a replica."""
        slot.in_flight -= 1
        self._wake()

    def _free(self, avoid: ReplicaSlot | None) -> ReplicaSlot | None:
        free = [slot for slot in self.slots if slot.state == "ready" and slot.in_flight < self.options.concurrent_calls]
        others = (slot for slot in free if slot is not avoid)
        return min(others, key=lambda slot: (slot.in_flight, slot.calls), default=None) or next(iter(free), None)

    async def _wait(self, find: Callable[[], ReplicaSlot | None]) -> ReplicaSlot:
        """Wait in line until `find` returns a replica.

        Raises Saturated if the line or the wait is too long, and ReplicaStartFailed if no replica starts.
        """
        if len(self._waiting) >= self.options.max_waiting:
            raise self._saturated(f"{len(self._waiting)} calls are already waiting for a replica")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self.options.queue_seconds):
                while True:
                    self._check_open()
                    if self._waiting[0] is turn and (slot := find()) is not None:
                        return slot
                    await turn
                    turn = asyncio.get_running_loop().create_future()
                    self._waiting[0] = turn  # only the first call in line is woken
        except TimeoutError:
            raise self._saturated(f"no replica was free within {self.options.queue_seconds:g} s") from None
        finally:
            with suppress(ValueError):
                self._waiting.remove(turn)
            self._wake()

    def _check_open(self) -> None:
        """Raise ServiceError if the service is closed, and ReplicaStartFailed if its replicas cannot be started."""
        if self.closed:
            raise ServiceError(f"The service {self.name} was closed while a call was waiting for a replica.")
        if self._last_failure and all(slot.failed_starts >= START_TRIES for slot in self.slots):
            raise ReplicaStartFailed(
                f"Every replica of {self.name} failed to start at least {START_TRIES} times. The last error: "
                f"{self._last_failure}"
            )

    def _saturated(self, why: str) -> Saturated:
        return Saturated(f"The service {self.name} is full: {why}.", retry_after_seconds=RETRY_AFTER_SECONDS)

    def _wake(self) -> None:
        """Let the first waiting call check again whether a replica is free."""
        if self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)

    async def fanout(self, name: str, data: bytes, session: ReplicaSession | None) -> list[bytes | None]:
        """Make one call on every replica and return the encoded results. The result of a failed call is None."""
        if session is not None or self.stateful:
            raise ServiceError(f"{self.name}.{name}.fanout cannot be called on sessions. Call `route` in each session.")
        await self.start()
        state = self.endpoints[name].on_restart
        before = self._state_calls.get(name)
        if state:
            self._state_calls[name] = data  # before the calls, so that replicas that are starting also execute the call
        slots = [(slot, slot.handle) for slot in self.slots]
        outcomes = await asyncio.gather(*(self._fanned(slot, name, data) for slot, _ in slots), return_exceptions=True)
        failures = [each for each in outcomes if isinstance(each, BaseException)]
        for failure in failures:
            log.warning("service %s: %s failed on a replica: %s", self.name, name, failure)
        failed = len(failures) == len(outcomes)
        if state:
            # if the calls failed because all replicas ended, the restarted replicas execute the call
            rejected = failed and any(isinstance(each, (EndpointRaised, CallTimeout)) for each in failures)
            if rejected and self._state_calls.get(name) is data:
                self._take_back(name, before)
            for (slot, handle), outcome in zip(slots, outcomes, strict=True):
                if slot.handle is not handle:
                    continue
                if not isinstance(outcome, BaseException):
                    slot.state_calls[name] = data
                elif not failed:  # a replica that did not set the state must not serve
                    self._replace(slot, f"{name} failed on this replica")
        if failed:
            raise failures[0]
        return [None if isinstance(each, BaseException) else each for each in outcomes]

    def _take_back(self, name: str, before: bytes | None) -> None:
        """Undo a fanout that failed on all replicas, and replace replicas that executed it when they started."""
        data = self._state_calls.pop(name)
        if before is not None:
            self._state_calls[name] = before
        for slot in self.slots:
            if slot.state_calls.get(name) is data:
                self._replace(slot, f"{name} failed on all other replicas")

    def _replace(self, slot: ReplicaSlot, reason: str) -> None:
        if slot.state == "ready" and slot.handle is not None:
            handle = slot.handle
            self._ended(slot, reason)
            handle.kill()

    async def _fanned(self, slot: ReplicaSlot, name: str, data: bytes) -> bytes:
        if slot.state != "ready":
            raise ReplicaDied(f"Replica {slot.index} of {self.name} is starting.")
        slot.in_flight += 1
        return await self._placed_call(slot, name, data)

    # -- sessions --------------------------------------------------------------------------------------------------

    async def open_session(self) -> ReplicaSession:
        """Open a session on the replica with the fewest sessions. Raises the errors of `ServiceEndpoint.route`."""
        await self.start()
        slot = None if self._waiting else self._free_for_session()
        if slot is None:
            slot = await self._wait(self._free_for_session)
        slot.sessions += 1
        session = ReplicaSession(self, slot, f"{next(self._numbers)}")
        if self.stateful:
            opening = self._background(self._send(slot, "open", "", session.name, b"", lambda: None))
            try:
                await asyncio.shield(opening)
            except asyncio.CancelledError:
                self._background(session.close_after(opening))
                raise
            except BaseException:
                session.left()
                raise
        return session

    def _background(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run `work` as an asyncio task. Closing the service cancels the task, but cancelling the caller does not."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # asyncio logs unretrieved exceptions
        return task

    def _free_for_session(self) -> ReplicaSlot | None:
        most = self.options.sessions_per_replica if self.stateful else None
        free = [slot for slot in self.slots if slot.state == "ready" and (most is None or slot.sessions < most)]
        return min(free, key=lambda slot: (slot.sessions, slot.in_flight, slot.index), default=None)

    def stats(self) -> ServiceStats:
        """Return statistics of the service and its replicas."""
        ordered = sorted(self._latencies)
        return ServiceStats(
            name=self.name,
            backend=self.backend,
            waiting=len(self._waiting),
            retried=self.retried,
            latency_ms_median=1000 * ordered[len(ordered) // 2] if ordered else None,
            latency_ms_p99=1000 * ordered[len(ordered) * 99 // 100] if ordered else None,
            replicas=tuple(
                ReplicaStats(
                    slot.index,
                    "" if slot.handle is None else slot.handle.place,
                    slot.state,
                    slot.in_flight,
                    slot.calls,
                    slot.failures,
                    slot.restarts,
                    slot.sessions,
                )
                for slot in self.slots
            ),
        )


class ReplicaSession:
    """A session on one replica. If the replica ends, the session of a stateless class moves to another replica."""

    def __init__(self, dispatch: Dispatcher, slot: ReplicaSlot, name: str) -> None:
        self.name = name
        self._dispatch = dispatch
        self._slot = slot
        self._handle = slot.handle
        self._open = True
        self._moving = asyncio.Lock()

    @property
    def _lives(self) -> bool:
        return self._slot.handle is self._handle and self._slot.state == "ready"

    async def call(self, name: str, data: bytes) -> bytes:
        """Make one call in the session and return the encoded result."""
        if not self._open:
            raise ServiceError(f"A session of {self._dispatch.name} is closed.", hint="Call it inside `async with`.")
        if self._dispatch.stateful:
            if not self._lives:
                raise ReplicaDied(
                    f"The replica of a {self._dispatch.name} session has ended, so the session's state is lost.",
                    hint="Open a new session.",
                )
            return await self._call(name, data)
        await self._stay()
        try:
            return await self._call(name, data)
        except ReplicaDied:
            if not self._dispatch.endpoints[name].idempotent or self._dispatch.closed:
                raise
            self._dispatch.retried += 1
        await self._stay()
        return await self._call(name, data)

    async def _call(self, name: str, data: bytes) -> bytes:
        slot, dispatch = self._slot, self._dispatch
        slot.in_flight += 1
        inner = self.name if dispatch.stateful else ""
        return await dispatch._send(slot, "call", name, inner, data, partial(dispatch._release, slot))

    async def _stay(self) -> None:
        """Move to another replica if the current one has ended. Concurrent calls wait for the move."""
        async with self._moving:
            if not self._lives:
                other = await self._dispatch.open_session()
                self.left()
                self._slot, self._handle = other._slot, other._handle

    def left(self) -> None:
        """Release the session's reservation on its replica."""
        if self._slot.handle is self._handle:
            self._slot.sessions -= 1
            self._dispatch._wake()

    async def aclose(self) -> None:
        """Close the session's instance. Calling this method again does nothing."""
        if not self._open:
            return
        self._open = False
        await asyncio.shield(self._dispatch._background(self._close()))

    async def close_after(self, opening: asyncio.Future[bytes]) -> None:
        """Wait until the instance is open, and close it. Called if the caller was cancelled while opening the session."""
        await asyncio.wait((opening,))
        if not opening.cancelled() and opening.exception() is None:
            await self.aclose()
        else:
            self.left()

    async def _close(self) -> None:
        try:
            if self._dispatch.stateful and self._lives:
                await self._dispatch._send(self._slot, "close", "", self.name, b"", lambda: None)
        finally:
            self.left()
