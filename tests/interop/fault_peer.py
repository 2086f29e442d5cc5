"""Shared by the adapters of `make faults-proof`, one for each framework. Standard library only.

An adapter is a program that the framework's own Python runs:

    python fault_FRAMEWORK.py KIND ROLLOUTS MODEL JUDGES

It starts the framework's server, causes faults of this kind (the model and the judges at these addresses fail by
themselves; the kind `none` has no fault), plays the rollouts, and prints a line of JSON for each: `number`, `broken` if
the episode cannot end without a failure, and either `reward` or the `code` of a failure. A rollout without a line is lost.
For every other fault, it prints `{"fault": 1}`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

IN_FLIGHT = 128
LOST_SECONDS = 120.0
"""A rollout that is neither answered nor refused after this time is lost."""


class Declared(Exception):
    """A failure that the framework reported as such; its text is the code."""


def is_broken(kind: str, number: int) -> bool:
    """Whether this episode cannot end without a failure: every second one of the kind `environment`."""
    return kind == "environment" and number % 2 == 0


def report_fault() -> None:
    """Count a fault that the adapter caused, besides broken episodes."""
    print('{"fault": 1}', flush=True)


async def play_all(kind: str, rollouts: int, rollout: Callable[[int], Awaitable[float]]) -> None:
    """Play all rollouts. `rollout` returns a reward, or raises."""
    numbers = iter(range(rollouts))

    async def caller() -> None:
        for number in numbers:
            line = {"number": number, "broken": is_broken(kind, number)}
            try:
                async with asyncio.timeout(LOST_SECONDS) as limit:
                    line["reward"] = await rollout(number)
            except Exception as error:
                if limit.expired():
                    continue
                line["code"] = str(error) if isinstance(error, Declared) else type(error).__name__
            print(json.dumps(line), flush=True)

    await asyncio.gather(*(caller() for _ in range(min(IN_FLIGHT, rollouts // 2))))
