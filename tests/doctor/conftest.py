"""What the doctor provokes is not logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("taskapp_kit")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)
