"""Waiting for something to come true in another thread or process, in place of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float = 60.0, what: str = "the condition") -> T:
    """Returns what the condition returns once that is true, asking every 10 ms; fails after `seconds`, naming `what`."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not true within {seconds:g} s: {what}"
        time.sleep(0.01)
    return found


async def until_async(condition: Callable[[], T], seconds: float = 60.0, what: str = "the condition") -> T:
    """`until` for a condition that the event loop makes true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not true within {seconds:g} s: {what}"
        await asyncio.sleep(0.005)
    return found
