"""The server that the tests of `serve` share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.front_door import Door, opened


@pytest.fixture(scope="session")
def door() -> Iterator[Door]:
    """The server that tests share: they leave it as they found it."""
    with opened() as found:
        yield found
