"""The entries of a rollout in a modal.Dict: its idempotency record, and the parts of its compressed result.

    ticket/ROLLOUT          the record: its owner, or its result (JSON)
    part/ROLLOUT/WHAT/N     the answer and the events

The parts are written before the record that lists them, so a reader sees either a running rollout or a complete result.
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
from typing import Any, TypeVar

from taskapp_kit.errors import Failure, StoreError
from taskapp_kit.records.protocols import IdempotencyRecord, StoredResult

CALL_SECONDS = 30.0
"""The time limit of a call to the Dict in seconds, including retries by Modal's client."""


class ModalEntries:
    """A named modal.Dict, which is created on first use. Keys are strings and values are bytes, so nothing is pickled.

    All methods raise StoreError if a call fails. The message contains the type of Modal's error, never its text.
    """

    def __init__(self, name: str, *, client: Any = None) -> None:
        """Store the name. `client` is a `modal.Client`, by default the client of the process."""
        self.name = name
        self._client = client
        self._dict: Any = None

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None if the entry does not exist."""
        value = await self._call("read", lambda found: found.get.aio(key))
        if value is not None and not isinstance(value, bytes):
            raise StoreError(
                f"the entry {key!r} in the modal.Dict {self.name!r} was not written by this app.",
                hint="Use a separate Dict for each app.",
            )
        return value

    async def put(self, key: str, value: bytes) -> None:
        """Put the entry. An existing entry is replaced."""
        await self._call("write", lambda found: found.put.aio(key, value))

    async def put_if_absent(self, key: str, value: bytes) -> bool:
        """Put the entry unless it exists. Return whether it was put. Only one of several concurrent calls succeeds."""
        return bool(await self._call("write", lambda found: found.put.aio(key, value, skip_if_exists=True)))

    async def remove(self, key: str) -> None:
        """Remove the entry if it exists."""
        await self._call("write", lambda found: found.pop.aio(key, None))

    async def _call(self, verb: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
        import modal

        try:
            async with asyncio.timeout(CALL_SECONDS):
                if self._dict is None:  # created on first use, because a memory snapshot must not contain it
                    self._dict = modal.Dict.from_name(self.name, create_if_missing=True, client=self._client)
                return await call(self._dict)
        except Exception as error:  # Modal's client also raises exceptions of its gRPC library
            raise StoreError(
                f"the modal.Dict {self.name!r} could not be {'read' if verb == 'read' else 'written'}: "
                f"{type(error).__name__}.",
                hint="Send the request again. If it fails again, check the Dict: modal dict list",
            ) from error


log = logging.getLogger("taskapp_kit.deploy")

T = TypeVar("T")

PART_BYTES = 2**20
"""The size of a part. Modal's server rejects requests that are too large, and Modal advises against large values."""
MOST_BYTES = 64 * 2**20
"""The maximum size of a compressed answer, and of its compressed events. See `DictRecords.settle`."""
AT_ONCE = 4
"""The maximum number of parts that are read or written concurrently, so that long answers do not block other calls."""


@dataclass(frozen=True, slots=True)
class DictRecord:
    """A `StoredEntry` in a modal.Dict.

    Attributes:
        ticket: The idempotency record.
        claim: The id of this write, with which the writer recognizes its own record.
        owner: The container that owns the record (`holder` in JSON).
        beat: How often the owner had renewed its lease at the time of the claim.
        freed: Whether the key can be claimed again.
        failure: The failure of the rollout, or None if it has not failed.
        answer: The number of parts of the answer, or None if no answer is stored.
        events: The number of parts of the events, or None if events are not stored.
    """

    ticket: IdempotencyRecord
    claim: str
    owner: str
    beat: int
    freed: bool = False
    failure: Failure | None = None
    answer: int | None = None
    events: int | None = None

    @property
    def settled(self) -> bool:
        """Whether the rollout has a result."""
        return self.failure is not None or self.answer is not None

    def to_bytes(self) -> bytes:
        """Encode the record as JSON."""
        stored = asdict(self)
        stored["holder"] = stored.pop("owner")
        return json.dumps(stored).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> DictRecord:
        """Decode a record. Raises ValueError, TypeError, KeyError or AttributeError for invalid data."""
        stored = json.loads(data)
        failure = stored.pop("failure")
        return cls(
            IdempotencyRecord(**stored.pop("ticket")),
            owner=stored.pop("holder"),
            failure=None if failure is None else Failure(**failure),
            **stored,
        )


class DictRecords:
    """Records and results by rollout. All methods raise StoreError if a call to the Dict fails."""

    def __init__(self, entries: ModalEntries) -> None:
        self._entries = entries

    async def put_new(self, record: DictRecord) -> bool:
        """Put the record unless the rollout already has a record. Return whether `record` is now stored."""
        rollout_id = record.ticket.rollout_id
        if await self._entries.put_if_absent(f"ticket/{rollout_id}", record.to_bytes()):
            return True
        there = await self.read(rollout_id)  # the client may have repeated a put whose response was lost
        return there is not None and there.claim == record.claim

    async def read(self, rollout_id: str) -> DictRecord | None:
        """Return the record, or None if it does not exist."""
        data = await self._entries.get(f"ticket/{rollout_id}")
        if data is None:
            return None
        try:
            return DictRecord.from_bytes(data)
        except (ValueError, TypeError, KeyError, AttributeError) as fault:
            raise damaged(rollout_id, fault) from fault

    async def remove(self, rollout_id: str) -> None:
        """Remove a record without a result."""
        await self._entries.remove(f"ticket/{rollout_id}")

    async def settle(self, record: DictRecord, settled: StoredResult) -> None:
        """Write the result. For an answer longer than MOST_BYTES, write the failure `answer_too_large`."""
        answer, events = await asyncio.to_thread(lambda: (_compressed(settled.answer), _compressed(settled.events)))
        failure = settled.failure
        if len(events or b"") > MOST_BYTES:
            self._warn("events", settled.rollout_id)
            events = None
        if len(answer or b"") > MOST_BYTES:
            self._warn("answer", settled.rollout_id)
            answer, failure = None, self._too_large()
        parts = [*self._cut(settled.rollout_id, "answer", answer), *self._cut(settled.rollout_id, "events", events)]
        await _few_at_once([partial(self._entries.put, name, piece) for name, piece in parts])
        over = replace(record, failure=failure, answer=self._parts_of(answer), events=self._parts_of(events))
        await self._entries.put(f"ticket/{settled.rollout_id}", over.to_bytes())

    async def result(self, record: DictRecord) -> StoredResult:
        """Read the result that `settle` wrote."""
        rollout_id = record.ticket.rollout_id
        answer = await self._joined(rollout_id, "answer", record.answer)
        events = await self._joined(rollout_id, "events", record.events)
        return StoredResult(rollout_id, answer, record.failure, events)

    def _parts_of(self, data: bytes | None) -> int | None:
        return None if data is None else -(-len(data) // PART_BYTES)

    def _cut(self, rollout_id: str, what: str, data: bytes | None) -> Iterable[tuple[str, bytes]]:
        for number, start in enumerate(range(0, len(data or b""), PART_BYTES)):
            yield f"part/{rollout_id}/{what}/{number}", (data or b"")[start : start + PART_BYTES]

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
        most = MOST_BYTES // 2**20
        log.warning("%s not stored, because the compressed size exceeds %d MiB rollout_id=%s", what, most, rollout_id)

    def _too_large(self) -> Failure:
        return Failure(
            "cancelled",
            "answer_too_large",
            f"the rollout was played and the first request received its answer, but the answer exceeds the "
            f"{MOST_BYTES // 2**20} MiB that are stored for repeated and later requests",
            "Use the response of the first request, request a smaller one, or serve with a store.",
            error_id=uuid.uuid4().hex[:12],
        )


async def _few_at_once(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with limit:
            return await call()

    return list(await asyncio.gather(*map(one, calls)))


def _compressed(text: bytes | None) -> bytes | None:
    return None if text is None else zlib.compress(text, 1)


def damaged(rollout_id: str, fault: Exception) -> StoreError:
    """Return the error for a rollout's entry that cannot be decoded."""
    return StoreError(
        f"the result of rollout {rollout_id!r} in the modal.Dict cannot be read: {type(fault).__name__}.",
        hint="Send the request again with a new Idempotency-Key.",
    )
