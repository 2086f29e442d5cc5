"""The cost of an event stream, an Idempotency-Key and respond-async beside a plain POST, on the trivial rollout."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import ExitStack
from pathlib import Path

import aiohttp

from bench import load
from bench.processes import ROOT, BenchFailed, our_command, served
from bench.tables import Table, middle
from bench.trivial_rollout import ANSWERED, IN_FLIGHT, WARM_UP, bodies

ROLLOUTS = 1000
STORES = ("store off", "store on (SQLite)")
_numbers = itertools.count()
_fetches = [0]
"""How many GET requests respond-async needed for its results."""


async def streamed(session: aiohttp.ClientSession, body: bytes) -> tuple[int, bytes]:
    """Sends `Accept: text/event-stream` and reads every event; the answer is the last one's data."""
    async with session.post("/rollout", data=body, headers={"Accept": "text/event-stream"}) as response:
        stream = await response.read()
    if response.status != 200:
        return response.status, stream
    *events, last = stream.rstrip(b"\n").split(b"\n\n")
    if not events or b"\nevent: result\n" not in b"\n" + last:
        raise BenchFailed(f"The event stream has {len(events)} events and ends with {last[:200]!r}.")
    return 200, last.partition(b"data: ")[2]


async def keyed(session: aiohttp.ClientSession, body: bytes) -> tuple[int, bytes]:
    """Sends an `Idempotency-Key`, a new one for each rollout."""
    async with session.post("/rollout", data=body, headers={"Idempotency-Key": f"bench-{next(_numbers)}"}) as response:
        return response.status, await response.read()


async def fetched(session: aiohttp.ClientSession, body: bytes) -> tuple[int, bytes]:
    """Sends `Prefer: respond-async`, then GET until the result is there, waiting on the server's side."""
    async with session.post("/rollout", data=body, headers={"Prefer": "respond-async"}) as response:
        answer = await response.read()
        status, location = response.status, response.headers.get("Location", "")
    while status == 202:
        _fetches[0] += 1
        async with session.get(location, headers={"Prefer": "wait=20"}) as response:
            status, answer = response.status, await response.read()
        if status == 202:
            await asyncio.sleep(0.01)
    return status, answer


WAYS: dict[str, load.Ask] = {
    "plain `POST /rollout`": load.posted,
    "`Accept: text/event-stream`": streamed,
    "`Idempotency-Key`": keyed,
    "`Prefer: respond-async`, then `GET`": fetched,
}
PLAIN = next(iter(WAYS))


def measure(repetitions: int, scratch: Path) -> Table:
    """Measures both servers in turns, and on each server the ways."""
    app = str(ROOT / "bench" / "counter_app.py")
    commands = dict(
        zip(STORES, (our_command(app), our_command(app, f"sqlite:///{scratch / 'ways.sqlite'}")), strict=True)
    )
    runs: dict[tuple[str, str], list[load.Run]] = {(store, way): [] for store in STORES for way in WAYS}
    with ExitStack() as stack:
        servers = {
            store: stack.enter_context(served(store, command, ROOT, scratch / "home"))
            for store, command in commands.items()
        }
        for server in servers.values():
            for ask in WAYS.values():
                load.run(server, bodies(WARM_UP), IN_FLIGHT, ANSWERED, ask=ask)
        _fetches[0] = 0
        for _ in range(repetitions):
            for store, server in servers.items():
                for way, ask in WAYS.items():
                    runs[store, way].append(load.run(server, bodies(ROLLOUTS), IN_FLIGHT, ANSWERED, ask=ask))
    rows = []
    for (store, way), mine in runs.items():
        beside = [run.cpu_ms / plain.cpu_ms for run, plain in zip(mine, runs[store, PLAIN], strict=True)]
        rows.append(
            [
                f"{store}: {way}",
                middle([run.cpu_ms for run in mine], 3),
                middle(beside),
                middle([run.p50_ms for run in mine], 1),
                middle([run.p99_ms for run in mine], 1),
            ]
        )
    gets = _fetches[0] / (repetitions * ROLLOUTS * len(STORES))
    return Table(
        title="Ways to request a rollout",
        header=["", "server CPU, ms per rollout", "this ÷ plain `POST`", "p50, ms", "p99, ms"],
        rows=rows,
        notes=[
            (
                f"Median (range) of {repetitions} repetitions with {ROLLOUTS} of the rollouts of the section above, "
                f"{IN_FLIGHT} in flight. The client reads all events of a "
                "stream; the last event is the result. Each `Idempotency-Key` is new. With `respond-async`, the "
                f"client fetches the result with `Prefer: wait` ({gets:.2f} requests per rollout, included in CPU and "
                "latency)."
            )
        ],
    )
