"""Tickets of one process, in its memory: for a server without a store, or with one that forgets."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import OrderedDict
from dataclasses import dataclass, replace

from taskapp_kit.contract.protocols import TICKET_SECONDS, Claim, Clock, IdempotencyRecord, StoredResult
from taskapp_kit.errors import StoreError

log = logging.getLogger("taskapp_kit.service")

LIMIT_BYTES = 256 * 2**20
"""How much is kept of what came of rollouts, compressed."""
TICKET_BYTES = 1024
"""What a settled ticket counts beside its answer and events, so that many small ones are bounded too."""
_AT_ONCE_BYTES = 64 * 1024
"""What is longer than this is packed and unpacked in a thread: zlib takes some 10 ms for 1 MB."""


@dataclass(slots=True)
class _Entry:
    """settled: None while it runs; its answer and events are packed. size: bytes that it counts."""

    ticket: IdempotencyRecord
    settled: StoredResult | None = None
    size: int = 0


class MemoryIdempotencyStore:
    """An `IdempotencyStore` in memory. When more than `limit_bytes` are kept, what was settled first goes first.

    Here a ticket runs or is settled; it is never lost, for its holder would be too.
    """

    def __init__(self, clock: Clock, limit_bytes: int = LIMIT_BYTES) -> None:
        self._clock = clock
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # in the order of their claims
        self._settled: OrderedDict[str, _Entry] = OrderedDict()  # in the order in which they were settled
        self._by_key: dict[str, str] = {}
        self._held: set[str] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._kept_bytes = 0
        self._warned = False
        self._closed = False

    @property
    def kept_bytes(self) -> int:
        """What is kept of settled tickets, in bytes."""
        return self._kept_bytes

    async def claim(self, ticket: IdempotencyRecord) -> Claim | None:
        """Keeps the ticket, and answers None; when its key is taken, answers who has it. Raises StoreError."""
        self._open()
        while self._entries and not self._fresh(next(iter(self._entries.values()))):
            self._forget(next(iter(self._entries)))
        if ticket.key is not None and (holder := self._entry(self._by_key.get(ticket.key, ""))) is not None:
            return await _found(holder)
        if self._entry(ticket.rollout_id) is not None:
            raise StoreError(
                f"a ticket for rollout {ticket.rollout_id!r} is held in memory already.",
                hint="Give the new rollout its own rollout_id.",
            )
        self._entries[ticket.rollout_id] = _Entry(ticket)
        self._held.add(ticket.rollout_id)
        if ticket.key is not None:
            self._by_key[ticket.key] = ticket.rollout_id
        return None

    async def settle(self, settled: StoredResult, *, free_key: bool = False) -> None:
        """What came of a ticket that runs. A caller that is cancelled meanwhile does not undo it. Raises StoreError.

        Nothing is kept of a ticket that is older than TICKET_SECONDS by now.
        """
        self._open()
        if (settled.answer is None) == (settled.failure is None):
            raise StoreError(f"rollout {settled.rollout_id!r} is settled with an answer or a failure: exactly one.")
        if settled.rollout_id not in self._held:
            raise StoreError(f"rollout {settled.rollout_id!r} cannot be settled: no such ticket runs in this process.")
        self._held.discard(settled.rollout_id)
        entry = self._entry(settled.rollout_id)
        if entry is None:
            return
        task = asyncio.ensure_future(self._store(entry, settled, free_key))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        await asyncio.shield(task)

    async def release(self, rollout_id: str) -> None:
        """Forgets a ticket whose rollout never began. Does nothing for any other."""
        self._open()
        if rollout_id in self._held:
            self._held.discard(rollout_id)
            if rollout_id in self._entries:
                self._forget(rollout_id)

    async def look(self, rollout_id: str) -> Claim | None:
        """The ticket of this rollout; None when there is none, or no more. Raises StoreError."""
        self._open()
        entry = self._entry(rollout_id)
        return None if entry is None else await _found(entry)

    async def close(self) -> None:
        """Forgets everything. A second call does nothing."""
        self._closed = True
        if self._settling:
            await asyncio.wait(self._settling)
        self._entries.clear()
        self._settled.clear()
        self._by_key.clear()
        self._held.clear()
        self._kept_bytes = 0

    def _open(self) -> None:
        if self._closed:
            raise StoreError("the tickets of this process are closed.", hint="Restart the server.")

    async def _store(self, entry: _Entry, settled: StoredResult, free_key: bool) -> None:
        answer, events = await _packed(settled.answer), await _packed(settled.events)
        rollout_id = settled.rollout_id
        if self._entries.get(rollout_id) is not entry:  # a day went by meanwhile
            return
        entry.settled = replace(settled, answer=answer, events=events)
        entry.size = TICKET_BYTES + len(answer or b"") + len(events or b"")
        if free_key:
            self._free_key(entry)
        self._settled[rollout_id] = entry
        self._kept_bytes += entry.size
        while self._kept_bytes > self._limit_bytes and self._settled:
            if not self._warned:
                self._warned = True
                log.warning(
                    "what came of rollouts takes more than %d MiB of memory: the oldest are forgotten before %d h are "
                    "over, with their Idempotency-Keys. A store in a file keeps them all.",
                    self._limit_bytes // 2**20,
                    TICKET_SECONDS // 3600,
                )
            self._forget(next(iter(self._settled)))

    def _fresh(self, entry: _Entry) -> bool:
        age_seconds = self._clock.now() - entry.ticket.created_at
        return -TICKET_SECONDS <= age_seconds < TICKET_SECONDS  # one from far ahead was made by a clock set wrong

    def _entry(self, rollout_id: str) -> _Entry | None:
        entry = self._entries.get(rollout_id)
        if entry is not None and not self._fresh(entry):
            self._forget(rollout_id)
            return None
        return entry

    def _forget(self, rollout_id: str) -> None:
        entry = self._entries.pop(rollout_id)
        if self._settled.pop(rollout_id, None) is not None:
            self._kept_bytes -= entry.size
        self._free_key(entry)

    def _free_key(self, entry: _Entry) -> None:
        key = entry.ticket.key
        if key is not None and self._by_key.get(key) == entry.ticket.rollout_id:
            del self._by_key[key]


async def _found(entry: _Entry) -> Claim:
    settled = entry.settled
    if settled is None:
        return Claim(entry.ticket, "running")
    answer, events = await _unpacked(settled.answer), await _unpacked(settled.events)
    return Claim(entry.ticket, "settled", replace(settled, answer=answer, events=events))


async def _packed(text: bytes | None) -> bytes | None:
    if text is None or len(text) <= _AT_ONCE_BYTES:
        return None if text is None else zlib.compress(text, 1)
    return await asyncio.to_thread(zlib.compress, text, 1)


async def _unpacked(data: bytes | None) -> bytes | None:
    if data is None or len(data) <= _AT_ONCE_BYTES:
        return None if data is None else zlib.decompress(data)
    return await asyncio.to_thread(zlib.decompress, data)
