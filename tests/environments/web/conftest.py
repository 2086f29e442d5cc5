"""One browser for each module."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from environments.web import chromium
from environments.web.browser import Browser
from taskapp_kit.errors import Unavailable

SENTENCE = (
    "needs a Chromium and playwright: apt-get install chromium-headless-shell (Debian), pip install 'taskapp-kit[web]'"
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks for a Chromium is a test of `make browser`."""
    for item in items:
        if "chromium_here" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium_here() -> None:
    """Skips where the browser or its driver is missing."""
    try:
        chromium.find()
    except Unavailable:
        pytest.skip(SENTENCE)
    if find_spec("playwright") is None:
        pytest.skip(SENTENCE)


@pytest.fixture(scope="module")
def browser(chromium_here: None) -> Iterator[Browser]:
    """A browser for the module's tests alone."""
    found = Browser()
    yield found
    found.close()
