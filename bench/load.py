"""The load generator: sends rollouts with a fixed number in flight from this process, whose own CPU is not measured."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from bench.processes import BenchFailed, Server

REQUEST_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Run:
    """The costs of a run of rollouts. Latencies in ms, in order of completion.

    server_cpu_seconds: of all its processes; parent_cpu_seconds: of the one that listens.
    """

    rollouts: int
    server_cpu_seconds: float
    parent_cpu_seconds: float
    wall_seconds: float
    latencies_ms: list[float]
    answers: list[dict[str, Any]]

    @property
    def cpu_ms(self) -> float:
        """Server CPU of one rollout, ms."""
        return self.server_cpu_seconds / self.rollouts * 1000

    @property
    def parent_share(self) -> float:
        """The listening process's share of one core, 0 to 1."""
        return self.parent_cpu_seconds / self.wall_seconds

    @property
    def p50_ms(self) -> float:
        """Median of the latency, ms."""
        return self._percentile(0.5)

    @property
    def p99_ms(self) -> float:
        """99th percentile of the latency, ms."""
        return self._percentile(0.99)

    def _percentile(self, share: float) -> float:
        return sorted(self.latencies_ms)[min(self.rollouts - 1, int(self.rollouts * share))]

    @property
    def rollouts_per_second(self) -> float:
        return self.rollouts / self.wall_seconds


Bodies = Sequence[dict[str, Any]]
Ask = Callable[[aiohttp.ClientSession, bytes], Awaitable[tuple[int, bytes]]]
"""Sends one body; returns (HTTP status, answer)."""


async def posted(session: aiohttp.ClientSession, body: bytes) -> tuple[int, bytes]:
    """Sends a plain POST /rollout, and waits."""
    async with session.post("/rollout", data=body) as response:
        return response.status, await response.read()


def run(
    server: Server, bodies: Bodies, in_flight: int, must_contain: bytes, keep: bool = False, ask: Ask = posted
) -> Run:
    """Sends each body to /rollout. Every answer must be a 200 that contains `must_contain`; `keep` returns them parsed.

    Raises BenchFailed at the first wrong answer: speed means nothing if answers are wrong.
    """
    return asyncio.run(_run(server, bodies, in_flight, must_contain, keep, ask))


async def _run(server: Server, bodies: Bodies, in_flight: int, must_contain: bytes, keep: bool, ask: Ask) -> Run:
    latencies: list[float] = []
    stored: list[bytes] = []
    waiting = iter([json.dumps(body).encode() for body in bodies])
    headers = {"X-API-Key": server.key, "Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS)
    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(server.address, connector=connector, headers=headers, timeout=timeout) as session:

        async def caller(todo: Iterator[bytes]) -> None:
            for body in todo:
                sent = time.perf_counter()
                status, answer = await ask(session, body)
                latencies.append((time.perf_counter() - sent) * 1000)
                if status != 200 or must_contain not in answer:
                    text = answer[:500].decode(errors="replace")
                    raise BenchFailed(f"{server.name} answered {status}: {text}")
                if keep:
                    stored.append(answer)

        cpu_before, parent_before = server.cpu_seconds(), server.parent_cpu_seconds()
        begun = time.perf_counter()
        await asyncio.gather(*(caller(waiting) for _ in range(in_flight)))
        wall = time.perf_counter() - begun
        cpu, parent = server.cpu_seconds() - cpu_before, server.parent_cpu_seconds() - parent_before
    return Run(len(bodies), cpu, parent, wall, latencies, [json.loads(answer) for answer in stored])
