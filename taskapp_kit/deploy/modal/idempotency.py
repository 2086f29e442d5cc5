"""Tickets in a modal.Dict: what holds Idempotency-Keys and results together when several containers serve one app.

A Dict offers three things that no two containers can do at once: put if absent, put, pop. There is no transaction and
no compare-and-set. So nothing here is ever taken away while somebody may be reading it, and every decision between
containers is one put if absent:

    key/KEY            the id of the first rollout that was asked for under this key
    next/ROLLOUT       the id of the rollout that took the key over from ROLLOUT
    holder/HOLDER      a container: until when it lives, and the rollouts that it holds (JSON)
    ticket/, part/     a rollout's ticket and what came of it: see idempotency_record.py

A key's rollouts are a chain: `key`, then `next` after `next`. Its last one has the key. Who wants the key reads to the
end. There he finds a rollout that runs or is settled: that is the answer. Or one that gave the key back, was lost, or is
a day old: then he puts his own id as its `next`, if absent. Of all who try, one succeeds; the others read on.

The races, one by one:

- Two claim a free key: one `key` is put, the other reads it.
- Two find the same holder lost: one `next` is put. (Popping `key` instead could remove the winner's, just put.)
- A holder that was only slow comes back after its ticket was taken over: it settles its own ticket, which nobody else
  writes; the key stays with the new one. Both rollouts ran. No lease can prevent that; the lease is long against it.
- The client's own repetition of a put if absent, whose answer was lost, says "exists". So what is put names the claim,
  and "exists" is read back: what we put ourselves is a success.
- A claim that dies between ticket and chain leaves a ticket that nobody points to: it is lost, and expires.
- A chain's end without a ticket: it was released, or expired. The key is free: a ticket is always put before its link.
- Settling writes the parts before the ticket that names them: a reader sees either a running rollout or a whole answer.
- A rollout is settled, and its holder ends or lets go of it, between a reader's look at the ticket and his look at the
  holder: it would seem lost. So who finds no holder looks at the ticket once more; letting go comes after settling.

A holder renews one entry for all that it holds. A ticket counts as held while that entry lives and either lists it or
is older than the ticket (`beat`): the first renewal after a claim lists it. Death is known by the lease alone.

Modal removes an entry after seven days in which nobody read or wrote it, so nothing is swept here. What Modal does not
write down is whether a read in one container sees at once what another has put; this is written for a Dict where it does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Literal, TypeVar

from taskapp_kit.contract.protocols import TICKET_SECONDS, Claim, Clock, IdempotencyRecord, StoredResult
from taskapp_kit.deploy.modal.dict_entries import Entries
from taskapp_kit.deploy.modal.idempotency_record import MOST_BYTES, PART_BYTES, DictRecord, DictRecords, damaged
from taskapp_kit.errors import StoreError

log = logging.getLogger("taskapp_kit.deploy")

T = TypeVar("T")
State = Literal["running", "lost", "settled"]

LEASE_SECONDS = 30.0
"""How long a container counts as alive after it last said so."""
RENEW_SECONDS = 8.0
"""How often it says so, while it holds a ticket."""
LONGEST_CHAIN = 10_000


class ModalIdempotencyStore:
    """An `IdempotencyStore` over the entries of a modal.Dict. Use it on one event loop; any number may share a Dict.

    renew_seconds: how often what it holds is renewed. part_bytes, most_bytes: see PART_BYTES, MOST_BYTES. Who holds is
    named at the first claim, so that containers restored from one memory snapshot are not the same one.
    """

    def __init__(
        self,
        entries: Entries,
        clock: Clock,
        *,
        renew_seconds: float = RENEW_SECONDS,
        part_bytes: int = PART_BYTES,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._entries = entries
        self._shelf = DictRecords(entries, part_bytes=part_bytes, most_bytes=most_bytes)
        self._clock = clock
        self._renew_seconds = renew_seconds
        self._holder = ""
        self._beat = 0
        self._beaten_at: float | None = None
        self._beating: asyncio.Task[None] | None = None
        self._held: dict[str, DictRecord | None] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def claim(self, ticket: IdempotencyRecord) -> Claim | None:
        """Keeps the ticket as held by this process, and answers None; when its key is taken, answers who has it.

        A caller that is cancelled meanwhile holds nothing. Raises StoreError.
        """
        self._open()
        if ticket.rollout_id in self._held:
            raise _known(ticket.rollout_id)
        self._held[ticket.rollout_id] = None
        work = self._undertaken(self._claim(ticket))
        try:
            found = await asyncio.shield(work)
        except asyncio.CancelledError:
            self._undertaken(self._let_go_after(work, ticket.rollout_id))
            raise
        except BaseException:
            self._held.pop(ticket.rollout_id, None)
            raise
        if found is not None:
            self._held.pop(ticket.rollout_id, None)
        return found

    async def settle(self, settled: StoredResult, *, free_key: bool = False) -> None:
        """What came of a ticket that this process holds; when this returns, Modal has it.

        A caller that is cancelled meanwhile does not undo it. After a StoreError the ticket is no longer held, and is
        lost when the next renewal is out. Nothing is kept of a ticket that is older than TICKET_SECONDS by now. Of an
        answer longer than most_bytes a failure is kept, whose code is `answer_too_large`: who asks later learns that
        the rollout was played, and that its answer is not here; it is not played again under its key.
        """
        self._open()
        if (settled.answer is None) == (settled.failure is None):
            raise StoreError(f"rollout {settled.rollout_id!r} is settled with an answer or a failure: exactly one.")
        kept = self._held.pop(settled.rollout_id, None)
        if kept is None:
            raise StoreError(
                f"rollout {settled.rollout_id!r} cannot be settled: no such ticket is held by this container."
            )
        if self._fresh(kept.ticket):
            self._held[settled.rollout_id] = kept  # until it is out, so that it is not lost meanwhile
            work = self._undertaken(self._settle(kept, settled, free_key))
            await asyncio.shield(work)

    async def release(self, rollout_id: str) -> None:
        """Forgets a ticket that this process holds, whose rollout never began. Does nothing for any other."""
        self._open()
        if self._held.get(rollout_id) is not None:
            try:
                await self._shelf.forget(rollout_id)
            finally:
                self._held.pop(rollout_id, None)

    async def look(self, rollout_id: str) -> Claim | None:
        """The ticket of this rollout; None when there is none, or no more. Raises StoreError."""
        self._open()
        kept, state = await self._standing(rollout_id)
        return None if kept is None else await self._found(kept, state)

    async def close(self) -> None:
        """Tickets that this process still holds are lost from now on. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._renewing is not None:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing
        if self._tasks:
            await asyncio.wait(self._tasks)
        held = bool(self._held)
        self._held.clear()
        if held:
            try:
                await self._entries.remove(f"holder/{self._holder}")
            except StoreError as error:
                log.warning("running rollouts could not be given up, their leases end by themselves: %s", error)

    def _open(self) -> None:
        if self._closed:
            raise StoreError("the tickets in the modal.Dict are closed.", hint="Restart the container.")

    def _undertaken(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that goes on when who began it leaves."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())  # told to who waits
        return task

    # -- claiming -------------------------------------------------------------------------------------------------

    async def _claim(self, ticket: IdempotencyRecord) -> Claim | None:
        if ticket.key is None:
            await self._put_ticket(ticket)
            return None
        place, found = await self._end_of(f"key/{ticket.key}")
        if found is not None:
            return found
        await self._put_ticket(ticket)
        try:
            while found is None and not await self._linked(place, ticket.rollout_id):
                place, found = await self._end_of(place)
        except BaseException:
            with suppress(StoreError):
                await self._shelf.forget(ticket.rollout_id)
            raise
        if found is not None:
            await self._shelf.forget(ticket.rollout_id)
        return found

    async def _let_go_after(self, claim: asyncio.Task[Claim | None], rollout_id: str) -> None:
        """The caller of a claim has left: if it won, it gives back what it won."""
        with suppress(StoreError):
            if await claim is None:
                await self._shelf.forget(rollout_id)
        self._held.pop(rollout_id, None)

    async def _put_ticket(self, ticket: IdempotencyRecord) -> None:
        await self._be_alive()
        kept = DictRecord(ticket, uuid.uuid4().hex, self._holder, self._beat)
        if not await self._shelf.put_new(kept):
            raise _known(ticket.rollout_id)
        self._held[ticket.rollout_id] = kept

    async def _linked(self, place: str, rollout_id: str) -> bool:
        if await self._entries.put_if_absent(place, rollout_id.encode()):
            return True
        return await self._entries.get(place) == rollout_id.encode()

    async def _end_of(self, place: str) -> tuple[str, Claim | None]:
        """(where the next link goes, None), or (the last link, the rollout that has the key) when one has it."""
        for _ in range(LONGEST_CHAIN):
            last = await self._entries.get(place)
            if last is None:
                return place, None
            name = last.decode("utf-8", "replace")
            after = f"next/{name}"
            if await self._entries.get(after) is None:
                kept, state = await self._standing(name)
                if kept is None or kept.freed or state == "lost":
                    return after, None
                return place, await self._found(kept, state)
            place = after
        raise StoreError("an Idempotency-Key was taken over too often.", hint="Use a new key.")

    # -- reading --------------------------------------------------------------------------------------------------

    async def _standing(self, rollout_id: str) -> tuple[DictRecord | None, State]:
        """A ticket, and how it stands; (None, "lost") when there is none, or no more."""
        kept = await self._fresh_ticket(rollout_id)
        if kept is None or kept.settled or await self._alive(kept):
            return kept, "lost" if kept is None else "settled" if kept.settled else "running"
        # Its holder lets go of it only after it is settled: what was read first may be older than that.
        kept = await self._fresh_ticket(rollout_id)
        return kept, "settled" if kept is not None and kept.settled else "lost"

    async def _fresh_ticket(self, rollout_id: str) -> DictRecord | None:
        kept = await self._shelf.read(rollout_id)
        return kept if kept is not None and self._fresh(kept.ticket) else None

    async def _found(self, kept: DictRecord, state: State) -> Claim:
        return Claim(kept.ticket, state, await self._shelf.settled(kept) if state == "settled" else None)

    async def _alive(self, kept: DictRecord) -> bool:
        """Whether its holder lives, and holds it."""
        if kept.holder == self._holder:
            return kept.ticket.rollout_id in self._held
        data = await self._entries.get(f"holder/{kept.holder}")
        if data is None:
            return False
        try:
            holder = json.loads(data)
            until, beat, held = float(holder["until"]), int(holder["beat"]), holder["held"]
        except (ValueError, TypeError, KeyError) as fault:
            raise damaged(kept.ticket.rollout_id, fault) from fault
        now = self._clock.now()
        # A lease that ends later than any holder could have said was written before a clock was set back.
        if not now < until <= now + 2 * LEASE_SECONDS:
            return False
        return kept.beat >= beat or kept.ticket.rollout_id in held

    def _fresh(self, ticket: IdempotencyRecord) -> bool:
        age_seconds = self._clock.now() - ticket.created_at
        return -TICKET_SECONDS <= age_seconds < TICKET_SECONDS

    # -- settling, and staying alive ------------------------------------------------------------------------------

    async def _settle(self, kept: DictRecord, settled: StoredResult, free_key: bool) -> None:
        try:
            await self._shelf.settle(kept, settled, free_key=free_key)
        finally:
            self._held.pop(settled.rollout_id, None)

    async def _be_alive(self) -> None:
        """Our holder's entry is there, and says that we live."""
        if self._renewing is None:
            self._holder = uuid.uuid4().hex
            self._renewing = asyncio.create_task(self._renew_often(), name="taskapp-tickets-renewal")
        if self._beating is not None and not self._beating.done():
            await asyncio.shield(self._beating)
        now = self._clock.now()
        if self._beaten_at is None or not 0 <= now - self._beaten_at < LEASE_SECONDS / 2:
            if self._beating is None or self._beating.done():
                self._beating = self._undertaken(self._renew())
            await asyncio.shield(self._beating)

    async def _renew(self) -> None:
        self._beat += 1  # with the list, in one step: who claims from now on has this beat or is on the list
        now = self._clock.now()
        told = {"until": now + LEASE_SECONDS, "beat": self._beat, "held": sorted(self._held)}
        await self._entries.put(f"holder/{self._holder}", json.dumps(told).encode())
        self._beaten_at = now

    async def _renew_often(self) -> None:
        failing, idle = False, True
        while True:
            await asyncio.sleep(self._renew_seconds)
            if not self._held and idle:
                continue
            idle = not self._held  # once more after the last one, so that one that was given up is lost soon
            try:
                await self._renew()
                failing = False
            except StoreError as error:
                if not failing:
                    log.warning("leases of %d running rollouts were not renewed: %s", len(self._held), error)
                failing, idle = True, False


def _known(rollout_id: str) -> StoreError:
    return StoreError(
        f"a ticket for rollout {rollout_id!r} is in the modal.Dict already.",
        hint="Give the new rollout its own rollout_id.",
    )
