"""Idempotency records: one algorithm for records in SQL, in a modal.Dict, and in memory.

A claim puts its record if neither the rollout id nor the idempotency key exists. Otherwise the claim reads the existing
record with this key, and returns it if the record's rollout is running or has a result. If the existing record is lost or
expired, or has given up its key, the claim takes the key over: it puts its record again, on the condition that the existing
record is unchanged. If several claims compete, one succeeds, and the others read again.

The process that claimed a record owns the record and renews its lease until the record is settled or released. A record
without a result is lost if its lease has expired or its owner has certainly died. If an owner was only slow, it may still
settle its record after another claim took the key over. The key then belongs to the new rollout, and both rollouts have run.
No lease can prevent this.

The three stores implement how records are put, read and written, and how to find out whether an owner is alive.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Generic, Literal, Protocol, TypeVar

from taskapp_kit.errors import StoreError
from taskapp_kit.records.protocols import Claim, Clock, IdempotencyRecord, StoredResult

RECORD_SECONDS = 24 * 3600.0
"""How long an idempotency record and the result of its rollout are stored, in seconds."""
CLAIM_TRIES = 20
"""How often a claim tries to take over a key that competing claims take and release."""

T = TypeVar("T")
State = Literal["running", "lost", "settled"]


class StoredEntry(Protocol):
    """An idempotency record as it is stored."""

    @property
    def ticket(self) -> IdempotencyRecord:
        """Return the claimed record."""
        ...

    @property
    def owner(self) -> str:
        """Return the `LeasedIdempotencyStore.owner` that claimed the record."""
        ...

    @property
    def settled(self) -> bool:
        """Return whether the record has a result."""
        ...

    @property
    def freed(self) -> bool:
        """Return whether the record's key may be claimed again."""
        ...


Entry = TypeVar("Entry", bound=StoredEntry)


class LeasedIdempotencyStore(ABC, Generic[Entry]):
    """The algorithm of an `IdempotencyStore`. An object must be used on only one event loop.

    Attributes:
        place: The store's name in messages.
        log: The logger for failed renewals.
        lease_seconds: How long a lease lasts.
        renew_seconds: The interval between renewals of all owned leases, or None if no leases are needed.
        owner: A random name of this store object. It is chosen at the first claim, so that processes that were restored
            from the same memory snapshot have different names.
    """

    def __init__(
        self, clock: Clock, place: str, log: logging.Logger, *, lease_seconds: float, renew_seconds: float | None
    ) -> None:
        self.owner = ""
        self._clock = clock
        self._place = place
        self._log = log
        self._lease_seconds = lease_seconds
        self._renew_seconds = renew_seconds
        self._owned: dict[str, IdempotencyRecord] = {}
        self._being_settled: set[str] = set()  # ids of owned records whose results are being written
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    # -- the protocol ----------------------------------------------------------------------------------------------

    async def claim(self, ticket: IdempotencyRecord, *, keep_lost: bool = False) -> Claim | None:
        """See `IdempotencyStore`. If the caller is cancelled, this process does not own the record."""
        self._check_open()
        if ticket.rollout_id in self._owned:
            raise self._duplicate(ticket.rollout_id)
        if not self.owner:
            self.owner = uuid.uuid4().hex
            if self._renew_seconds is not None:
                self._renewing = asyncio.create_task(
                    self._renew_often(self._renew_seconds), name="taskapp-idempotency-leases"
                )
        # Own the record before it is put, so that its lease is renewed and the same id is rejected from now on.
        self._owned[ticket.rollout_id] = ticket
        claimed = False
        try:
            found = await self._claim(ticket, keep_lost)
            claimed = found is None
            return found
        finally:
            if not claimed:
                self._owned.pop(ticket.rollout_id, None)

    async def settle(self, settled: StoredResult, *, free_key: bool = False) -> None:
        """See `IdempotencyStore`. The result is written even if the caller is cancelled.

        After a StoreError, this process no longer owns the record, which is lost when its lease ends. Nothing is stored if
        the record is older than RECORD_SECONDS.
        """
        self._check_open()
        rollout_id = settled.rollout_id
        if (settled.answer is None) == (settled.failure is None):
            raise StoreError(f"Rollout {rollout_id!r} must be settled with either an answer or a failure.")
        ticket = self._owned.get(rollout_id)
        if ticket is None or rollout_id in self._being_settled:
            raise StoreError(
                f"Rollout {rollout_id!r} cannot be settled, because this process owns no unsettled record of it in {self._place}."
            )
        if not self._is_current(ticket):
            del self._owned[rollout_id]
            return
        self._being_settled.add(rollout_id)
        writing = self._write_result(ticket, settled, free_key)
        writing.add_done_callback(lambda _: self._disown(rollout_id))
        # The rollout may have cost money, so its result is written even if the caller is gone.
        await asyncio.shield(writing)

    async def release(self, rollout_id: str) -> None:
        """See `IdempotencyStore`. Do nothing if this process does not own the record."""
        self._check_open()
        if rollout_id in self._owned and rollout_id not in self._being_settled:
            try:
                await self._remove(rollout_id)
            finally:
                self._owned.pop(rollout_id, None)

    async def look(self, rollout_id: str) -> Claim | None:
        """See `IdempotencyStore`."""
        self._check_open()
        standing = await self._standing(await self._read(rollout_id))
        return None if standing is None else await self._found(*standing)

    async def close(self) -> None:
        """Give up the records that this process still owns. They are then lost. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._renewing is not None:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing
        if self._tasks:
            await asyncio.wait(self._tasks)
        owned = list(self._owned)
        self._owned.clear()
        try:
            if owned:
                await self._give_up(owned)
        except StoreError as error:
            self._log.warning(
                "the records of running rollouts could not be released before their leases end: %s", error
            )
        finally:
            await self._close()

    # -- the algorithm ---------------------------------------------------------------------------------------------

    async def _claim(self, ticket: IdempotencyRecord, keep_lost: bool) -> Claim | None:
        over: Entry | None = None
        for _ in range(CLAIM_TRIES):
            # This put is the only decision, because a modal.Dict has neither transactions nor compare-and-set.
            there = await self._put_if_absent(ticket, over)
            if there is None:
                return None
            standing = await self._standing(there)
            if standing is None:
                over = there
            elif standing[0].freed or (standing[1] == "lost" and not keep_lost):
                over = standing[0]
            else:
                return await self._found(*standing)
        raise self._contended(ticket.rollout_id)

    async def _standing(self, entry: Entry | None) -> tuple[Entry, State] | None:
        """Return the current record and its state, or None if the record does not exist or has expired."""
        for look_again in (True, False):
            if entry is None or not self._is_current(entry.ticket):
                return None
            if entry.settled:
                return entry, "settled"
            owned_here = entry.owner == self.owner and entry.ticket.rollout_id in self._owned
            if owned_here or await self._is_alive(entry):
                return entry, "running"
            if look_again:  # an owner settles its record before it ends, so read the record again
                entry = await self._read(entry.ticket.rollout_id)
        return None if entry is None else (entry, "lost")

    async def _found(self, entry: Entry, state: State) -> Claim:
        return Claim(entry.ticket, state, await self._result(entry) if state == "settled" else None)

    def _is_current(self, ticket: IdempotencyRecord) -> bool:
        """Return whether the record is younger than RECORD_SECONDS.

        Return False if a wrong clock dated the record more than RECORD_SECONDS into the future.
        """
        age_seconds = self._clock.now() - ticket.created_at
        return -RECORD_SECONDS <= age_seconds < RECORD_SECONDS

    def _lease_holds(self, until: float) -> bool:
        """Return whether a lease has not expired. A lease that ends too far in the future, due to a wrong clock, is invalid."""
        now = self._clock.now()
        return now < until <= now + 2 * self._lease_seconds

    async def _renew_often(self, seconds: float) -> None:
        failing, idle = False, True
        while True:
            await asyncio.sleep(seconds)
            if not self._owned and idle:
                continue
            # Renew once more after the last record is gone, so that an unsettled record is lost soon.
            idle = not self._owned
            try:
                await self._renew()
                failing = False
            except StoreError as error:
                if not failing:
                    self._log.warning("leases of %d running rollouts were not renewed: %s", len(self._owned), error)
                failing, idle = True, False

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start an asyncio task that continues if the caller is cancelled. `close` waits for the task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())  # the caller may be gone
        return task

    def _disown(self, rollout_id: str) -> None:
        self._being_settled.discard(rollout_id)
        self._owned.pop(rollout_id, None)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"The idempotency records in {self._place} are closed.", hint="Restart the server.")

    def _duplicate(self, rollout_id: str) -> StoreError:
        return StoreError(
            f"A record of rollout {rollout_id!r} already exists in {self._place}.",
            hint="Use a different rollout_id for the new rollout.",
        )

    def _contended(self, rollout_id: str) -> StoreError:
        return StoreError(
            f"Rollout {rollout_id!r} could not claim its Idempotency-Key, because other requests keep claiming it.",
            hint="Send the request again.",
        )

    # -- to be implemented by a store ------------------------------------------------------------------------------

    @abstractmethod
    async def _put_if_absent(self, ticket: IdempotencyRecord, over: Entry | None) -> Entry | None:
        """Put the record and return None. If its key is taken, put nothing and return the entry that has the key.

        If the caller is cancelled, no record remains. Raises StoreError if the rollout id exists (`_duplicate`) or if the
        store cannot be written.

        over: The entry that may lose its key to this record if the entry has not changed since it was read. None if no
        entry may lose its key.
        """

    @abstractmethod
    async def _read(self, rollout_id: str) -> Entry | None:
        """Return the entry of this rollout, or None if it does not exist. Raises StoreError if the store cannot be read."""

    @abstractmethod
    async def _result(self, entry: Entry) -> StoredResult:
        """Return the result of a settled entry. Raises StoreError if the store cannot be read."""

    @abstractmethod
    async def _is_alive(self, entry: Entry) -> bool:
        """Return whether the entry's owner is known to be alive.

        Called only if the owner is another object, or if the owner is this object but no longer owns the entry.
        """

    @abstractmethod
    def _write_result(self, ticket: IdempotencyRecord, settled: StoredResult, free_key: bool) -> asyncio.Future[Any]:
        """Write the result of an owned record, even if the caller is cancelled. Raises StoreError if this fails."""

    @abstractmethod
    async def _remove(self, rollout_id: str) -> None:
        """Remove an owned record that has no result. Raises StoreError if this fails."""

    @abstractmethod
    async def _renew(self) -> None:
        """Renew the leases of all owned records. Raises StoreError if this fails."""

    @abstractmethod
    async def _give_up(self, rollout_ids: list[str]) -> None:
        """End the leases of these records, which this process owned until now. Raises StoreError if this fails."""

    async def _close(self) -> None:
        """Release connections and memory."""
        return
