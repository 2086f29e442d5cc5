"""The fixtures of these tests."""

from __future__ import annotations

import pytest

from tests.sandbox.boxes import LEVELS

NONE = pytest.param(0, marks=pytest.mark.skip("needs bubblewrap (Debian: apt-get install bubblewrap), or root"))


WEAKER = [pytest.param(level, marks=pytest.mark.exhaustive) for level in LEVELS if level < max(LEVELS)]


@pytest.fixture(params=[max(LEVELS), *WEAKER] if LEVELS else [NONE], ids=lambda level: f"level{level}")
def level(request: pytest.FixtureRequest) -> int:
    """Each level that confines untrusted code on this machine, the strongest first."""
    return int(request.param)
