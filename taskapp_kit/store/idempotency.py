"""Tickets beside the rollouts, in the same database: claimed, settled and found by all processes that serve it.

Who holds a ticket renews its lease; a ticket whose lease is over, or whose holder is certainly dead, is lost.
Which of two claims wins, the unique index on `key` decides: each step holds also where others write at the same time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from contextlib import suppress
from dataclasses import asdict
from functools import partial

from taskapp_kit.contract.protocols import TICKET_SECONDS, Claim, Clock, IdempotencyRecord, StoredResult
from taskapp_kit.errors import StoreError
from taskapp_kit.store.batch_thread import BatchThread, Job
from taskapp_kit.store.database import Driver, SqlDatabase
from taskapp_kit.store.idempotency_rows import IdempotencyRow, read_row, settled_of, statements
from taskapp_kit.store.lease_owner import certainly_dead, this_process
from taskapp_kit.store.rows import packed

log = logging.getLogger("taskapp_kit.store")

LEASE_SECONDS = 15.0
"""How long a ticket counts as held after its holder last said so."""
RENEW_SECONDS = 5.0
"""How often a holder says so."""
PURGE_SECONDS = 3600.0
"""Old tickets are removed with the first claim, and with one when this long has passed since."""
PURGED_AT_ONCE = 100
"""Tickets removed in one transaction, so that nobody waits long for it."""

CLAIM_TRIES = 20
"""How often a claim looks again when others take the key and let it go between two of its statements."""


class SqlIdempotencyStore:
    """An `IdempotencyStore` in `database`. Use it on one event loop; several may share one database.

    renew_seconds: how often the leases of what it holds are renewed. `StoredResult.events` are not kept here: the table
    `rollouts` has them.
    """

    def __init__(self, database: SqlDatabase, clock: Clock, *, renew_seconds: float = RENEW_SECONDS) -> None:
        self._database = database
        self._clock = clock
        self._renew_seconds = renew_seconds
        self._say = statements(database.spelling)
        self._holder = uuid.uuid4().hex
        self._process = this_process()
        self._held: set[str] = set()
        self._closed = False
        self._renewing: asyncio.Task[None] | None = None
        self._purged_at: float | None = None
        self._turns = BatchThread(database, "taskapp-tickets")

    async def claim(self, ticket: IdempotencyRecord) -> Claim | None:
        """Keeps the ticket as held by this process, and answers None; when its key is taken, answers who has it.

        A caller that is cancelled meanwhile holds nothing. Raises StoreError.
        """
        self._open()
        if ticket.rollout_id in self._held:
            raise _known(ticket.rollout_id, self._database.place)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew_often(), name="taskapp-tickets-renewal")
        self._held.add(ticket.rollout_id)
        won = False
        try:
            found = await self._turns.do(partial(self._claim, ticket=ticket), order=ticket.key or "")
            won = found is None
        except asyncio.CancelledError:
            if not self._closed:  # it may have won: the next job lets go again
                self._turns.do(partial(self._release, rollout_id=ticket.rollout_id))
            raise
        finally:
            if not won:
                self._held.discard(ticket.rollout_id)
        if self._purged_at is None or self._clock.monotonic() - self._purged_at >= PURGE_SECONDS:
            self._purged_at = self._clock.monotonic()
            self._purge_some()
        return found

    async def settle(self, settled: StoredResult, *, free_key: bool = False) -> None:
        """What came of a ticket that this process holds; when this returns, it is on disk.

        A caller that is cancelled meanwhile does not undo it. After a StoreError the ticket is no longer held, and is
        lost when its lease is over. Nothing is kept of a ticket that is older than TICKET_SECONDS by now.
        """
        self._open()
        if (settled.answer is None) == (settled.failure is None):
            raise StoreError(f"rollout {settled.rollout_id!r} is settled with an answer or a failure: exactly one.")
        held = settled.rollout_id in self._held
        try:
            kept = await self._turns.do_prepared(lambda: self._settling(settled, free_key))
        finally:
            self._held.discard(settled.rollout_id)
        if not kept and not held:
            raise StoreError(
                f"rollout {settled.rollout_id!r} cannot be settled: this process holds no such ticket in the store "
                f"{self._database.place}."
            )

    async def release(self, rollout_id: str) -> None:
        """Forgets a ticket that this process holds, whose rollout never began. Does nothing for any other."""
        self._open()
        try:
            await self._turns.do(partial(self._release, rollout_id=rollout_id))
        finally:
            self._held.discard(rollout_id)

    async def look(self, rollout_id: str) -> Claim | None:
        """The ticket of this rollout; None when there is none, or no more. Raises StoreError."""
        self._open()
        return await self._turns.do(partial(self._look, rollout_id=rollout_id), writes=False)

    async def close(self) -> None:
        """Tickets that this process still holds are lost from now on. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._renewing is not None:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing
        try:
            if self._held:
                await self._turns.do(partial(self._renew, names=list(self._held), seconds=-LEASE_SECONDS))
        except StoreError as error:
            log.warning("running rollouts could not be given up, their leases end by themselves: %s", error)
        finally:
            self._held.clear()
            await self._turns.stop()

    def _open(self) -> None:
        if self._closed:
            raise StoreError(f"the tickets of the store {self._database.place} are closed.", hint="Restart the server.")

    async def _renew_often(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(self._renew_seconds)
            if not self._held:
                continue
            names = list(self._held)
            try:
                await self._turns.do(partial(self._renew, names=names, seconds=LEASE_SECONDS))
                failing = False
            except StoreError as error:
                if not failing:
                    log.warning("leases of %d running rollouts were not renewed: %s", len(names), error)
                failing = True

    def _purge_some(self) -> None:
        """Removes tickets that are too old, or from a future that a wrong clock foresaw: some now, the others next."""

        def then(purged: asyncio.Future[int]) -> None:
            if purged.cancelled() or self._closed:
                return
            if (error := purged.exception()) is not None:
                log.warning("old tickets were not removed: %s", error)
            elif purged.result() == PURGED_AT_ONCE:
                self._purge_some()

        self._turns.do(self._purge).add_done_callback(then)

    # What follows runs in the thread, inside a transaction.

    def _claim(self, connection: Driver, *, ticket: IdempotencyRecord) -> Claim | None:
        values = (ticket.rollout_id, ticket.fingerprint, ticket.created_at, ticket.key, ticket.key_label, ticket.app)
        for _ in range(CLAIM_TRIES):
            lease_until = self._clock.now() + LEASE_SECONDS
            if connection.execute(self._say.insert, [*values, self._holder, self._process, lease_until]).rowcount == 1:
                return None
            row = None if ticket.key is None else read_row(connection, self._say.by_key, ticket.key)
            if row is None:
                row = read_row(connection, self._say.by_id, ticket.rollout_id)
                if row is not None and not self._claimed_before(row, ticket):
                    raise _known(ticket.rollout_id, self._database.place)
            if row is None:
                continue  # who had the key let it go just now
            if self._claimed_before(row, ticket):
                return None
            found = self._found(row)
            if found is not None and found.state != "lost":
                return found
            settled_at = -1.0 if row.settled_at is None else row.settled_at
            connection.execute(self._say.free_key, [row.rollout_id, ticket.key, row.lease_until, settled_at])
        raise StoreError(
            f"rollout {ticket.rollout_id!r} could not have its Idempotency-Key: others take it and let it go.",
            hint="Ask again.",
        )

    def _claimed_before(self, row: IdempotencyRow, ticket: IdempotencyRecord) -> bool:
        """Whether this very claim got through before, when nobody could tell: the connection was lost in its commit."""
        asked = (row.rollout_id, row.fingerprint, row.created_at, row.key, row.holder, row.settled_at)
        return asked == (ticket.rollout_id, ticket.fingerprint, ticket.created_at, ticket.key, self._holder, None)

    def _look(self, connection: Driver, *, rollout_id: str) -> Claim | None:
        row = read_row(connection, self._say.by_id, rollout_id)
        return None if row is None else self._found(row)

    def _found(self, row: IdempotencyRow) -> Claim | None:
        """The ticket as it stands; None when it is too old, or from a future that a wrong clock foresaw."""
        now = self._clock.now()
        if not now - TICKET_SECONDS < row.created_at <= now + TICKET_SECONDS:
            return None
        ticket = IdempotencyRecord(*row[:6])
        if row.settled_at is not None:
            return Claim(ticket, "settled", settled_of(row))
        if row.holder == self._holder and ticket.rollout_id in self._held:
            return Claim(ticket, "running")
        # A lease that ends later than any holder could have said was written before the clock was set back.
        live = now < row.lease_until <= now + 2 * LEASE_SECONDS and not certainly_dead(row.process, self._process)
        return Claim(ticket, "running" if live else "lost")

    def _settling(self, settled: StoredResult, free_key: bool) -> Job[bool]:
        failure = None if settled.failure is None else json.dumps(asdict(settled.failure))
        encoding, answer = (None, None) if settled.answer is None else packed(settled.answer)

        def settle(connection: Driver) -> bool:
            values = (self._clock.now(), failure, encoding, answer, free_key, settled.rollout_id, self._holder)
            return connection.execute(self._say.settle, values).rowcount == 1

        return settle

    def _release(self, connection: Driver, *, rollout_id: str) -> None:
        connection.execute(self._say.release, [rollout_id, self._holder])

    def _renew(self, connection: Driver, *, names: list[str], seconds: float) -> None:
        connection.execute(self._say.renew, [self._clock.now() + seconds, json.dumps(names), self._holder])

    def _purge(self, connection: Driver) -> int:
        now = self._clock.now()
        return connection.execute(
            self._say.purge, [now - TICKET_SECONDS, now + TICKET_SECONDS, PURGED_AT_ONCE]
        ).rowcount


def _known(rollout_id: str, place: str) -> StoreError:
    return StoreError(
        f"a ticket for rollout {rollout_id!r} is in the store {place} already.",
        hint="Give the new rollout its own rollout_id.",
    )
