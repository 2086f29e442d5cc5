"""Idempotency records in the memory of one process, for a server without a store or with a store in memory."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import OrderedDict
from dataclasses import dataclass, replace

from taskapp_kit.errors import StoreError
from taskapp_kit.records.protocols import Clock, IdempotencyRecord, StoredResult
from taskapp_kit.store.idempotency import RECORD_SECONDS, LeasedIdempotencyStore

log = logging.getLogger("taskapp_kit.service")

LIMIT_BYTES = 256 * 2**20
"""The maximum size of the compressed results, in bytes."""
RECORD_BYTES = 1024
"""The size that is added for each settled record, in bytes. It also limits the number of small records."""
_INLINE_BYTES = 64 * 1024
"""Data longer than this is compressed and decompressed in a thread, because zlib takes about 10 ms for 1 MB."""


@dataclass(slots=True, eq=False)
class MemoryEntry:
    """A `StoredEntry` in memory.

    Attributes:
        result: The result with compressed answer and events, or None while the rollout is running.
        size: The size that counts towards the limit, in bytes.
    """

    ticket: IdempotencyRecord
    owner: str
    freed: bool = False
    result: StoredResult | None = None
    size: int = 0

    @property
    def settled(self) -> bool:
        """Return whether the record has a result."""
        return self.result is not None


class MemoryIdempotencyStore(LeasedIdempotencyStore[MemoryEntry]):
    """An `IdempotencyStore` in memory. If results exceed `limit_bytes`, the oldest results are removed.

    Records need no lease, because this process owns all of them.
    """

    def __init__(self, clock: Clock, limit_bytes: int = LIMIT_BYTES) -> None:
        super().__init__(clock, "the memory of this process", log, lease_seconds=0.0, renew_seconds=None)
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[str, MemoryEntry] = OrderedDict()  # in the order of their claims
        self._settled: OrderedDict[str, MemoryEntry] = OrderedDict()  # in the order in which they were settled
        self._by_key: dict[str, MemoryEntry] = {}
        self._stored_bytes = 0
        self._warned = False

    @property
    def stored_bytes(self) -> int:
        """Return the size of all settled records in bytes."""
        return self._stored_bytes

    async def _put_if_absent(self, ticket: IdempotencyRecord, over: MemoryEntry | None) -> MemoryEntry | None:
        # The entries are in the order of their claims, so stop at the first entry that has not expired.
        while self._entries and not self._is_current(next(iter(self._entries.values())).ticket):
            self._forget(next(iter(self._entries)))
        there = None if ticket.key is None else self._by_key.get(ticket.key)
        if there is not None and there is not over:
            return there
        if await self._read(ticket.rollout_id) is not None:
            raise self._duplicate(ticket.rollout_id)
        entry = self._entries[ticket.rollout_id] = MemoryEntry(ticket, self.owner)
        if ticket.key is not None:
            self._by_key[ticket.key] = entry
        return None

    async def _read(self, rollout_id: str) -> MemoryEntry | None:
        entry = self._entries.get(rollout_id)
        if entry is not None and not self._is_current(entry.ticket):
            self._forget(rollout_id)
            return None
        return entry

    async def _result(self, entry: MemoryEntry) -> StoredResult:
        if entry.result is None:
            raise StoreError(f"Rollout {entry.ticket.rollout_id!r} has no result yet.", hint="Try again later.")
        answer, events = await _decompressed(entry.result.answer), await _decompressed(entry.result.events)
        return replace(entry.result, answer=answer, events=events)

    async def _is_alive(self, entry: MemoryEntry) -> bool:
        return False

    def _write_result(self, ticket: IdempotencyRecord, settled: StoredResult, free_key: bool) -> asyncio.Task[None]:
        return self._spawn(self._store_result(self._entries[ticket.rollout_id], settled, free_key))

    async def _remove(self, rollout_id: str) -> None:
        if rollout_id in self._entries:
            self._forget(rollout_id)

    async def _renew(self) -> None:
        return

    async def _give_up(self, rollout_ids: list[str]) -> None:
        return

    async def _close(self) -> None:
        self._entries.clear()
        self._settled.clear()
        self._by_key.clear()
        self._stored_bytes = 0

    async def _store_result(self, entry: MemoryEntry, settled: StoredResult, free_key: bool) -> None:
        answer, events = await _compressed(settled.answer), await _compressed(settled.events)
        rollout_id = settled.rollout_id
        if self._entries.get(rollout_id) is not entry:  # the entry has expired
            return
        entry.result = replace(settled, answer=answer, events=events)
        entry.size = RECORD_BYTES + len(answer or b"") + len(events or b"")
        if free_key:
            entry.freed = True
            self._free_key(entry)
        self._settled[rollout_id] = entry
        self._stored_bytes += entry.size
        while self._stored_bytes > self._limit_bytes and self._settled:
            if not self._warned:
                self._warned = True
                log.warning(
                    "results of rollouts use more than %d MiB of memory, so the oldest are removed before %d h have passed, "
                    "with their Idempotency-Keys. A store in a file keeps all results.",
                    self._limit_bytes // 2**20,
                    RECORD_SECONDS // 3600,
                )
            self._forget(next(iter(self._settled)))

    def _forget(self, rollout_id: str) -> None:
        entry = self._entries.pop(rollout_id)
        if self._settled.pop(rollout_id, None) is not None:
            self._stored_bytes -= entry.size
        self._free_key(entry)

    def _free_key(self, entry: MemoryEntry) -> None:
        key = entry.ticket.key
        if key is not None and self._by_key.get(key) is entry:
            del self._by_key[key]


async def _compressed(text: bytes | None) -> bytes | None:
    if text is None or len(text) <= _INLINE_BYTES:
        return None if text is None else zlib.compress(text, 1)
    return await asyncio.to_thread(zlib.compress, text, 1)


async def _decompressed(data: bytes | None) -> bytes | None:
    if data is None or len(data) <= _INLINE_BYTES:
        return None if data is None else zlib.decompress(data)
    return await asyncio.to_thread(zlib.decompress, data)
