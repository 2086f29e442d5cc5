"""The contract of idempotency stores, for records in memory, in SQLite, and in Postgres."""

from __future__ import annotations

import asyncio

import pytest

from taskapp_kit.records.protocols import IdempotencyStore, Store
from taskapp_kit.store import idempotency_sql, open_store
from taskapp_kit.store.idempotency_memory import MemoryIdempotencyStore
from tests.idempotency_contract import *  # noqa: F403
from tests.idempotency_contract import HandClock, Run, RunTwo, Use, UseTwo

pytestmark = [pytest.mark.process, pytest.mark.server]


@pytest.fixture
def run(address: str) -> Run:
    """Runs `use(store, clock)` on an event loop; `address` is of each kind of store."""

    async def main(use: Use) -> None:
        clock = HandClock()
        rollouts: Store | None = None if address == "memory" else open_store(address)
        store: IdempotencyStore | None = rollouts.coordinator(clock) if rollouts else MemoryIdempotencyStore(clock)
        assert store is not None
        try:
            await use(store, clock)
        finally:
            await store.close()
            await store.close()  # a second call does nothing
            if rollouts is not None:
                await rollouts.close()

    return lambda use: asyncio.run(main(use))


@pytest.fixture
def run_two(shared_address: str) -> RunTwo:
    """Runs `use(one, two, clock)` on an event loop; `shared_address` is of each kind that several processes can share."""

    async def main(use: UseTwo) -> None:
        clock = HandClock()
        rollouts = [open_store(shared_address) for _ in range(2)]
        one, two = (store.coordinator(clock) for store in rollouts)
        assert one is not None and two is not None
        try:
            await use(one, two, clock)
        finally:
            for opened in (one, two, *rollouts):
                await opened.close()

    return lambda use: asyncio.run(main(use))


@pytest.fixture
def lease_seconds() -> float:
    return idempotency_sql.LEASE_SECONDS
