"""The server that the front entrance's tests share; makes `front_door` importable here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from front_door import Door, opened


@pytest.fixture(scope="session")
def door() -> Iterator[Door]:
    """The server that tests share: they leave it as they found it."""
    with opened() as found:
        yield found
