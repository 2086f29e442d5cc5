"""Makes the modules beside it importable here and, because they inherit the path, in the child processes of the tests."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from taskapp_kit.store.sql import SqlStore
from tests.store.opened_stores import in_use, opened
from tests.store.postgres_server import PostgresServer, server


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def postgres() -> PostgresServer:
    """The Postgres server of this run; the test is skipped, with the reason, where none can be started."""
    return server()


def _address(kind: str, folder: Path) -> str:
    if kind == "postgres":
        return server().database()
    return "memory" if kind == "memory" else str(folder / "rollouts.db")


@pytest.fixture(params=["file", "memory", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty store of each kind."""
    return _address(request.param, tmp_path)


@pytest.fixture
async def store(address: str) -> AsyncIterator[SqlStore]:
    """An open, empty store of each kind."""
    async with in_use(opened(address)) as made:
        yield made


@pytest.fixture(params=["file", "postgres"])
def shared_address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty store of each kind that several processes can share."""
    return _address(request.param, tmp_path)
