"""Rollouts that clients can join, follow or fetch later, by Idempotency-Key or by id.

Each rollout is a `SharedRollout` in a separate asyncio task. The coordinator stores the result for 24 h, so that other
processes with the same store can also find it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import orjson

from taskapp_kit.errors import Failure, IdempotencyKeyReused, RolloutFailed
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import Claim, IdempotencyRecord, IdempotencyStore, StoredResult, StoredRollout
from taskapp_kit.rollout.admission import Caller, cancelled, with_id
from taskapp_kit.rollout.details import model_calls
from taskapp_kit.rollout.event_buffer import EventBuffer
from taskapp_kit.rollout.response import answer_bytes
from taskapp_kit.rollout.service import Service
from taskapp_kit.rollout.source import settled_from
from taskapp_kit.rollout.subscribers import EndedRollout, SharedRollout
from taskapp_kit.store.idempotency_memory import MemoryIdempotencyStore
from taskapp_kit.wire.rollout import RolloutRequest

log = logging.getLogger("taskapp_kit.service")

POLL_SECONDS = (0.05, 0.5)
"""The first and the longest pause between two checks of a rollout that another process runs."""
MAX_BROKEN = 1000
"""The maximum number of stored errors of rollouts without a result, for example after a full disk."""
CLOSING_SECONDS = 5.0

T = TypeVar("T")


class SharedRollouts:
    """The shared rollouts of this process. Use it on the service's event loop, and close it before the service.

    coordinator: the store of the idempotency records. Defaults to the service's store, or to memory if the service has no store.
    """

    def __init__(self, service: Service, coordinator: IdempotencyStore | None = None) -> None:
        self._service = service
        of_store = None if service.store is None else service.store.coordinator(service.clock)
        self._coordinator = coordinator or of_store or MemoryIdempotencyStore(service.clock)
        self._in_store = self._coordinator is of_store
        self._by_id: dict[str, SharedRollout] = {}
        self._by_key: dict[str, tuple[str, SharedRollout]] = {}
        self._broken: OrderedDict[str, SharedRollout] = OrderedDict()
        self._over: WeakValueDictionary[str, EndedRollout] = WeakValueDictionary()
        self._reading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self,
        request: RolloutRequest,
        *,
        body: Any,
        caller: Caller,
        idempotency_key: str | None = None,
        detached: bool = False,
        followed: bool = False,
    ) -> SharedRollout:
        """Start a rollout, or return the rollout with the same idempotency key. Does not wait.

        body: the request as sent. Requests with the same key must have the same body. detached: whether the rollout
        continues without subscribers. followed: whether a client follows from the start, so that events are sent immediately.
        Raises IdempotencyKeyReused if the bodies differ. `SharedRollout.admitted` raises the errors of the admission.
        """
        # the hash of the body as sent, because a new default in a release must not make equal requests different
        fingerprint = hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()
        app = self._service.spec.name
        # with app and label, so that clients with the same key do not get each other's rollouts
        key = None if idempotency_key is None else _scoped_key(app, caller.key_label, idempotency_key)
        # first in this process, because the record may not be written yet
        if key is not None and key in self._by_key:
            known, shared = self._by_key[key]
            if not shared.cancelled:  # a cancelled rollout has no result, so a repeated request starts a new rollout
                if known != fingerprint:
                    raise _reused()
                shared.detached = shared.detached or detached
                return shared
        record = IdempotencyRecord(uuid.uuid4().hex, fingerprint, self._service.clock.now(), key, caller.key_label, app)
        shared = self._new(detached=detached)
        if key is not None:
            self._by_key[key] = (fingerprint, shared)
        self._start_task(shared, self._play(shared, request, caller, record, followed), key, followed=followed)
        return shared

    async def find(self, rollout_id: str, caller: Caller, *, with_events: bool = False) -> SharedRollout | None:
        """Return the running, ended or stored rollout with this id, or None if the caller may not see such a rollout.

        with_events: whether to load the events of an ended rollout. Raises StoreError if the store fails.
        """
        found = None if rollout_id in self._by_id else await self._coordinator.look(rollout_id)
        shared = self._by_id.get(rollout_id)
        if shared is not None:
            return shared if caller.may_see(shared.key_label) else None
        if found is not None and not self._visible(found.record, caller):
            return None
        broken = rollout_id in self._broken and found is not None and found.state == "running"
        if found is None or found.state == "lost" or broken:  # the rollout may be stored although it was never settled
            shared = await self._stored(rollout_id, caller, with_events=with_events) or self._broken.get(rollout_id)
            if shared is not None:
                return shared if caller.may_see(shared.key_label) else None
        if found is None:
            return None
        shared = self._new(detached=True)
        shared.admit(found.record)
        if found.state == "running":
            self._by_id[rollout_id] = shared
            self._start_task(shared, self._watch(shared, found))
            return shared
        over = self._ended_rollout(found)
        del found  # free the copy of the response before the next line waits, because it may be large
        await self._deliver(shared, over, with_events=with_events)
        return shared

    async def _stored(self, rollout_id: str, caller: Caller, *, with_events: bool) -> SharedRollout | None:
        """Return an ended rollout without an idempotency record. Rollouts are read one at a time, because each may be large."""
        async with self._reading:
            over = self._over.get(rollout_id)
            if over is None:
                stored = await self._service.stored.load(rollout_id, caller)
                if stored is None or self._service.store is None:
                    return None
                over = EndedRollout(await settled_from(self._service.store, stored), stored.key_label)
                if with_events:
                    _read_events(over, stored)
                self._over[rollout_id] = over
        if not caller.may_see(over.key_label):
            return None
        shared = self._new(detached=True)
        shared.admit(IdempotencyRecord(rollout_id, "", 0.0, key_label=over.key_label))
        await self._deliver(shared, over, with_events=with_events)
        return shared

    def _visible(self, record: IdempotencyRecord, caller: Caller) -> bool:
        """Return whether the record belongs to this app and the caller may see it."""
        return record.app in (None, self._service.spec.name) and caller.may_see(record.key_label)

    def _new(self, *, detached: bool) -> SharedRollout:
        return SharedRollout(EventBuffer(self._service.stored.show_images), detached=detached)

    async def close(self) -> None:
        """Cancel all running rollouts and close the coordinator."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_SECONDS)
        await self._coordinator.close()

    async def settled(self) -> None:
        """Wait until the results of all ended rollouts of this process are stored. Call this after `Service.drain`."""
        waiting = [shared.task for shared in self._by_id.values() if shared.task is not None and shared.is_local]
        if waiting:
            await asyncio.wait(waiting, timeout=CLOSING_SECONDS)

    def _start_task(
        self,
        shared: SharedRollout,
        work: Coroutine[Any, Any, StoredResult],
        key: str | None = None,
        *,
        followed: bool = False,
    ) -> None:
        async def run() -> None:
            try:
                shared.settle(await work)
            except BaseException as error:  # raised to the subscribers
                # a client has the rollout's id and may request it again
                known = shared.rollout_id and (shared.detached or followed)
                if known and not isinstance(error, asyncio.CancelledError):
                    self._remember_broken(shared, error)
                shared.fail(error)
            finally:
                if self._by_id.get(shared.rollout_id) is shared:
                    del self._by_id[shared.rollout_id]
                if key is not None and self._by_key.get(key, ("", None))[1] is shared:
                    del self._by_key[key]

        def forget(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not shared.over:  # cancelled before its first step
                work.close()
                shared.fail(asyncio.CancelledError())

        # A separate task, because no request owns the rollout. It ends when the last subscriber leaves, not the first.
        shared.task = asyncio.create_task(run())
        self._tasks.add(shared.task)
        shared.task.add_done_callback(forget)

    def _remember_broken(self, shared: SharedRollout, error: BaseException) -> None:
        log.warning("rollout ended without a result rollout_id=%s error=%s", shared.rollout_id, type(error).__name__)
        # a client has this id, so the response must not say that the rollout never existed
        self._broken[shared.rollout_id] = shared
        if len(self._broken) > MAX_BROKEN:
            self._broken.popitem(last=False)

    async def _play(
        self, shared: SharedRollout, request: RolloutRequest, caller: Caller, record: IdempotencyRecord, followed: bool
    ) -> StoredResult:
        self._service.store_state.check()
        keep_lost = self._service.store is not None
        while (found := await self._write(partial(self._coordinator.claim, record, keep_lost=keep_lost))) is not None:
            if found.state == "lost":
                settled = await self._settled_in_store(found.record.rollout_id)
                if settled is None:
                    keep_lost = False
                    continue
                found = Claim(found.record, "settled", settled)
                # earlier requests got the response that the rollout is lost
                self._over.pop(found.record.rollout_id, None)
            # A rollout that was cancelled here is not settled yet. A repeated request must not join it.
            own = self._by_id.get(found.record.rollout_id)
            if own is not None and own.cancelled:
                await own.ended()
                continue
            if found.record.fingerprint != record.fingerprint:
                raise _reused()
            shared.admit(found.record)
            if running := found.state == "running":
                found = await self._until_over(found)
            if found is not None and not (running and (found.settled is None or _of_cancelled(found.settled))):
                over = self._ended_rollout(found)
                del found  # free the copy of the response before the next line waits, because it may be large
                return await self._deliver(shared, over, with_events=True)
            # the owner died, cancelled the rollout or released the key, so this process runs it
        began = False
        try:
            in_flight = await self._service.admit(request, caller=caller, rollout_id=record.rollout_id)
            began = True
            shared.admit(record)
            shared.is_local = True
            self._by_id[record.rollout_id] = shared
            rollout = await self._service.run(in_flight, listener=shared.event_buffer, prompt=followed, written=True)
            settled = StoredResult(record.rollout_id, answer=answer_bytes(rollout), events=self._events_of(shared))
        except RolloutFailed as error:
            settled = StoredResult(record.rollout_id, failure=error.failure, events=self._events_of(shared))
        except asyncio.CancelledError:
            # shielded, because an unfinished record would occupy its key until the lease expires
            await asyncio.shield(self._settle_cancelled(shared, record, began=began))
            raise
        except BaseException:
            await self._coordinator.release(record.rollout_id)
            raise
        # from here on, a cancellation could lose a finished result with paid model calls
        shared.begin_settling()
        # a cancelled rollout has no result for a repeated request, so its key is released
        settle = partial(self._coordinator.settle, settled, free_key=_of_cancelled(settled))
        await asyncio.shield(self._write(settle))
        return settled

    async def _settled_in_store(self, rollout_id: str) -> StoredResult | None:
        """Return the result of a rollout whose process died after storing the rollout and before updating the record."""
        store = self._service.store
        stored = None if store is None else await store.load(rollout_id)
        if store is None or stored is None:
            return None
        settled = await settled_from(store, stored)
        return None if _of_cancelled(settled) else settled

    async def _write(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write records. If the service's store contains the records, a failed write marks the store as failing."""
        return await (self._service.store_state.write(write, again=self._probe) if self._in_store else write())

    async def _probe(self) -> None:
        record = IdempotencyRecord(uuid.uuid4().hex, "probe", self._service.clock.now(), app=self._service.spec.name)
        await self._coordinator.claim(record)
        await self._coordinator.release(record.rollout_id)

    async def _settle_cancelled(self, shared: SharedRollout, record: IdempotencyRecord, *, began: bool) -> None:
        if not began:
            await self._coordinator.release(record.rollout_id)
            return
        failure = _cancellation_in(shared.event_buffer) or cancelled()
        settled = StoredResult(record.rollout_id, failure=failure, events=self._events_of(shared))
        await self._coordinator.settle(settled, free_key=True)
        shared.settle(settled)

    def _events_of(self, shared: SharedRollout) -> bytes | None:
        """Return the events that the coordinator must store, or None if the service's store contains them."""
        return shared.event_buffer.text() if self._service.store is None else None

    async def _watch(self, shared: SharedRollout, found: Claim) -> StoredResult:
        """Wait for a rollout that another process runs, and return the result."""
        again = await self._until_over(found)
        if again is None:
            raise RolloutFailed(_lost(), rollout_id=found.record.rollout_id)
        return await self._deliver(shared, self._ended_rollout(again), with_events=True)

    async def _until_over(self, found: Claim) -> Claim | None:
        pause, longest = POLL_SECONDS
        again: Claim | None = found
        while again is not None and again.state == "running":
            await asyncio.sleep(pause)
            pause = min(longest, pause * 1.5)
            again = await self._coordinator.look(found.record.rollout_id)
        return again

    def _ended_rollout(self, found: Claim) -> EndedRollout:
        """Return the result of an ended rollout. Concurrent readers get the same object."""
        rollout_id = found.record.rollout_id
        over = self._over.get(rollout_id)
        if over is None:
            over = self._over[rollout_id] = EndedRollout(
                found.settled or StoredResult(rollout_id, failure=_lost()), found.record.key_label
            )
        return over

    async def _deliver(self, shared: SharedRollout, over: EndedRollout, *, with_events: bool) -> StoredResult:
        """Set the result of `shared` to the result of a rollout that has already ended."""
        shared.replayed = True
        shared.ended_result = over
        if with_events:
            async with over.loading:
                if over.lines is None:
                    await self._load_events(over)
            shared.event_buffer.load(over.lines or [])
        shared.settle(over.settled)
        return over.settled

    async def _load_events(self, over: EndedRollout) -> None:
        """Load the events of an ended rollout as JSON lines."""
        settled = over.settled
        if settled.events is None and self._service.store is not None:
            stored = await self._service.store.load(settled.rollout_id)
            if stored is not None:
                _read_events(over, stored)
                return
        over.lines = [orjson.dumps(event) for event in orjson.loads(settled.events or b"[]")]

    async def model_calls(self, shared: SharedRollout) -> dict[str, Json]:
        """Return an ended rollout's judge calls and auxiliary model calls, with private values masked, or {} if it is not stored.

        Raises StoreError if the store fails.
        """
        if shared.ended_result is not None and shared.ended_result.calls is not None:
            return shared.ended_result.calls
        stored = None if self._service.store is None else await self._service.store.load(shared.rollout_id)
        return {} if stored is None else model_calls(stored.private)


def _read_events(over: EndedRollout, stored: StoredRollout) -> None:
    """Set the events and the model calls of `over` from a stored rollout."""
    over.lines = [orjson.dumps(event) for event in stored.events]
    over.calls = model_calls(stored.private)


def _scoped_key(app: str, label: str | None, key: str) -> str:
    """Return the stored form of an Idempotency-Key, which is different for each app and key label."""
    return hashlib.sha256(f"{app}\n{label or ''}\n{key}".encode()).hexdigest()


def _reused() -> IdempotencyKeyReused:
    return IdempotencyKeyReused(
        "This Idempotency-Key was already used with a different request body.",
        hint="Send an identical body to get the same rollout again, or use a new key for each request.",
    )


def _of_cancelled(settled: StoredResult) -> bool:
    return settled.failure is not None and settled.failure.boundary == "cancelled"


def _cancellation_in(event_buffer: EventBuffer) -> Failure | None:
    """Return the failure of a cancelled rollout from its last event, so that stream, store and response agree."""
    last = orjson.loads(event_buffer.lines[-1]) if event_buffer.lines else {}
    if last.get("kind") != "failed" or last["boundary"] != "cancelled":
        return None
    return Failure("cancelled", last["code"], last["message"], last["hint"], last["error_id"])


def _lost() -> Failure:
    message = "the server process that ran the rollout ended before the rollout did"
    return with_id(Failure("cancelled", "server_died", message, "Send the request again."))
