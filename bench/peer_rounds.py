"""Shared by the peers' programs: rounds of rollouts, each reported as a line of JSON. Standard library only."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

FIRST_SEED = 1_000
WARM_UP_SEEDS = range(100_000, 100_008)


class Played(NamedTuple):
    """One rollout."""

    turns: int
    reward: float
    latency_ms: float


ARound = Callable[[int, range], Awaitable[list[Played]]]
"""Plays the seeds with this many in flight."""


async def print_rounds(a_round: ARound, rounds: str) -> None:
    """Plays the rounds and prints a line of JSON for each, with CPU seconds of this process and its children.

    rounds: JSON, [[in flight, rollouts], …].
    """
    await a_round(4, WARM_UP_SEEDS)
    for in_flight, count in json.loads(rounds):
        cpu, begun = _cpu_seconds(), time.perf_counter()
        played = await a_round(in_flight, range(FIRST_SEED, FIRST_SEED + count))
        wall, cpu = time.perf_counter() - begun, _cpu_seconds() - cpu
        result = {
            "in_flight": in_flight,
            "turns": sum(one.turns for one in played),
            "cpu_seconds": cpu,
            "wall_seconds": wall,
            "latencies_ms": [one.latency_ms for one in played],
            "rewards": sum(one.reward for one in played),
        }
        print(json.dumps(result), flush=True)


async def by_callers(
    rollout: Callable[[int], Awaitable[tuple[int, float]]], in_flight: int, seeds: range
) -> list[Played]:
    """Plays a round with this many callers, each running one rollout after the other. rollout(seed): turns and reward."""
    played: list[Played] = []

    async def caller(todo: Iterator[int]) -> None:
        for seed in todo:
            sent = time.perf_counter()
            turns, reward = await rollout(seed)
            played.append(Played(turns, reward, (time.perf_counter() - sent) * 1000))

    waiting = iter(seeds)
    await asyncio.gather(*(caller(waiting) for _ in range(in_flight)))
    return played


def _cpu_seconds() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
