"""What lies in a modal.Dict of one rollout: its ticket, and what came of it, packed and cut into parts.

    ticket/ROLLOUT          the ticket: who holds it, or what came of it (JSON)
    part/ROLLOUT/WHAT/N     the answer and the events

The parts are written before the ticket that names them, so that a reader sees a running rollout or a whole answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
import zlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TypeVar

from taskapp_kit.contract.protocols import IdempotencyRecord, StoredResult
from taskapp_kit.deploy.modal.dict_entries import Entries
from taskapp_kit.errors import Failure, StoreError

log = logging.getLogger("taskapp_kit.deploy")

T = TypeVar("T")

PART_BYTES = 2**20
"""Modal's client checks no limit of a value; its server refuses one that is too large for a request, and Modal advises
against large ones. So what is long is cut into parts that any of them takes."""
MOST_BYTES = 64 * 2**20
"""Of one answer, and again of its events, packed. What is longer is not kept: see `DictRecords.settle`."""
AT_ONCE = 4
"""Parts on their way at the same time, so that one long answer does not fill the line."""


@dataclass(frozen=True, slots=True)
class DictRecord:
    """A ticket as it lies in the Dict.

    claim: names the put, so that who put it knows it again. holder: who holds it. beat: the holder's beat when it was
    claimed. freed: its key may be claimed anew. answer, events: how many parts they have, None without them.
    """

    ticket: IdempotencyRecord
    claim: str
    holder: str
    beat: int
    freed: bool = False
    failure: Failure | None = None
    answer: int | None = None
    events: int | None = None

    @property
    def settled(self) -> bool:
        """Whether anything came of it yet."""
        return self.failure is not None or self.answer is not None

    def to_bytes(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> DictRecord:
        """What `to_bytes` wrote. Raises ValueError, TypeError, KeyError, AttributeError."""
        found = json.loads(data)
        failure = found.pop("failure")
        return cls(
            IdempotencyRecord(**found.pop("ticket")), failure=None if failure is None else Failure(**failure), **found
        )


class DictRecords:
    """Tickets and answers by their rollouts. Everything raises StoreError."""

    def __init__(self, entries: Entries, *, part_bytes: int = PART_BYTES, most_bytes: int = MOST_BYTES) -> None:
        self._entries = entries
        self._part_bytes = part_bytes
        self._most_bytes = most_bytes

    async def put_new(self, kept: DictRecord) -> bool:
        """Puts a ticket that is not there yet; whether it is ours that lies there now."""
        rollout_id = kept.ticket.rollout_id
        if await self._entries.put_if_absent(f"ticket/{rollout_id}", kept.to_bytes()):
            return True
        there = await self.read(rollout_id)  # the client may have put it twice, when the first answer was lost
        return there is not None and there.claim == kept.claim

    async def read(self, rollout_id: str) -> DictRecord | None:
        """The ticket; None when there is none."""
        data = await self._entries.get(f"ticket/{rollout_id}")
        if data is None:
            return None
        try:
            return DictRecord.from_bytes(data)
        except (ValueError, TypeError, KeyError, AttributeError) as fault:
            raise damaged(rollout_id, fault) from fault

    async def forget(self, rollout_id: str) -> None:
        """Removes a ticket of which nothing came."""
        await self._entries.remove(f"ticket/{rollout_id}")

    async def settle(self, kept: DictRecord, settled: StoredResult, *, free_key: bool) -> None:
        """Writes what came of a ticket. Of an answer longer than most_bytes a failure with the code `answer_too_large`."""
        answer, events = await asyncio.to_thread(lambda: (_packed(settled.answer), _packed(settled.events)))
        failure = settled.failure
        if len(events or b"") > self._most_bytes:
            self._warn("events", settled.rollout_id)
            events = None
        if len(answer or b"") > self._most_bytes:
            self._warn("answer", settled.rollout_id)
            answer, failure = None, self._too_large()
        parts = [*self._cut(settled.rollout_id, "answer", answer), *self._cut(settled.rollout_id, "events", events)]
        await _few_at_once([partial(self._entries.put, name, piece) for name, piece in parts])
        over = replace(
            kept, freed=free_key, failure=failure, answer=self._parts_of(answer), events=self._parts_of(events)
        )
        await self._entries.put(f"ticket/{settled.rollout_id}", over.to_bytes())

    async def settled(self, kept: DictRecord) -> StoredResult:
        """What `settle` wrote."""
        rollout_id = kept.ticket.rollout_id
        answer = await self._joined(rollout_id, "answer", kept.answer)
        events = await self._joined(rollout_id, "events", kept.events)
        return StoredResult(rollout_id, answer, kept.failure, events)

    def _parts_of(self, data: bytes | None) -> int | None:
        return None if data is None else -(-len(data) // self._part_bytes)

    def _cut(self, rollout_id: str, what: str, data: bytes | None) -> Iterable[tuple[str, bytes]]:
        for number, start in enumerate(range(0, len(data or b""), self._part_bytes)):
            yield f"part/{rollout_id}/{what}/{number}", (data or b"")[start : start + self._part_bytes]

    async def _joined(self, rollout_id: str, what: str, parts: int | None) -> bytes | None:
        if parts is None:
            return None
        names = [f"part/{rollout_id}/{what}/{number}" for number in range(parts)]
        found = await _few_at_once([partial(self._entries.get, name) for name in names])
        try:
            return await asyncio.to_thread(lambda: zlib.decompress(b"".join(piece or b"" for piece in found)))
        except zlib.error as fault:
            raise damaged(rollout_id, fault) from fault

    def _warn(self, what: str, rollout_id: str) -> None:
        most = self._most_bytes // 2**20
        log.warning("%s not kept: longer than %d MiB packed rollout_id=%s", what, most, rollout_id)

    def _too_large(self) -> Failure:
        return Failure(
            "cancelled",
            "answer_too_large",
            f"the rollout was played, but its answer is longer than the {self._most_bytes // 2**20} MiB that are kept "
            "for who asks again or later; who asked first was given it",
            "Wait for the answer in the request itself, ask for less in it, or serve with a store.",
            error_id=uuid.uuid4().hex[:12],
        )


async def _few_at_once(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    line = asyncio.Semaphore(AT_ONCE)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with line:
            return await call()

    return list(await asyncio.gather(*map(one, calls)))


def _packed(text: bytes | None) -> bytes | None:
    return None if text is None else zlib.compress(text, 1)


def damaged(rollout_id: str, fault: Exception) -> StoreError:
    """What to raise when an entry of a rollout cannot be read."""
    return StoreError(
        f"what came of rollout {rollout_id!r} is in the modal.Dict but cannot be read: {type(fault).__name__}.",
        hint="Send the request again under a new Idempotency-Key.",
    )
