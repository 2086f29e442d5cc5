"""Waiting for something to come true in another thread or process, in place of sleeping; whether a process runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
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


def alive(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
