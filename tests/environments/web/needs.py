"""What tests in a browser need of the machine."""

from __future__ import annotations

from importlib.util import find_spec

from environments.web import chromium
from taskapp_kit.errors import Unavailable

SENTENCE = (
    "needs a Chromium and playwright: apt-get install chromium-headless-shell (Debian), pip install 'taskapp-kit[web]'"
)


def is_met() -> bool:
    """The driver is installed, and a browser is found."""
    try:
        chromium.find()
    except Unavailable:
        return False
    return find_spec("playwright") is not None
