"""Idempotency records in a modal.Dict, for an app that several containers serve.

A Dict has three atomic operations: put if absent, put, and pop. It has no transactions and no compare-and-set.
Therefore, no entry is removed while another container may read it, and every decision between containers is a single
put if absent:

    key/KEY            the id of the first rollout that was requested with this key
    next/ROLLOUT       the id of the rollout that took over the key from ROLLOUT
    holder/OWNER       a container: the end of its lease, and the rollouts that it owns (JSON)
    ticket/, part/     the record and the result of a rollout; see idempotency_record.py

The rollouts of a key form a chain: the entry `key` points to the first rollout, and each `next` to the following
rollout. The last rollout owns the key. A claim reads the chain to its end, and the algorithm in store/idempotency.py
examines the last rollout. To take over the key, a container puts its own rollout as `next`, if absent. Only one of
several containers succeeds, and the others continue to read.

These races can occur:

- Two containers claim a free key. One container puts `key`, and the other reads the entry.
- Two containers notice that an owner is dead. One container puts `next`. Popping `key` instead could remove the new
  entry of the other container.
- A slow owner continues after another container has taken over its record. It settles its own record, which no other
  container writes, and the new rollout still owns the key.
- Modal's client repeats a put if absent whose response was lost. The new response reports that the entry exists.
  Therefore, each entry contains the id of its claim and is read back. If the ids are equal, the put has succeeded.
- A container dies after it has put a record and before it has put the link. No entry points to the record, which
  expires.
- The last link of a chain points to a missing record. Because a record is put before its link, the record was released
  or has expired, and the key is free.
- A container reads a result while another container writes the result. The parts are written before the record that
  lists them, so the reader sees either a running rollout or a complete result.

A container renews a single entry for all records that it owns. A record counts as owned if this entry has not expired
and either lists the record or is older than the record. The number `beat` determines which is older. An older entry
cannot list the record, because only the next renewal adds it. The lease alone determines whether a container is dead.

Modal removes entries that have not been read or written for seven days, so this module removes no expired entries.
Modal does not document whether a container can immediately read an entry that another container has put. This module
assumes that it can.
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
"""For how many seconds a container counts as alive after its last renewal."""
RENEW_SECONDS = 8.0
"""The interval in seconds at which a container renews its lease while it owns a record."""


class ModalIdempotencyStore(LeasedIdempotencyStore[DictRecord]):
    """An `IdempotencyStore` in a modal.Dict.

    Each instance belongs to one event loop. Several instances may share a Dict.

    If a result is longer than MOST_BYTES, a failure with the code `answer_too_large` is stored instead. A repeated
    request then receives this failure, and the rollout is not played again.

    Args:
        entries: The entries of the Dict.
        clock: The clock.
        renew_seconds: Interval at which the lease is renewed.
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
            # The put may already have taken effect, so it is completed and then undone.
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
        self._beat += 1  # incremented first, so that a record claimed from now on has this beat or is listed
        now = self._clock.now()
        lease = {"until": now + LEASE_SECONDS, "beat": self._beat, "held": sorted(self._owned)}
        await self._entries.put(f"holder/{self.owner}", json.dumps(lease).encode())
        self._renewed_at = now

    async def _give_up(self, rollout_ids: list[str]) -> None:
        await self._entries.remove(f"holder/{self.owner}")

    async def _put(self, ticket: IdempotencyRecord, over: DictRecord | None) -> DictRecord | None:
        """Put the record, then put its link at the end of the chain.

        Return None, or the current record if the key is taken.
        """
        while True:
            place, there = (None, None) if ticket.key is None else await self._end_of(f"key/{ticket.key}", over)
            if there is not None:
                return there
            await self._ensure_lease()
            # The record comes first, because a link to a missing record means that the key is free.
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
        """Remove the record of a claim that was cancelled."""
        with suppress(StoreError):
            if await put is None:
                await self._records.remove(rollout_id)

    async def _linked(self, place: str, rollout_id: str) -> bool:
        if await self._entries.put_if_absent(place, rollout_id.encode()):
            return True
        return await self._entries.get(place) == rollout_id.encode()

    async def _end_of(self, place: str, over: DictRecord | None) -> tuple[str, DictRecord | None]:
        """Return the key of the chain's next link, and the last record.

        The record is None if the key is free or can be taken over.
        """
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
        """Ensure that this container's lease exists and is valid long enough for a new record."""
        if self._first_renewal is not None and not self._first_renewal.done():
            await asyncio.shield(self._first_renewal)
        now = self._clock.now()
        if self._renewed_at is None or not 0 <= now - self._renewed_at < LEASE_SECONDS / 2:
            if self._first_renewal is None or self._first_renewal.done():
                self._first_renewal = self._spawn(self._renew())
            await asyncio.shield(self._first_renewal)
