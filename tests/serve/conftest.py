"""The server that the tests of `serve` share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.running_server import RunningServer, opened


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def running() -> Iterator[RunningServer]:
    """The server that tests share: they leave it as they found it."""
    with opened() as found:
        yield found
