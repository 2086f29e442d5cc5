"""ORS: calls of a tool, our server beside openreward's own, the same lean client.

Ours runs with a key, which theirs has not; it also scores each episode, which theirs does not.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp

from bench.processes import ROOT, BenchFailed, Server, our_command, peer_python, served
from bench.tables import Budget, Table, middle

SESSIONS = (1, 16)
CALLS = {1: 600, 16: 3200}
EPISODE_STEPS = 100
OURS, DEFAULTS, THEIRS = "taskapp-kit", "taskapp-kit, store on (SQLite), as by default", "openreward 0.1.167"
CALL = {"name": "increment", "input": {"by": 1}}


@dataclass(frozen=True)
class Driven:
    """One run of calls. cpu_us: of the server, a call, without what opens and closes sessions."""

    cpu_us: float
    calls_per_second: float


async def _session(http: aiohttp.ClientSession, server: Server, seed: int, seen: list[str] | None = None) -> str:
    """Opens a session on an episode of this seed, and returns its id."""
    sid = uuid.uuid4().hex
    headers = {"X-Session-ID": sid}
    body = {"env_name": "sync", "task_spec": {"seed": seed}}
    async with http.post(f"{server.address}/create", json=body, headers=headers) as answer:
        if answer.status != 200:
            raise BenchFailed(f"{server.name} answered /create with {answer.status}: {await answer.text()}")
    async with http.get(f"{server.address}/sync/prompt", headers=headers) as answer:
        blocks = await answer.json()
    if seen is not None:
        seen.append(blocks[-1]["text"])
    return sid


async def _call(http: aiohttp.ClientSession, server: Server, sid: str) -> bytes:
    async with http.post(f"{server.address}/sync/call", json=CALL, headers={"X-Session-ID": sid}) as answer:
        body = await answer.read()
    if b'"ok":true' not in body.replace(b" ", b""):
        raise BenchFailed(f"{server.name} answered a call with {body[:300]!r}")
    return body


async def _close(http: aiohttp.ClientSession, server: Server, sid: str) -> None:
    async with http.post(f"{server.address}/delete", headers={"X-Session-ID": sid}) as answer:
        await answer.read()


def _http(server: Server) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers={"X-API-Key": server.key}, connector=aiohttp.TCPConnector(limit=0))


async def drive(server: Server, sessions: int, calls: int) -> Driven:
    """Plays whole episodes in so many sessions at once, together so many calls. Raises BenchFailed."""
    cpu = wall = 0.0
    async with _http(server) as http:
        for episode in range(calls // EPISODE_STEPS // sessions):
            sids = [await _session(http, server, episode * sessions + number) for number in range(sessions)]

            async def play(sid: str) -> None:
                for _ in range(EPISODE_STEPS):
                    await _call(http, server, sid)

            cpu_before, begun = server.cpu_seconds(), time.perf_counter()
            await asyncio.gather(*(play(sid) for sid in sids))
            wall += time.perf_counter() - begun
            cpu += server.cpu_seconds() - cpu_before
            for sid in sids:
                await _close(http, server, sid)
    return Driven(cpu / calls * 1e6, calls / wall)


async def episode(server: Server, seed: int) -> list[object]:
    """What the servers must return alike: text, reward and end of each call."""
    seen: list[str] = []
    found: list[object] = []
    async with _http(server) as http:
        sid = await _session(http, server, seed, seen)
        for _ in range(EPISODE_STEPS):
            lines = (await _call(http, server, sid)).decode().splitlines()
            kind, data = "", ""
            for line in lines:
                kind = line.removeprefix("event: ") if line.startswith("event: ") else kind
                data += line.removeprefix("data: ") if line.startswith("data: ") and kind != "task_id" else ""
            output = json.loads(data)["output"]
            text = json.loads(output["blocks"][0]["text"])
            found.append((text, output["reward"], output["finished"]))
        await _close(http, server, sid)
    return [json.loads(seen[0]), *found]


def compare(servers: Sequence[Server]) -> None:
    """Raises BenchFailed unless all servers play the same episode."""
    first, *others = [asyncio.run(episode(server, 7)) for server in servers]
    if any(other != first for other in others):
        raise BenchFailed("the servers answer differently: the comparison would mean nothing.")


def commands(scratch: Path) -> dict[str, list[str]]:
    ours = [*our_command(str(ROOT / "bench" / "session_app.py"), "{store}"), "--protocols", "ors"]
    stored = f"sqlite:///{scratch / 'ors.sqlite'}"
    return {
        OURS: [part.replace("{store}", "none") for part in ours],
        DEFAULTS: [part.replace("{store}", stored) for part in ours],
        THEIRS: [
            peer_python("openreward-0.1.167"), "-m", "uvicorn", "--factory", "openreward_reference_app:app",
            "--app-dir", str(ROOT / "bench"), "--host", "127.0.0.1", "--port", "{port}", "--no-access-log",
            "--log-level", "warning",
        ],
    }  # fmt: skip


def measure(repetitions: int, scratch: Path) -> Table:
    """Measures the servers in turns; the others idle meanwhile."""
    driven: dict[tuple[str, int], list[Driven]] = {}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(served(name, command, ROOT, scratch / "home"))
            for name, command in commands(scratch).items()
        ]
        compare(servers)
        for server in servers:
            asyncio.run(drive(server, 1, 200))
        for _ in range(repetitions):
            for sessions in SESSIONS:
                for server in servers:
                    run = asyncio.run(drive(server, sessions, CALLS[sessions]))
                    driven.setdefault((server.name, sessions), []).append(run)
    return table(driven, repetitions)


def table(driven: dict[tuple[str, int], list[Driven]], repetitions: int) -> Table:
    rows = []
    budgets = []
    for name in (OURS, DEFAULTS, THEIRS):
        for sessions in SESSIONS:
            runs, peers = driven[name, sessions], driven[THEIRS, sessions]
            faster = [run.calls_per_second / peer.calls_per_second for run, peer in zip(runs, peers, strict=True)]
            cheaper = [peer.cpu_us / run.cpu_us for run, peer in zip(runs, peers, strict=True)]
            rows.append(
                [
                    f"{name}, {sessions}",
                    middle([run.cpu_us for run in runs], 0),
                    middle(cheaper),
                    f"{median([run.calls_per_second for run in runs]):.0f}",
                    middle(faster),
                ]
            )
            if name == OURS:
                seen = median(faster)
                words = f"{sessions} {'sessions' if sessions > 1 else 'session'}: at least 3 times openreward's calls/s"
                budgets.append(Budget(words, f"{seen:.2f} × (CPU: {median(cheaper):.2f} ×)", seen >= 3))
    return Table(
        title="Calls over ORS, compared with openreward's own server",
        header=[
            "server, concurrent sessions",
            "server CPU, µs per call",
            "openreward's CPU ÷ this",
            "calls/s",
            "this ÷ openreward's",
        ],
        rows=rows,
        notes=[
            (
                "Each call is a `POST /ENV/call` with its event stream; the environment is a counter with episodes of "
                f"{EPISODE_STEPS} calls. The figures are the median (range) of {repetitions} repetitions with "
                f"{CALLS[1]} calls in 1 session or {CALLS[16]} calls in 16 sessions, without opening and closing "
                "sessions. One client drives both servers and uses the same 2 cores, so "
                "the CPU ratio is more meaningful than the ratio of calls/s. Our server checks a key, and records and "
                "scores every episode. openreward's server does not, and for this test it logs only warnings (by "
                "default it logs each call)."
            ),
            *[budget.sentence() for budget in budgets],
        ],
    )
