"""Idempotency records: one algorithm for records in SQL, in a modal.Dict, and in memory.

A claim puts its record if neither its rollout id nor its idempotency key exists. Otherwise it reads the record that has the
key, and returns it if its rollout runs or has a result. A record that is lost or expired, or that gave up its key, is taken
over: the claim puts its own record again, now in place of exactly the record that it read. Of several concurrent claims
one succeeds, and the others read again.

The process that claimed a record owns it until it is settled or released, and renews its lease meanwhile. A record without a
result, whose lease ran out or whose owner certainly died, is lost. An owner that was only slow may still settle its
record after a takeover: the key stays with the new rollout, and both have run. No lease can prevent that.

The three stores implement how a record is put, read, and written, and how an owner shows that it is alive.
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
"""How long an idempotency record is stored, and with it the result of its rollout."""
CLAIM_TRIES = 20
"""How often a claim tries to take a key over while other claims take it first and give it up again."""

T = TypeVar("T")
State = Literal["running", "lost", "settled"]


class StoredEntry(Protocol):
    """A stored record."""

    @property
    def ticket(self) -> IdempotencyRecord:
        """The record that was claimed."""
        ...

    @property
    def owner(self) -> str:
        """The `LeasedIdempotencyStore.owner` that claimed it."""
        ...

    @property
    def settled(self) -> bool:
        """Whether it has a result."""
        ...

    @property
    def freed(self) -> bool:
        """Whether its key may be claimed again."""
        ...


Entry = TypeVar("Entry", bound=StoredEntry)


class LeasedIdempotencyStore(ABC, Generic[Entry]):
    """The algorithm of an `IdempotencyStore`. Use it on one event loop.

    place: the store's name in messages. log: where failing renewals are reported. lease_seconds: how long a lease
    lasts. renew_seconds: how often the leases of all owned records are renewed; None where no lease is needed.
    owner: a name of its own for each store that claims, drawn at the first claim, so that processes that were restored
    from one memory snapshot are not the same owner.
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
        self._being_settled: set[str] = set()  # of those that are owned, while their results are written
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    # -- the protocol ----------------------------------------------------------------------------------------------

    async def claim(self, ticket: IdempotencyRecord, *, keep_lost: bool = False) -> Claim | None:
        """See `IdempotencyStore`. A caller that is cancelled meanwhile owns nothing."""
        self._check_open()
        if ticket.rollout_id in self._owned:
            raise self._duplicate(ticket.rollout_id)
        if not self.owner:
            self.owner = uuid.uuid4().hex
            if self._renew_seconds is not None:
                self._renewing = asyncio.create_task(
                    self._renew_often(self._renew_seconds), name="taskapp-idempotency-leases"
                )
        # Before it is put, so that its lease is renewed and the same id is refused meanwhile.
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
        """See `IdempotencyStore`. A caller that is cancelled meanwhile does not undo it.

        After a StoreError the record is no longer owned, and is lost when its lease ends. Nothing is stored for a record
        that is older than RECORD_SECONDS by now.
        """
        self._check_open()
        rollout_id = settled.rollout_id
        if (settled.answer is None) == (settled.failure is None):
            raise StoreError(f"rollout {rollout_id!r} is settled with an answer or a failure: exactly one.")
        ticket = self._owned.get(rollout_id)
        if ticket is None or rollout_id in self._being_settled:
            raise StoreError(
                f"rollout {rollout_id!r} cannot be settled: this process owns no unsettled record of it in {self._place}."
            )
        if not self._is_current(ticket):
            del self._owned[rollout_id]
            return
        self._being_settled.add(rollout_id)
        writing = self._write_result(ticket, settled, free_key)
        writing.add_done_callback(lambda _: self._disown(rollout_id))
        # The rollout was played and paid for: its result is written although the caller may be gone.
        await asyncio.shield(writing)

    async def release(self, rollout_id: str) -> None:
        """See `IdempotencyStore`. Does nothing for a record that this process does not own."""
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
        """Gives up the records that this process still owns: they are lost. A second call does nothing."""
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
            self._log.warning("running rollouts could not be given up, their leases end by themselves: %s", error)
        finally:
            await self._close()

    # -- the algorithm ---------------------------------------------------------------------------------------------

    async def _claim(self, ticket: IdempotencyRecord, keep_lost: bool) -> Claim | None:
        over: Entry | None = None
        for _ in range(CLAIM_TRIES):
            # Every decision is this one put: a modal.Dict has neither transactions nor compare-and-set.
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
        """The record as it is now, and its state; None when there is none, or when it expired."""
        for look_again in (True, False):
            if entry is None or not self._is_current(entry.ticket):
                return None
            if entry.settled:
                return entry, "settled"
            owned_here = entry.owner == self.owner and entry.ticket.rollout_id in self._owned
            if owned_here or await self._is_alive(entry):
                return entry, "running"
            if look_again:  # an owner settles first and leaves then: what was read may be older than both
                entry = await self._read(entry.ticket.rollout_id)
        return None if entry is None else (entry, "lost")

    async def _found(self, entry: Entry, state: State) -> Claim:
        return Claim(entry.ticket, state, await self._result(entry) if state == "settled" else None)

    def _is_current(self, ticket: IdempotencyRecord) -> bool:
        """Whether it is younger than RECORD_SECONDS, and not from the future (written by a wrong clock)."""
        age_seconds = self._clock.now() - ticket.created_at
        return -RECORD_SECONDS <= age_seconds < RECORD_SECONDS

    def _lease_holds(self, until: float) -> bool:
        """A lease that ends later than any owner could have written is from before a clock was set back."""
        now = self._clock.now()
        return now < until <= now + 2 * self._lease_seconds

    async def _renew_often(self, seconds: float) -> None:
        failing, idle = False, True
        while True:
            await asyncio.sleep(seconds)
            if not self._owned and idle:
                continue
            idle = not self._owned  # once more after the last, so that a record that could not be settled is lost soon
            try:
                await self._renew()
                failing = False
            except StoreError as error:
                if not failing:
                    self._log.warning("leases of %d running rollouts were not renewed: %s", len(self._owned), error)
                failing, idle = True, False

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that goes on when its caller is cancelled; `close` waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())  # its caller may be gone
        return task

    def _disown(self, rollout_id: str) -> None:
        self._being_settled.discard(rollout_id)
        self._owned.pop(rollout_id, None)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the idempotency records in {self._place} are closed.", hint="Restart the server.")

    def _duplicate(self, rollout_id: str) -> StoreError:
        return StoreError(
            f"a record of rollout {rollout_id!r} is in {self._place} already.",
            hint="Give the new rollout its own rollout_id.",
        )

    def _contended(self, rollout_id: str) -> StoreError:
        return StoreError(
            f"rollout {rollout_id!r} could not claim its Idempotency-Key: other requests take it and give it up.",
            hint="Send the request again.",
        )

    # -- to be implemented by a store ------------------------------------------------------------------------------

    @abstractmethod
    async def _put_if_absent(self, ticket: IdempotencyRecord, over: Entry | None) -> Entry | None:
        """Puts the record and returns None; where its key is taken, puts nothing and returns the entry that has it.

        over: the key may be taken from this entry, if it is unchanged. A caller that is cancelled leaves no record.
        Raises StoreError, for a rollout id that is there already too (`_duplicate`).
        """

    @abstractmethod
    async def _read(self, rollout_id: str) -> Entry | None:
        """The entry of this rollout. Raises StoreError."""

    @abstractmethod
    async def _result(self, entry: Entry) -> StoredResult:
        """The result of a settled entry. Raises StoreError."""

    @abstractmethod
    async def _is_alive(self, entry: Entry) -> bool:
        """Whether an owner, which is not this one or does not own the entry any more, shows that it is alive."""

    @abstractmethod
    def _write_result(self, ticket: IdempotencyRecord, settled: StoredResult, free_key: bool) -> asyncio.Future[Any]:
        """Writes the result of an owned record. Goes on when its caller is cancelled. Raises StoreError."""

    @abstractmethod
    async def _remove(self, rollout_id: str) -> None:
        """Removes an owned record that has no result. Raises StoreError."""

    @abstractmethod
    async def _renew(self) -> None:
        """Renews the leases of all owned records. Raises StoreError."""

    @abstractmethod
    async def _give_up(self, rollout_ids: list[str]) -> None:
        """Ends the leases of these records, which were owned until now. Raises StoreError."""

    async def _close(self) -> None:
        """Releases connections and memory."""
        return
