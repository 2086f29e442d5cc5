"""Lets the tests of this room import `listening`, `gateway` and `scripted_backend`, which lie beside them.

Not as `tests.client.…`: a dependency (opensimplex) installs a package called `tests`, which would win.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

VARIABLES = ("BACKEND_BASE_URL", "PROD_BACKEND_URL", "SYNTH_API_KEY", "TASK_APP_URL", "ENVIRONMENT_API_KEY")


@pytest.fixture(autouse=True)
def _an_environment_without_addresses_and_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a client falls back to is what its test says."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield
