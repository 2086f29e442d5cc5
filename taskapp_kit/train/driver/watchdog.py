"""Ends work that does not move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from taskapp_kit.errors import JobError

CHECKS = 10
"""Consecutive looks without a change, spread over the limit. They are counted, and not the time: a machine that slept has
moved nothing and is not at fault."""

Result = TypeVar("Result")


async def watched(
    work: Coroutine[Any, Any, Result],
    progress: Callable[[], object],
    seconds: float,
    explain: Callable[[], str],
) -> Result:
    """Return the result of the work. Raises JobError, and cancels it, when `progress` stays equal for `seconds`.

    explain: returns what was expected to move, as sentences for the error.
    """
    task = asyncio.create_task(work)
    seen, idle = progress(), 0
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=seconds / CHECKS)
            now = progress()
            idle = idle + 1 if now == seen else 0
            seen = now
            if idle >= CHECKS and not task.done():
                raise JobError(f"Nothing has moved for {seconds:g} s. {explain()}")
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait((task,))
