"""The limits of idempotency records in memory; its contract is in test_idempotency_contract.py."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

import pytest

from taskapp_kit.records.protocols import Claim, StoredResult
from taskapp_kit.store.idempotency import RECORD_SECONDS
from taskapp_kit.store.idempotency_memory import RECORD_BYTES, MemoryIdempotencyStore
from tests.idempotency_contract import FAILURE, HandClock, record

pytestmark = pytest.mark.anyio


async def test_events_are_stored_too() -> None:
    store = MemoryIdempotencyStore(HandClock())
    await store.claim(record("r1"))
    settled = StoredResult("r1", failure=FAILURE, events=b'[{"kind":"started"}]')
    await store.settle(settled)
    assert (await store.claim(record("r2"))) == Claim(record("r1"), "settled", settled)


async def test_the_oldest_results_are_removed_beyond_the_limit_and_never_a_running_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = os.urandom(9_000)  # does not get smaller
    store = MemoryIdempotencyStore(HandClock(), limit_bytes=100_000)
    await store.claim(record("running", "kept"))
    for number in range(50):
        await store.claim(record(f"r{number}", f"k{number}"))
        await store.settle(StoredResult(f"r{number}", answer=answer, events=b"[]" if number % 2 else None))
        assert store.stored_bytes <= 100_000
        if number < 9:
            assert not caplog.records
    states = [await store.look(f"r{number}") for number in range(50)]
    assert [state is not None for state in states] == [False] * 41 + [True] * 9
    assert await store.claim(record("again", "k0")) is None, "the key went with its record"
    assert await store.look("running") == Claim(record("running", "kept"), "running")
    warned = [record.levelno for record in caplog.records if record.name == "taskapp_kit.service"]
    assert warned == [logging.WARNING]
    await store.close()
    assert store.stored_bytes == 0


async def test_results_count_compressed_and_small_ones_are_bounded_too() -> None:
    clock = HandClock()
    store = MemoryIdempotencyStore(clock, limit_bytes=20 * RECORD_BYTES)
    await store.claim(record("large"))
    await store.settle(StoredResult("large", answer=b"a" * 1_000_000, events=b"b" * 1_000_000))
    assert await store.look("large") is not None
    assert RECORD_BYTES < store.stored_bytes < 20_000
    for number in range(100):
        await store.claim(record(f"r{number}", None))
        await store.settle(StoredResult(f"r{number}", failure=FAILURE))
    known = [await store.look(f"r{number}") for number in range(100)]
    assert sum(one is not None for one in known) == 20
    clock.at += RECORD_SECONDS
    await store.claim(replace(record("new", None), created_at=clock.at))
    assert store.stored_bytes == 0, "a day later they go with the next claim"
