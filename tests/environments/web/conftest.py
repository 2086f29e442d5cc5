"""One browser for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from environments.web.browser import Browser
from tests.environments.web import needs


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks for a Chromium is a test of `make browser`."""
    for item in items:
        if "chromium_here" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium_here() -> None:
    """Skips where the browser or its driver is missing."""
    if not needs.is_met():
        pytest.skip(needs.SENTENCE)


@pytest.fixture(scope="module")
def browser(chromium_here: None) -> Iterator[Browser]:
    """A browser for the module's tests alone."""
    found = Browser()
    yield found
    found.close()
