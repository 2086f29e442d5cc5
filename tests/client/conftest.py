"""What a client falls back to is what its test says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

VARIABLES = ("BACKEND_BASE_URL", "PROD_BACKEND_URL", "SYNTH_API_KEY", "TASK_APP_URL", "ENVIRONMENT_API_KEY")


@pytest.fixture(autouse=True)
def _an_environment_without_addresses_and_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield
