"""The rules of tests/rollout/test_idempotency_memory.py, one by one, for tickets in Postgres."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer

from taskapp_kit.contract.protocols import IdempotencyStore
from taskapp_kit.store.postgres import PostgresStore

_found = importlib.util.spec_from_file_location(
    "ticket_rules", Path(__file__).parents[1] / "rollout" / "test_idempotency_memory.py"
)
assert _found is not None and _found.loader is not None
_rules = importlib.util.module_from_spec(_found)
_found.loader.exec_module(_rules)

RULES = [name for name in vars(_rules) if name.startswith("test_") and not name.startswith("test_memory_")]
globals().update({name: getattr(_rules, name) for name in RULES})

Use = Callable[[IdempotencyStore, Any], Awaitable[None]]


@pytest.fixture
def kept(postgres: PostgresServer) -> Callable[[Use], None]:
    """Runs `use(coordinator, clock)` on an event loop."""

    async def run(use: Use) -> None:
        clock, store = _rules.HandClock(), PostgresStore(postgres.database())
        coordinator = store.coordinator(clock)
        assert coordinator is not None
        try:
            await use(coordinator, clock)
        finally:
            await coordinator.close()
            await coordinator.close()  # a second call does nothing
            await store.close()

    return lambda use: asyncio.run(run(use))


def test_the_rules_were_found() -> None:
    assert len(RULES) >= 12
