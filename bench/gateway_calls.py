"""What the gateway adds to a call of the model: CPU and latency beside a bare server that reads the same bodies."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import orjson

from bench import load
from bench.gateway_server import ANSWER, ATTEMPTS
from bench.processes import ROOT, Server, served
from bench.tables import Table, middle

TURNS = 5
IN_FLIGHT = (1, 16, 128)
SYSTEM = "You play a game. Answer with one word: north, south, east or west. " * 4
KINDS = {"bare": "a bare server", "gateway": "the gateway"}


@dataclass(frozen=True)
class Cost:
    """One run. Of a call, in ms."""

    cpu: float
    p50: float
    p99: float


def measure(repetitions: int, scratch: Path) -> Table:
    """Measures both, taking turns."""
    costs: dict[tuple[str, int], list[Cost]] = {}
    with _served("bare", scratch) as plain, _served("gateway", scratch) as gateway:
        for repetition in range(repetitions + 1):  # the first one only warms up
            for in_flight in IN_FLIGHT:
                for kind, server in (("bare", plain), ("gateway", gateway)):
                    cost = _cost(kind, server, in_flight)
                    if repetition:
                        costs.setdefault((kind, in_flight), []).append(cost)
    return table(costs, repetitions)


def _served(kind: str, scratch: Path) -> Any:
    return served(
        kind, [sys.executable, str(ROOT / "bench" / "gateway_server.py"), "{port}", kind], ROOT, scratch / "home"
    )


def _cost(kind: str, server: Server, in_flight: int) -> Cost:
    paths = [""] * ATTEMPTS
    if kind == "gateway":
        found = asyncio.run(_attempts(server))
        server, paths = replace(server, address=found["origin"]), found["paths"]
    # all first turns, then all second ones: a talk goes on when its answer is there
    bodies = [{"path": f"{path}/chat/completions", "turn": turn} for turn in range(TURNS) for path in paths]
    run = load.run(server, bodies, in_flight, ANSWER.encode(), ask=_call)
    return Cost(run.cpu_ms, run.p50_ms, run.p99_ms)


async def _attempts(server: Server) -> Any:
    async with aiohttp.ClientSession(server.address) as session, session.post("/attempts") as response:
        return await response.json()


def _talk(turns: int) -> bytes:
    """The body of a call with so many turns before it."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "You stand in a wood."}]
    for turn in range(turns):
        messages += [
            {"role": "assistant", "content": ANSWER},
            {"role": "user", "content": f"You went {turn + 1} steps, and see a tree, a stone, and a path."},
        ]
    return orjson.dumps({"model": "policy", "messages": messages, "max_tokens": 16, "temperature": 1.0})


BODIES = [_talk(turns) for turns in range(TURNS)]


async def _call(session: aiohttp.ClientSession, body: bytes) -> tuple[int, bytes]:
    call = orjson.loads(body)
    async with session.post(call["path"], data=BODIES[call["turn"]]) as response:
        return response.status, await response.read()


def table(costs: dict[tuple[str, int], list[Cost]], repetitions: int) -> Table:
    rows = [
        [
            f"{KINDS[kind]}, {in_flight} in flight",
            middle([cost.cpu for cost in mine]),
            middle([cost.p50 for cost in mine]),
            middle([cost.p99 for cost in mine]),
        ]
        for (kind, in_flight), mine in sorted(costs.items(), key=lambda item: (item[0][1], item[0][0]))
    ]
    added = {
        in_flight: median(
            [
                ours.cpu - bare.cpu
                for ours, bare in zip(costs["gateway", in_flight], costs["bare", in_flight], strict=True)
            ]
        )
        for in_flight in IN_FLIGHT
    }
    return Table(
        title="A call at the training gateway",
        header=["", "CPU, ms per call", "p50, ms", "p99, ms"],
        rows=rows,
        notes=[
            (
                f"Median (range) of {repetitions} repetitions with {ATTEMPTS} conversations of {TURNS} turns and one "
                "call per turn. The sampler replies immediately. The bare server reads the same request bodies with "
                "the same code and returns fixed bytes. The gateway renders the prompt, recognizes the turn that a "
                "call continues, and records the call and its reply."
            ),
            "The gateway adds CPU time to each call: "
            + ", ".join(f"{ms:.2f} ms with {in_flight} in flight" for in_flight, ms in added.items())
            + ".",
        ],
    )
