"""The protocol of tickets, rule by rule, for those in memory and those in a SQLite file; then what memory forgets."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from taskapp_kit.contract.protocols import (
    TICKET_SECONDS,
    Claim,
    Clock,
    IdempotencyRecord,
    IdempotencyStore,
    StoredResult,
)
from taskapp_kit.errors import Failure, StoreError
from taskapp_kit.rollout.idempotency_memory import TICKET_BYTES, MemoryIdempotencyStore
from taskapp_kit.store.sqlite import SqliteStore

Use = Callable[[IdempotencyStore, "HandClock"], Awaitable[None]]
Kept = Callable[[Use], None]

FAILURE = Failure(
    "policy", "model_down", 'the model said "no" to \ud800 and é\0', "Ask again.", "e1", {"status": "503", "ü": ""}
)


class HandClock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


def ticket(
    rollout_id: str, key: str | None = "key", *, body: str = "body", at: float = 1_000_000.0
) -> IdempotencyRecord:
    return IdempotencyRecord(rollout_id, body, at, key, "blue")


@pytest.fixture(params=["memory", "file"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    """Runs `use(coordinator, clock)` on an event loop, for each implementation."""

    async def run(use: Use) -> None:
        clock = HandClock()
        store = SqliteStore(tmp_path / "rollouts.db") if request.param == "file" else None
        coordinator: IdempotencyStore | None = store.coordinator(clock) if store else MemoryIdempotencyStore(clock)
        assert coordinator is not None
        try:
            await use(coordinator, clock)
        finally:
            await coordinator.close()
            await coordinator.close()  # a second call does nothing
            if store is not None:
                await store.close()

    return lambda use: asyncio.run(run(use))


def test_a_taken_key_is_answered_with_who_has_it(kept: Kept) -> None:
    async def use(tickets: IdempotencyStore, clock: Clock) -> None:
        first = ticket("r1")
        assert await tickets.claim(first) is None
        running = Claim(first, "running")
        assert await tickets.claim(ticket("r2", body="another")) == running
        assert await tickets.look("r1") == running
        assert await tickets.look("r2") is None
        answer = StoredResult("r1", answer=b'{"reward":1}')
        await tickets.settle(answer)
        assert await tickets.claim(ticket("r3")) == Claim(first, "settled", answer)
        assert await tickets.look("r1") == Claim(first, "settled", answer)
        assert await tickets.claim(ticket("r4", "other key")) is None

    kept(use)


def test_tickets_without_a_key_are_always_kept(kept: Kept) -> None:
    async def use(tickets: IdempotencyStore, clock: Clock) -> None:
        for number in range(3):
            assert await tickets.claim(IdempotencyRecord(f"r{number}", "body", clock.now())) is None
        assert await tickets.look("r2") == Claim(IdempotencyRecord("r2", "body", clock.now()), "running")

    kept(use)


def test_a_failure_comes_back_equal(kept: Kept) -> None:
    async def use(tickets: IdempotencyStore, clock: Clock) -> None:
        for number, failure in enumerate([FAILURE, Failure("timeout", "deadline", "")]):
            await tickets.claim(ticket(f"r{number}", None))
            await tickets.settle(StoredResult(f"r{number}", failure=failure))
            found = await tickets.look(f"r{number}")
            assert found is not None and found.state == "settled"
            assert found.settled == StoredResult(f"r{number}", failure=failure)

    kept(use)


@pytest.mark.parametrize("size", [0, 100, 4096, 4097, 100_000, 5_000_000])
def test_an_answer_comes_back_byte_for_byte(kept: Kept, size: int) -> None:
    answer = os.urandom(size // 2) + b"x" * (size - size // 2)

    async def use(tickets: IdempotencyStore, clock: Clock) -> None:
        await tickets.claim(ticket("r1"))
        await tickets.settle(StoredResult("r1", answer=answer))
        found = await tickets.look("r1")
        assert found is not None and found.settled is not None
        assert found.settled.answer == answer
        assert await tickets.claim(ticket("r2")) == found

    kept(use)


def test_a_freed_key_may_be_claimed_anew_and_its_ticket_is_still_found(kept: Kept) -> None:
    async def use(tickets: IdempotencyStore, clock: Clock) -> None:
        await tickets.claim(ticket("r1"))
        cancelled = StoredResult("r1", failure=Failure("cancelled", "cancelled", "nobody waited"))
        await tickets.settle(cancelled, free_key=True)
        assert await tickets.claim(ticket("r2")) is None
        found = await tickets.look("r1")
        assert found is not None and (found.state, found.settled) == ("settled", cancelled)
        assert await tickets.claim(ticket("r3")) == Claim(ticket("r2"), "running")

    kept(use)


def test_a_released_ticket_is_forgotten(kept: Kept) -> None:
    async def use(tickets: IdempotencyStore, clock: Clock) -> None:
        await tickets.claim(ticket("r1"))
        await tickets.release("r1")
        assert await tickets.look("r1") is None
        assert await tickets.claim(ticket("r2")) is None
        await tickets.settle(StoredResult("r2", answer=b"{}"))
        await tickets.release("r2")  # what is settled stays
        await tickets.release("nobody")
        found = await tickets.look("r2")
        assert found is not None and found.state == "settled"

    kept(use)


def test_after_a_day_a_ticket_is_gone_and_its_key_is_free(kept: Kept) -> None:
    async def use(tickets: IdempotencyStore, clock: Clock) -> None:
        assert isinstance(clock, HandClock)
        await tickets.claim(ticket("settled", "k1"))
        await tickets.settle(StoredResult("settled", answer=b"{}"))
        await tickets.claim(ticket("running", "k2"))
        clock.at += TICKET_SECONDS - 1
        assert await tickets.claim(ticket("r3", "k1", at=clock.at)) is not None
        assert await tickets.claim(ticket("r4", "k2", at=clock.at)) is not None
        clock.at += 1
        assert await tickets.look("settled") is None
        assert await tickets.look("running") is None
        assert await tickets.claim(ticket("r3", "k1", at=clock.at)) is None
        assert await tickets.claim(ticket("r4", "k2", at=clock.at)) is None
        await tickets.settle(StoredResult("running", answer=b"{}"))  # a day late: no fault, and nothing is kept
        assert await tickets.look("running") is None
        assert await tickets.claim(ticket("r5", "k2")) == Claim(ticket("r4", "k2", at=clock.at), "running")

    kept(use)


def test_a_clock_that_was_set_back_keeps_no_ticket_for_ever(kept: Kept) -> None:
    async def use(tickets: IdempotencyStore, clock: Clock) -> None:
        assert isinstance(clock, HandClock)
        await tickets.claim(ticket("r1", at=clock.at))
        await tickets.settle(StoredResult("r1", answer=b"{}"))
        clock.at -= 3600
        assert await tickets.look("r1") is not None
        clock.at -= 10 * TICKET_SECONDS
        assert await tickets.look("r1") is None
        assert await tickets.claim(ticket("r2", at=clock.at)) is None

    kept(use)


def test_of_a_hundred_claims_at_once_one_wins(kept: Kept) -> None:
    async def use(tickets: IdempotencyStore, clock: Clock) -> None:
        claims = [ticket(f"r{number}") for number in range(100)]
        found = await asyncio.gather(*map(tickets.claim, claims))
        winners = [claim for claim, other in zip(claims, found, strict=True) if other is None]
        assert len(winners) == 1
        assert {other.ticket for other in found if other is not None} == {winners[0]}
        lost = [claim for claim in claims if claim is not winners[0]]
        assert [await tickets.look(claim.rollout_id) for claim in lost] == [None] * 99

    kept(use)


def test_what_this_process_does_not_hold_cannot_be_settled(kept: Kept) -> None:
    async def use(tickets: IdempotencyStore, clock: Clock) -> None:
        with pytest.raises(StoreError, match=r"rollout 'r1' cannot be settled.*no such ticket"):
            await tickets.settle(StoredResult("r1", answer=b"{}"))
        await tickets.claim(ticket("r1"))
        for both in (StoredResult("r1"), StoredResult("r1", answer=b"{}", failure=FAILURE)):
            with pytest.raises(StoreError, match="exactly one"):
                await tickets.settle(both)
        await tickets.settle(StoredResult("r1", answer=b"{}"))
        with pytest.raises(StoreError, match="no such ticket"):
            await tickets.settle(StoredResult("r1", answer=b"another"))
        found = await tickets.look("r1")
        assert found is not None and found.settled == StoredResult("r1", answer=b"{}")

    kept(use)


def test_one_rollout_has_one_ticket(kept: Kept) -> None:
    async def use(tickets: IdempotencyStore, clock: Clock) -> None:
        await tickets.claim(ticket("r1", "k1"))
        with pytest.raises(StoreError, match="a ticket for rollout 'r1' is .* already"):
            await tickets.claim(ticket("r1", "k2"))
        await tickets.settle(StoredResult("r1", answer=b"{}"))
        with pytest.raises(StoreError, match="a ticket for rollout 'r1' is .* already"):
            await tickets.claim(ticket("r1", "k3"))
        assert await tickets.claim(ticket("r2", "k2")) is None
        found = await tickets.look("r1")
        assert found is not None and found.ticket == ticket("r1", "k1")

    kept(use)


def test_a_cancelled_claim_holds_nothing_and_a_cancelled_settle_is_kept(kept: Kept) -> None:
    async def use(tickets: IdempotencyStore, clock: Clock) -> None:
        for number in range(20):
            claim = asyncio.ensure_future(tickets.claim(ticket(f"c{number}")))
            await asyncio.sleep(0 if number % 2 else 0.0005)
            if claim.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await claim
            else:
                assert claim.result() is None
                await tickets.release(f"c{number}")
        assert await tickets.claim(ticket("r1")) is None
        settle = asyncio.ensure_future(tickets.settle(StoredResult("r1", answer=b"x" * 300_000)))
        await asyncio.sleep(0)
        settle.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settle
        async with asyncio.timeout(5):
            while (await tickets.look("r1") or Claim(ticket(""), "lost")).state != "settled":
                await asyncio.sleep(0.01)

    kept(use)


def test_a_closed_coordinator_says_so(kept: Kept) -> None:
    async def use(tickets: IdempotencyStore, clock: Clock) -> None:
        await tickets.claim(ticket("r1"))
        await tickets.close()
        for call in (
            tickets.claim(ticket("r2")),
            tickets.look("r1"),
            tickets.release("r1"),
            tickets.settle(StoredResult("r1", answer=b"{}")),
        ):
            with pytest.raises(StoreError, match="are closed"):
                await call

    kept(use)


# -- memory alone -----------------------------------------------------------------------------------------------------


def test_memory_keeps_events_too() -> None:
    async def use() -> None:
        tickets = MemoryIdempotencyStore(HandClock())
        await tickets.claim(ticket("r1"))
        settled = StoredResult("r1", failure=FAILURE, events=b'[{"kind":"started"}]')
        await tickets.settle(settled)
        assert (await tickets.claim(ticket("r2"))) == Claim(ticket("r1"), "settled", settled)

    asyncio.run(use())


def test_memory_forgets_the_oldest_beyond_its_limit_and_never_a_running_one(caplog: pytest.LogCaptureFixture) -> None:
    answer = os.urandom(9_000)  # does not get smaller

    async def use() -> None:
        tickets = MemoryIdempotencyStore(HandClock(), limit_bytes=100_000)
        await tickets.claim(ticket("running", "kept"))
        for number in range(50):
            await tickets.claim(ticket(f"r{number}", f"k{number}"))
            await tickets.settle(StoredResult(f"r{number}", answer=answer, events=b"[]" if number % 2 else None))
            assert tickets.kept_bytes <= 100_000
            if number < 9:
                assert not caplog.records
        states = [await tickets.look(f"r{number}") for number in range(50)]
        assert [state is not None for state in states] == [False] * 41 + [True] * 9
        assert await tickets.claim(ticket("again", "k0")) is None, "the key went with its ticket"
        assert await tickets.look("running") == Claim(ticket("running", "kept"), "running")
        assert [(record.levelno, record.name) for record in caplog.records] == [
            (logging.WARNING, "taskapp_kit.service")
        ]
        await tickets.close()
        assert tickets.kept_bytes == 0

    asyncio.run(use())


def test_memory_counts_what_is_kept_compressed_and_bounds_small_ones_too() -> None:
    async def use() -> None:
        clock = HandClock()
        tickets = MemoryIdempotencyStore(clock, limit_bytes=20 * TICKET_BYTES)
        await tickets.claim(ticket("large"))
        await tickets.settle(StoredResult("large", answer=b"a" * 1_000_000, events=b"b" * 1_000_000))
        assert await tickets.look("large") is not None
        assert TICKET_BYTES < tickets.kept_bytes < 20_000
        for number in range(100):
            await tickets.claim(ticket(f"r{number}", None))
            await tickets.settle(StoredResult(f"r{number}", failure=FAILURE))
        known = [await tickets.look(f"r{number}") for number in range(100)]
        assert sum(one is not None for one in known) == 20
        clock.at += TICKET_SECONDS
        await tickets.claim(replace(ticket("new", None), created_at=clock.at))
        assert tickets.kept_bytes == 0, "a day later they go with the next claim"

    asyncio.run(use())
