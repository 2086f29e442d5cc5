"""The contract of every `IdempotencyStore`, rule by rule.

A test module imports all of it and has three fixtures: `run` runs `use(store, clock)` on an event loop for each of its
stores, `run_two` runs `use(one, two, clock)` for two holders that share records, `lease_seconds` is their lease:
tests/store/test_idempotency_contract.py and tests/deploy/test_modal_idempotency.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from taskapp_kit.errors import Failure, StoreError
from taskapp_kit.records.protocols import (
    Claim,
    Clock,
    IdempotencyRecord,
    IdempotencyStore,
    StoredResult,
)
from taskapp_kit.store.idempotency import RECORD_SECONDS

Use = Callable[[IdempotencyStore, "HandClock"], Awaitable[None]]
Run = Callable[[Use], None]
UseTwo = Callable[[IdempotencyStore, IdempotencyStore, "HandClock"], Awaitable[None]]
RunTwo = Callable[[UseTwo], None]

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


def record(
    rollout_id: str, key: str | None = "key", *, body: str = "body", at: float = 1_000_000.0
) -> IdempotencyRecord:
    return IdempotencyRecord(rollout_id, body, at, key, "blue")


def test_a_taken_key_is_answered_with_the_record_that_has_it(run: Run) -> None:
    async def use(store: IdempotencyStore, clock: Clock) -> None:
        first = record("r1")
        assert await store.claim(first) is None
        running = Claim(first, "running")
        assert await store.claim(record("r2", body="another")) == running
        assert await store.look("r1") == running
        assert await store.look("r2") is None
        answer = StoredResult("r1", answer=b'{"reward":1}')
        await store.settle(answer)
        assert await store.claim(record("r3")) == Claim(first, "settled", answer)
        assert await store.look("r1") == Claim(first, "settled", answer)
        assert await store.claim(record("r4", "other key")) is None

    run(use)


def test_records_without_a_key_are_always_put(run: Run) -> None:
    async def use(store: IdempotencyStore, clock: Clock) -> None:
        for number in range(3):
            assert await store.claim(IdempotencyRecord(f"r{number}", "body", clock.now())) is None
        assert await store.look("r2") == Claim(IdempotencyRecord("r2", "body", clock.now()), "running")

    run(use)


def test_a_failure_comes_back_equal(run: Run) -> None:
    async def use(store: IdempotencyStore, clock: Clock) -> None:
        for number, failure in enumerate([FAILURE, Failure("timeout", "deadline", "")]):
            await store.claim(record(f"r{number}", None))
            await store.settle(StoredResult(f"r{number}", failure=failure))
            found = await store.look(f"r{number}")
            assert found is not None and found.state == "settled"
            assert found.settled == StoredResult(f"r{number}", failure=failure)

    run(use)


@pytest.mark.parametrize("size", [0, 100, 4096, 4097, 100_000, 5_000_000])
def test_an_answer_comes_back_byte_for_byte(run: Run, size: int) -> None:
    answer = os.urandom(size // 2) + b"x" * (size - size // 2)

    async def use(store: IdempotencyStore, clock: Clock) -> None:
        await store.claim(record("r1"))
        await store.settle(StoredResult("r1", answer=answer))
        found = await store.look("r1")
        assert found is not None and found.settled is not None
        assert found.settled.answer == answer
        assert await store.claim(record("r2")) == found

    run(use)


def test_a_freed_key_may_be_claimed_anew_and_its_record_is_still_found(run: Run) -> None:
    async def use(store: IdempotencyStore, clock: Clock) -> None:
        await store.claim(record("r1"))
        cancelled = StoredResult("r1", failure=Failure("cancelled", "cancelled", "the caller left"))
        await store.settle(cancelled, free_key=True)
        assert await store.claim(record("r2")) is None
        found = await store.look("r1")
        assert found is not None and (found.state, found.settled) == ("settled", cancelled)
        assert await store.claim(record("r3")) == Claim(record("r2"), "running")

    run(use)


def test_a_released_record_is_removed(run: Run) -> None:
    async def use(store: IdempotencyStore, clock: Clock) -> None:
        await store.claim(record("r1"))
        await store.release("r1")
        assert await store.look("r1") is None
        assert await store.claim(record("r2")) is None
        await store.settle(StoredResult("r2", answer=b"{}"))
        await store.release("r2")  # what is settled stays
        await store.release("unknown")
        found = await store.look("r2")
        assert found is not None and found.state == "settled"

    run(use)


def test_after_a_day_a_record_is_gone_and_its_key_is_free(run: Run) -> None:
    async def use(store: IdempotencyStore, clock: Clock) -> None:
        assert isinstance(clock, HandClock)
        await store.claim(record("settled", "k1"))
        await store.settle(StoredResult("settled", answer=b"{}"))
        await store.claim(record("running", "k2"))
        clock.at += RECORD_SECONDS - 1
        assert await store.claim(record("r3", "k1", at=clock.at)) is not None
        assert await store.claim(record("r4", "k2", at=clock.at)) is not None
        clock.at += 1
        assert await store.look("settled") is None
        assert await store.look("running") is None
        assert await store.claim(record("r3", "k1", at=clock.at)) is None
        assert await store.claim(record("r4", "k2", at=clock.at)) is None
        await store.settle(StoredResult("running", answer=b"{}"))  # a day late: no error, and nothing is stored
        assert await store.look("running") is None
        assert await store.claim(record("r5", "k2")) == Claim(record("r4", "k2", at=clock.at), "running")

    run(use)


def test_a_clock_that_was_set_back_keeps_no_record_for_ever(run: Run) -> None:
    async def use(store: IdempotencyStore, clock: Clock) -> None:
        assert isinstance(clock, HandClock)
        await store.claim(record("r1", at=clock.at))
        await store.settle(StoredResult("r1", answer=b"{}"))
        clock.at -= 3600
        assert await store.look("r1") is not None
        clock.at -= 10 * RECORD_SECONDS
        assert await store.look("r1") is None
        assert await store.claim(record("r2", at=clock.at)) is None

    run(use)


@pytest.mark.ci
def test_of_a_hundred_claims_at_once_one_wins(run: Run) -> None:
    async def use(store: IdempotencyStore, clock: Clock) -> None:
        claims = [record(f"r{number}") for number in range(100)]
        found = await asyncio.gather(*map(store.claim, claims))
        winners = [claim for claim, other in zip(claims, found, strict=True) if other is None]
        assert len(winners) == 1
        assert {other.record for other in found if other is not None} == {winners[0]}
        lost = [claim for claim in claims if claim is not winners[0]]
        assert [await store.look(claim.rollout_id) for claim in lost] == [None] * 99

    run(use)


def test_what_this_process_does_not_own_cannot_be_settled(run: Run) -> None:
    async def use(store: IdempotencyStore, clock: Clock) -> None:
        with pytest.raises(StoreError, match="'r1' cannot"):
            await store.settle(StoredResult("r1", answer=b"{}"))
        await store.claim(record("r1"))
        for both in (StoredResult("r1"), StoredResult("r1", answer=b"{}", failure=FAILURE)):
            with pytest.raises(StoreError, match="'r1'"):
                await store.settle(both)
        settling = asyncio.ensure_future(store.settle(StoredResult("r1", answer=b"{}")))
        await asyncio.sleep(0)
        with pytest.raises(StoreError, match="'r1' cannot"):
            await store.settle(StoredResult("r1", answer=b"at the same time"))
        await settling
        with pytest.raises(StoreError, match="'r1' cannot"):
            await store.settle(StoredResult("r1", answer=b"another"))
        found = await store.look("r1")
        assert found is not None and found.settled == StoredResult("r1", answer=b"{}")

    run(use)


def test_one_rollout_has_one_record(run: Run) -> None:
    async def use(store: IdempotencyStore, clock: Clock) -> None:
        await store.claim(record("r1", "k1"))
        with pytest.raises(StoreError, match="'r1' .*already"):
            await store.claim(record("r1", "k2"))
        await store.settle(StoredResult("r1", answer=b"{}"))
        with pytest.raises(StoreError, match="'r1' .*already"):
            await store.claim(record("r1", "k3"))
        assert await store.claim(record("r2", "k2")) is None
        found = await store.look("r1")
        assert found is not None and found.record == record("r1", "k1")

    run(use)


@pytest.mark.ci
def test_a_cancelled_claim_owns_nothing_and_a_cancelled_settle_is_stored(run: Run) -> None:
    async def use(store: IdempotencyStore, clock: Clock) -> None:
        for number in range(20):
            claim = asyncio.ensure_future(store.claim(record(f"c{number}")))
            await asyncio.sleep(0 if number % 2 else 0.0005)
            if claim.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await claim
            else:
                assert claim.result() is None
                await store.release(f"c{number}")
        assert await store.claim(record("r1")) is None
        settle = asyncio.ensure_future(store.settle(StoredResult("r1", answer=b"x" * 300_000)))
        await asyncio.sleep(0)
        settle.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settle
        async with asyncio.timeout(5):
            while (await store.look("r1") or Claim(record(""), "lost")).state != "settled":
                await asyncio.sleep(0.01)

    run(use)


def test_a_closed_store_says_so(run: Run) -> None:
    async def use(store: IdempotencyStore, clock: Clock) -> None:
        await store.claim(record("r1"))
        await store.close()
        for call in (
            store.claim(record("r2")),
            store.look("r1"),
            store.release("r1"),
            store.settle(StoredResult("r1", answer=b"{}")),
        ):
            with pytest.raises(StoreError, match="closed"):
                await call

    run(use)


# -- two holders ----------------------------------------------------------------------------------------------------


def test_what_one_holder_claims_and_settles_the_other_finds(run_two: RunTwo) -> None:
    async def use(one: IdempotencyStore, two: IdempotencyStore, clock: HandClock) -> None:
        first = record("r1")
        assert await one.claim(first) is None
        assert await two.claim(record("r2")) == Claim(first, "running")
        assert await two.look("r1") == Claim(first, "running")
        with pytest.raises(StoreError):
            await two.settle(StoredResult("r1", answer=b"{}"))
        with pytest.raises(StoreError):
            await two.claim(record("r1", None))
        await two.release("r1")  # is not its own
        over = StoredResult("r1", answer=b'{"reward":1}')
        await one.settle(over)
        assert await two.claim(record("r3")) == Claim(first, "settled", over)
        assert await two.look("r1") == Claim(first, "settled", over)
        assert await two.look("r3") is None

    run_two(use)


def test_a_holder_that_says_nothing_more_is_lost_and_its_key_is_taken_over(
    run_two: RunTwo, lease_seconds: float
) -> None:
    async def use(one: IdempotencyStore, two: IdempotencyStore, clock: HandClock) -> None:
        first, second = record("r1"), record("r2")
        assert await one.claim(first) is None
        clock.at += lease_seconds - 1
        assert await two.look("r1") == Claim(first, "running")
        assert await two.claim(second) == Claim(first, "running")
        clock.at += 1
        assert await two.look("r1") == Claim(first, "lost")
        assert await one.look("r1") == Claim(first, "running"), "its holder knows better"
        assert await two.claim(second) is None
        assert await one.claim(record("r3")) == Claim(second, "running")
        # The first one was only slow: what came of it is found by its id, and the key stays with the second.
        await one.settle(StoredResult("r1", answer=b"late"))
        late = await two.look("r1")
        assert late is not None and late.settled == StoredResult("r1", answer=b"late")
        assert await one.claim(record("r3")) == Claim(second, "running")

    run_two(use)


def test_what_a_closed_holder_held_is_lost_at_once(run_two: RunTwo) -> None:
    async def use(one: IdempotencyStore, two: IdempotencyStore, clock: HandClock) -> None:
        await one.claim(record("r1"))
        await one.claim(record("r2", "other"))
        await one.settle(StoredResult("r2", answer=b"{}"))
        await one.close()
        assert await two.look("r1") == Claim(record("r1"), "lost")
        assert await two.claim(record("r3")) is None
        kept = await two.look("r2")
        assert kept is not None and kept.state == "settled"
        with pytest.raises(StoreError):
            await two.settle(StoredResult("r1", answer=b"{}"))

    run_two(use)
