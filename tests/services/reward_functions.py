"""Reward functions of tests; replicas load them from this file."""

from __future__ import annotations

import asyncio
from typing import Any


def correct(prompt: str, response: str, target: Any) -> float | None:
    """1 for the target, None without one; fails for a response that is `fail`."""
    if response == "fail":
        raise ValueError("no verdict")
    return None if target is None else float(response == target)


async def later(prompt: str, response: str, target: Any) -> Any:
    """The target itself, whatever it is, after a moment."""
    await asyncio.sleep(0)
    return target
