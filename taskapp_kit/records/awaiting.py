"""What an author's function returned, whether the function is async or not. Every call of author's code passes here."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

_DATA = frozenset({type(None), bool, int, float, str, dict, list, tuple})


def finished(returned: Any, runner: asyncio.Runner | None = None) -> Any:
    """Return a value itself, the result of an awaitable, or the items of an async generator.

    So functions are async in any form: `async def`, a partial or a lambda of one, an object with an async `__call__`.

    Args:
        returned: What the function returned. Data is not examined further, as most calls return it.
        runner: The event loop for it; without one, a new loop. No loop may run in this thread if there is a runner.
    """
    if type(returned) in _DATA:
        return returned
    if not inspect.isasyncgen(returned) and not inspect.isawaitable(returned):
        return returned

    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def awaited() -> Any:
        return [item async for item in returned] if inspect.isasyncgen(returned) else await returned

    if runner is not None:
        return runner.run(awaited())
    if asyncio._get_running_loop() is None:
        return asyncio.run(awaited())
    with ThreadPoolExecutor(1, "taskapp-author-call") as thread:  # a loop cannot run inside another one of its thread
        return thread.submit(asyncio.run, awaited()).result()
