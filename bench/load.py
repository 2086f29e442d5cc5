"""The load: so many rollouts, so many of them in flight, from this process, whose CPU is nobody's figure."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from bench.processes import BenchFailed, Server

REQUEST_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Run:
    """What a run of rollouts cost the server and its callers. Latencies in ms, in order of completion."""

    rollouts: int
    server_cpu_seconds: float
    wall_seconds: float
    latencies_ms: list[float]
    answers: list[dict[str, Any]]

    @property
    def cpu_ms(self) -> float:
        """Server CPU of one rollout, ms."""
        return self.server_cpu_seconds / self.rollouts * 1000

    @property
    def p99_ms(self) -> float:
        """99th percentile of the latency, ms."""
        return sorted(self.latencies_ms)[min(self.rollouts - 1, int(self.rollouts * 0.99))]

    @property
    def rollouts_per_second(self) -> float:
        return self.rollouts / self.wall_seconds


Bodies = Sequence[dict[str, Any]]


def run(server: Server, bodies: Bodies, in_flight: int, must_contain: bytes, keep: bool = False) -> Run:
    """Posts each body to /rollout. Every answer must be a 200 with `must_contain` in it; `keep` parses and keeps them.

    Raises BenchFailed at the first wrong answer: a fast server that answers wrongly has no figure.
    """
    return asyncio.run(_run(server, bodies, in_flight, must_contain, keep))


async def _run(server: Server, bodies: Bodies, in_flight: int, must_contain: bytes, keep: bool) -> Run:
    latencies: list[float] = []
    answers: list[dict[str, Any]] = []
    waiting = iter([json.dumps(body).encode() for body in bodies])
    headers = {"X-API-Key": server.key, "Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS)
    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(server.address, connector=connector, headers=headers, timeout=timeout) as session:

        async def caller(todo: Iterator[bytes]) -> None:
            for body in todo:
                sent = time.perf_counter()
                async with session.post("/rollout", data=body) as response:
                    answer = await response.read()
                latencies.append((time.perf_counter() - sent) * 1000)
                if response.status != 200 or must_contain not in answer:
                    said = answer[:500].decode(errors="replace")
                    raise BenchFailed(f"{server.name} answered {response.status}: {said}")
                if keep:
                    answers.append(json.loads(answer))

        cpu_before, wall_before = server.cpu_seconds(), time.perf_counter()
        await asyncio.gather(*(caller(waiting) for _ in range(in_flight)))
        wall, cpu = time.perf_counter() - wall_before, server.cpu_seconds() - cpu_before
    return Run(len(bodies), cpu, wall, latencies, answers)
