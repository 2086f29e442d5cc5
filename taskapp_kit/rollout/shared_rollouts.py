"""Rollouts that clients can join, follow or fetch later, by Idempotency-Key or by id.

Each is a separate task, a `SharedRollout`. The coordinator stores its result, so that it can be found for 24 h, also by
another process with the same store.
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
"""The first and the longest pause between two checks of a rollout that another process plays."""
MAX_BROKEN = 1000
"""The number of rollouts without a result (after a full disk, for example) whose error is remembered."""
CLOSING_SECONDS = 5.0

T = TypeVar("T")


class SharedRollouts:
    """The tracked rollouts of this process. Use it on the service's event loop; call `close` before the service's.

    coordinator: stores the idempotency records; by default in the service's store, else in this process's memory.
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
        """Start a rollout for this request, or return the rollout that runs or ran under its key. Does not wait.

        body: the request as sent, which must be equal for an equal key. detached: it continues without subscribers.
        followed: a client follows from the start, so events are sent at once and not in batches. Raises
        IdempotencyKeyReused; `SharedRollout.admitted` raises other refusals.
        """
        # Of the body as it was sent: a default that changes with a release must not make an equal request another one.
        fingerprint = hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()
        app = self._service.spec.name
        # By app and label, so that no client meets the rollouts of another by choosing the same key.
        key = None if idempotency_key is None else _scoped_key(app, caller.key_label, idempotency_key)
        # In this process first: the record may not be written yet.
        if key is not None and key in self._by_key:
            known, shared = self._by_key[key]
            if not shared.cancelled:  # a cancelled rollout has no result, so a repetition is played again
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
        """Return the rollout with this id, running, ended or only stored; None if it does not exist.

        A rollout that the caller may not see counts as none. with_events: also loads the events of an ended rollout. Raises
        StoreError.
        """
        found = None if rollout_id in self._by_id else await self._coordinator.look(rollout_id)
        shared = self._by_id.get(rollout_id)
        if shared is not None:
            return shared if caller.may_see(shared.key_label) else None
        if found is not None and not self._visible(found.record, caller):
            return None
        broken = rollout_id in self._broken and found is not None and found.state == "running"
        if found is None or found.state == "lost" or broken:  # it may be stored although it was never settled
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
        del found  # it has a copy of the answer, which may be large and is not needed while the next line waits
        await self._deliver(shared, over, with_events=with_events)
        return shared

    async def _stored(self, rollout_id: str, caller: Caller, *, with_events: bool) -> SharedRollout | None:
        """Return an ended rollout without an idempotency record. One is read at a time, because each may be large."""
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
        """Cancel running rollouts and close the coordinator."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_SECONDS)
        await self._coordinator.close()

    async def settled(self) -> None:
        """Wait until the ended rollouts of this process are settled. Call it after `Service.drain`."""
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
                # a client has its id and may request it again
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

        # A separate task, because no request owns it: it ends when its last subscriber leaves, not with the first.
        shared.task = asyncio.create_task(run())
        self._tasks.add(shared.task)
        shared.task.add_done_callback(forget)

    def _remember_broken(self, shared: SharedRollout, error: BaseException) -> None:
        log.warning("rollout ended without a result rollout_id=%s error=%s", shared.rollout_id, type(error).__name__)
        # A client knows this id, and must not read that the rollout never existed.
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
                self._over.pop(found.record.rollout_id, None)  # who looked before it was stored read that it is lost
            # Cancelled here and not yet settled: joined, the repetition would get the cancellation as its answer.
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
                del found  # it has a copy of the answer, which may be large and is not needed while the next line waits
                return await self._deliver(shared, over, with_events=True)
            # its owner died, cancelled it, or released the key: this process plays it
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
            # Shielded: without an end, the record would hold its key until the lease runs out.
            await asyncio.shield(self._settle_cancelled(shared, record, began=began))
            raise
        except BaseException:
            await self._coordinator.release(record.rollout_id)
            raise
        # From here on a cancellation could lose a result that is played, and paid for.
        shared.begin_settling()
        # a cancelled rollout has no result for a repetition, so its key is freed
        settle = partial(self._coordinator.settle, settled, free_key=_of_cancelled(settled))
        await asyncio.shield(self._write(settle))
        return settled

    async def _settled_in_store(self, rollout_id: str) -> StoredResult | None:
        """Return the result of a rollout whose process died after it was stored and before its record had the result."""
        store = self._service.store
        stored = None if store is None else await store.load(rollout_id)
        if store is None or stored is None:
            return None
        settled = await settled_from(store, stored)
        return None if _of_cancelled(settled) else settled

    async def _write(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write records. A failure of records in the service's store is a failure of the store, with `_probe` as its probe."""
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
        """Return the events for the coordinator; None if a store has them."""
        return shared.event_buffer.text() if self._service.store is None else None

    async def _watch(self, shared: SharedRollout, found: Claim) -> StoredResult:
        """Wait for a rollout that another process plays."""
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
        """Return the result of an ended rollout, one object for all concurrent readers."""
        rollout_id = found.record.rollout_id
        over = self._over.get(rollout_id)
        if over is None:
            over = self._over[rollout_id] = EndedRollout(
                found.settled or StoredResult(rollout_id, failure=_lost()), found.record.key_label
            )
        return over

    async def _deliver(self, shared: SharedRollout, over: EndedRollout, *, with_events: bool) -> StoredResult:
        """Settle `shared` with the result of a rollout that had already ended."""
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
        """Load the events of an ended rollout, each as JSON."""
        settled = over.settled
        if settled.events is None and self._service.store is not None:
            stored = await self._service.store.load(settled.rollout_id)
            if stored is not None:
                _read_events(over, stored)
                return
        over.lines = [orjson.dumps(event) for event in orjson.loads(settled.events or b"[]")]

    async def model_calls(self, shared: SharedRollout) -> dict[str, Json]:
        """Return the calls of judges and auxiliary models of an ended rollout, as they may be shown; empty without a store.

        Raises StoreError.
        """
        if shared.ended_result is not None and shared.ended_result.calls is not None:
            return shared.ended_result.calls
        stored = None if self._service.store is None else await self._service.store.load(shared.rollout_id)
        return {} if stored is None else model_calls(stored.private)


def _read_events(over: EndedRollout, stored: StoredRollout) -> None:
    """Take the events and the model calls of a stored rollout."""
    over.lines = [orjson.dumps(event) for event in stored.events]
    over.calls = model_calls(stored.private)


def _scoped_key(app: str, label: str | None, key: str) -> str:
    """Return the stored form of an Idempotency-Key, distinct for each app and key label, so that equal keys do not collide."""
    return hashlib.sha256(f"{app}\n{label or ''}\n{key}".encode()).hexdigest()


def _reused() -> IdempotencyKeyReused:
    return IdempotencyKeyReused(
        "This Idempotency-Key was already used with a different request body.",
        hint="Send an identical body to get the same rollout again, or use a new key for each request.",
    )


def _of_cancelled(settled: StoredResult) -> bool:
    return settled.failure is not None and settled.failure.boundary == "cancelled"


def _cancellation_in(event_buffer: EventBuffer) -> Failure | None:
    """Return the cancellation's failure from the last event, so that stream, store and answer agree."""
    last = orjson.loads(event_buffer.lines[-1]) if event_buffer.lines else {}
    if last.get("kind") != "failed" or last["boundary"] != "cancelled":
        return None
    return Failure("cancelled", last["code"], last["message"], last["hint"], last["error_id"])


def _lost() -> Failure:
    message = "the server process that ran the rollout ended before the rollout did"
    return with_id(Failure("cancelled", "server_died", message, "Send the request again."))
