"""The two servers of these tests, one of each in a test file: environments in threads, and in worker processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stress.server import Server


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("threads")) as running:
        yield running


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("workers"), "--workers", "2") as running:
        yield running
