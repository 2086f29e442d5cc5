"""Idempotency records in a modal.Dict, for an app that several containers serve.

A Dict offers three atomic operations: put if absent, put, and pop. It has no transactions and no compare-and-set. So
no entry is removed while another container may read it, and every decision between containers is one put if absent:

    key/KEY            the id of the first rollout that was requested under this key
    next/ROLLOUT       the id of the rollout that took the key over from ROLLOUT
    holder/OWNER       a container: the end of its lease, and the rollouts that it owns (JSON)
    ticket/, part/     a rollout's record and its result: see idempotency_record.py

The rollouts of a key are a chain: `key`, then one `next` after another. The last rollout has the key. A claim reads to the
end, and the algorithm (store/idempotency.py) examines the rollout there. To take the key over, a container puts its own
rollout as `next`, if absent. One of all that try succeeds, and the others read on.

The races:

- Two containers claim a free key. One puts `key`, the other reads it.
- Two containers find the same owner dead. One puts `next`. (Popping `key` instead could remove the winner's new entry.)
- A slow owner returns after its record was taken over. It settles its own record, which nothing else writes, and the key
  stays with the new rollout.
- Modal's client repeats a put if absent whose response was lost, and learns that the entry exists. So an entry names its
  claim and is read back: an entry of the same claim is a success.
- A claim that dies between record and chain leaves a record that no entry points to. It expires.
- A chain ends without a record. The record was released or has expired, because a record is put before its link. The key
  is free.
- Settling writes the parts before the record that names them, so a reader sees a running rollout or a whole answer.

A container renews one entry for everything that it owns. A record counts as owned while that entry lives and either lists
it or is older than the record (`beat`), because the first renewal after a claim lists it. Only the lease decides whether a
container is dead.

Modal removes an entry that was not read or written for seven days, so nothing is purged here. Modal does not document
whether a read in one container immediately sees an entry of another container. This module assumes it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from contextlib import suppress

from taskapp_kit.deploy.modal.idempotency_record import DictRecord, DictRecords, ModalEntries, damaged
from taskapp_kit.errors import StoreError
from taskapp_kit.records.protocols import Clock, IdempotencyRecord, StoredResult
from taskapp_kit.store.idempotency import LeasedIdempotencyStore

log = logging.getLogger("taskapp_kit.deploy")

LEASE_SECONDS = 30.0
"""How long a container counts as alive after its last renewal."""
RENEW_SECONDS = 8.0
"""How often a container renews its lease while it owns a record."""


class ModalIdempotencyStore(LeasedIdempotencyStore[DictRecord]):
    """An `IdempotencyStore` over the entries of a modal.Dict. Use it on one event loop; any number may share a Dict.

    renew_seconds: how often the lease is renewed. For an answer longer than MOST_BYTES a failure with the code
    `answer_too_large` is stored: a repeated request learns that the rollout was played and that its answer is not here;
    it is not played again under its key.
    """

    def __init__(self, entries: ModalEntries, clock: Clock, *, renew_seconds: float = RENEW_SECONDS) -> None:
        super().__init__(clock, "the modal.Dict", log, lease_seconds=LEASE_SECONDS, renew_seconds=renew_seconds)
        self._entries = entries
        self._records = DictRecords(entries)
        self._beat = 0
        self._renewed_at: float | None = None
        self._first_renewal: asyncio.Task[None] | None = None

    async def _put_if_absent(self, ticket: IdempotencyRecord, over: DictRecord | None) -> DictRecord | None:
        work = self._spawn(self._put(ticket, over))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # The put may have arrived, so it continues and is then undone.
            self._spawn(self._remove_after(work, ticket.rollout_id))
            raise

    async def _read(self, rollout_id: str) -> DictRecord | None:
        return await self._records.read(rollout_id)

    async def _result(self, entry: DictRecord) -> StoredResult:
        return await self._records.result(entry)

    async def _is_alive(self, entry: DictRecord) -> bool:
        if entry.owner == self.owner:
            return False
        data = await self._entries.get(f"holder/{entry.owner}")
        if data is None:
            return False
        try:
            owner = json.loads(data)
            until, beat, owned = float(owner["until"]), int(owner["beat"]), owner["held"]
        except (ValueError, TypeError, KeyError) as fault:
            raise damaged(entry.ticket.rollout_id, fault) from fault
        return self._lease_holds(until) and (entry.beat >= beat or entry.ticket.rollout_id in owned)

    def _write_result(self, ticket: IdempotencyRecord, settled: StoredResult, free_key: bool) -> asyncio.Task[None]:
        record = DictRecord(ticket, uuid.uuid4().hex, self.owner, self._beat, freed=free_key)
        return self._spawn(self._records.settle(record, settled))

    async def _remove(self, rollout_id: str) -> None:
        await self._records.remove(rollout_id)

    async def _renew(self) -> None:
        self._beat += 1  # before the list is read, so a record claimed from now on has this beat or is on the list
        now = self._clock.now()
        lease = {"until": now + LEASE_SECONDS, "beat": self._beat, "held": sorted(self._owned)}
        await self._entries.put(f"holder/{self.owner}", json.dumps(lease).encode())
        self._renewed_at = now

    async def _give_up(self, rollout_ids: list[str]) -> None:
        await self._entries.remove(f"holder/{self.owner}")

    async def _put(self, ticket: IdempotencyRecord, over: DictRecord | None) -> DictRecord | None:
        """Put the record, then its link at the end of its key's chain."""
        while True:
            place, there = (None, None) if ticket.key is None else await self._end_of(f"key/{ticket.key}", over)
            if there is not None:
                return there
            await self._ensure_lease()
            # The record comes first, because other containers take a link without a record for a free key.
            if not await self._records.put_new(DictRecord(ticket, uuid.uuid4().hex, self.owner, self._beat)):
                raise self._duplicate(ticket.rollout_id)
            try:
                if place is None or await self._linked(place, ticket.rollout_id):
                    return None
            except BaseException:
                with suppress(StoreError):
                    await self._records.remove(ticket.rollout_id)
                raise
            await self._records.remove(ticket.rollout_id)

    async def _remove_after(self, put: asyncio.Task[DictRecord | None], rollout_id: str) -> None:
        """Remove the record of a claim whose caller was cancelled."""
        with suppress(StoreError):
            if await put is None:
                await self._records.remove(rollout_id)

    async def _linked(self, place: str, rollout_id: str) -> bool:
        if await self._entries.put_if_absent(place, rollout_id.encode()):
            return True
        return await self._entries.get(place) == rollout_id.encode()

    async def _end_of(self, place: str, over: DictRecord | None) -> tuple[str, DictRecord | None]:
        """Return where the chain's next link belongs, and the record at its end unless the key is free or may be taken over."""
        while True:
            last = await self._entries.get(place)
            if last is None:
                return place, None
            rollout_id = last.decode("utf-8", "replace")
            place = f"next/{rollout_id}"
            if await self._entries.get(place) is None:
                there = await self._records.read(rollout_id)
                free = there is None or there.freed or (over is not None and there.claim == over.claim)
                return place, None if free else there

    async def _ensure_lease(self) -> None:
        """Ensure that this container's lease exists and lasts long enough for a new record."""
        if self._first_renewal is not None and not self._first_renewal.done():
            await asyncio.shield(self._first_renewal)
        now = self._clock.now()
        if self._renewed_at is None or not 0 <= now - self._renewed_at < LEASE_SECONDS / 2:
            if self._first_renewal is None or self._first_renewal.done():
                self._first_renewal = self._spawn(self._renew())
            await asyncio.shield(self._first_renewal)
