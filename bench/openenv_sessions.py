"""OpenEnv's WebSocket: steps, sessions opened and memory, our server beside openenv-core's own, the same lean client.

Ours runs with a key, which theirs has not; it also scores each episode, which theirs does not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from bench.processes import ROOT, BenchFailed, Server, our_command, peer_python, served
from bench.socket_client import SocketClient, connected
from bench.tables import Budget, Table, middle

SESSIONS = (1, 16)
STEPS = {1: 2000, 16: 6000}
EPISODE_STEPS = 100
OPENED = 300
AT_ONCE = 16
IDLE = 500
STEP, CLOSE = b'{"type":"step","data":{"by":1}}', b'{"type":"close"}'
OURS, DEFAULTS, THEIRS = "taskapp-kit", "taskapp-kit, store on (SQLite), as by default", "openenv-core 0.3.0"
FORMS = ("async", "sync")


@dataclass(frozen=True)
class Driven:
    """One run of steps. cpu_us: of the server, a step, resets included. Latencies of steps in ms."""

    cpu_us: float
    steps_per_second: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Opened:
    """One run of sessions: connect, reset, close."""

    cpu_ms: float
    per_second: float


def url_of(server: Server, form: str) -> str:
    path = "/ws" if server.name.startswith(THEIRS) else f"/openenv/{form}/ws"
    return server.address.replace("http://", "ws://") + path


def reset(seed: int) -> bytes:
    return b'{"type":"reset","data":{"seed":%d}}' % seed


async def _play(client: SocketClient, seeds: Sequence[int], latencies: list[float]) -> None:
    for seed in seeds:
        if b'"done":false' not in (answer := await client.ask(reset(seed))).replace(b" ", b""):
            raise BenchFailed(f"a reset was answered {answer[:300]!r}")
        for _ in range(EPISODE_STEPS):
            sent = time.perf_counter()
            answer = await client.ask(STEP)
            latencies.append((time.perf_counter() - sent) * 1000)
            if b'"observation"' not in answer:
                raise BenchFailed(f"a step was answered {answer[:300]!r}")
        if b'"done":true' not in answer.replace(b" ", b""):
            raise BenchFailed(f"the last step was answered {answer[:300]!r}")


async def drive(server: Server, form: str, sessions: int, steps: int) -> Driven:
    """Plays whole episodes in so many sessions at once, together so many steps. Raises BenchFailed."""
    clients = [await connected(url_of(server, form), server.key) for _ in range(sessions)]
    latencies: list[float] = []
    episodes = steps // EPISODE_STEPS // sessions
    cpu, begun = server.cpu_seconds(), time.perf_counter()
    await asyncio.gather(
        *(
            _play(client, range(number * episodes, (number + 1) * episodes), latencies)
            for number, client in enumerate(clients)
        )
    )
    wall, cpu = time.perf_counter() - begun, server.cpu_seconds() - cpu
    for client in clients:
        client.close(CLOSE)
    done = sorted(latencies)
    return Driven(
        cpu / len(done) * 1e6, len(done) / wall, done[len(done) // 2], done[min(len(done) - 1, int(len(done) * 0.99))]
    )


async def open_sessions(server: Server, form: str, count: int) -> Opened:
    """Opens so many sessions, some at a time: connect, reset, close."""
    seeds = iter(range(count))

    async def one_after_the_other() -> None:
        for seed in seeds:
            client = await connected(url_of(server, form), server.key)
            if b'"observation"' not in (answer := await client.ask(reset(seed))):
                raise BenchFailed(f"a reset was answered {answer[:300]!r}")
            client.close(CLOSE)

    cpu, begun = server.cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))
    wall = time.perf_counter() - begun
    await asyncio.sleep(1.0)  # what the server does after a close counts, too
    return Opened((server.cpu_seconds() - cpu) / count * 1000, count / wall)


async def idle_kilobytes(server: Server, form: str, count: int) -> float:
    """Memory that a session takes which was reset and waits, in kB (10^3 bytes)."""
    before = server.resident_megabytes()
    clients = []
    for seed in range(count):
        client = await connected(url_of(server, form), server.key)
        await client.ask(reset(seed))
        clients.append(client)
    taken = server.resident_megabytes() - before
    for client in clients:
        client.close(CLOSE)
    return taken * 1000 / count


async def episode(server: Server, form: str, seed: int) -> list[Any]:
    """What both servers must return alike: observation, reward and done of an episode."""
    client = await connected(url_of(server, form), server.key)
    answers = [await client.ask(reset(seed)), *[await client.ask(STEP) for _ in range(EPISODE_STEPS)]]
    client.close(CLOSE)
    found = []
    for answer in map(orjson.loads, answers):
        data = answer["data"]
        observation = {name: data["observation"][name] for name in ("count", "target", "step")}
        found.append((observation, data["reward"], data["done"]))
    return found


def compare(servers: Sequence[Server], form: str) -> None:
    """Raises BenchFailed unless all servers play the same episode."""
    first, *others = [asyncio.run(episode(server, form, 7)) for server in servers]
    if any(other != first for other in others):
        raise BenchFailed("the servers answer differently: the comparison would mean nothing.")


def commands(form: str, scratch: Path) -> dict[str, list[str]]:
    app = str(ROOT / "bench" / "session_app.py")
    ours = our_command(app, "{store}")
    ours += ["--protocols", "openenv"]
    stored = f"sqlite:///{scratch / f'sessions-{form}.sqlite'}"
    factory = ["--factory", f"openenv_reference_app:{form}_app", "--app-dir", str(ROOT / "bench")]
    return {
        OURS: [part.replace("{store}", "none") for part in ours],
        DEFAULTS: [part.replace("{store}", stored) for part in ours],
        THEIRS: [
            peer_python("openenv-core-0.3.0"), "-m", "uvicorn", *factory, "--host", "127.0.0.1", "--port", "{port}",
            "--no-access-log", "--log-level", "warning",
        ],
    }  # fmt: skip


def measure(repetitions: int, scratch: Path) -> Table:
    """Measures the servers in turns, for an async environment and a sync one; the others idle meanwhile."""
    driven: dict[tuple[str, str, int], list[Driven]] = {}
    opened: dict[tuple[str, str], list[Opened]] = {}
    idle: dict[tuple[str, str], float] = {}
    for form in FORMS:
        with ExitStack() as stack:
            servers = [
                stack.enter_context(served(name, command, ROOT, scratch / "home"))
                for name, command in commands(form, scratch).items()
            ]
            compare(servers, form)
            for server in servers:
                asyncio.run(drive(server, form, 16, 1600))
            for _ in range(repetitions):
                for sessions in SESSIONS:
                    for server in servers:
                        run = asyncio.run(drive(server, form, sessions, STEPS[sessions]))
                        driven.setdefault((form, server.name, sessions), []).append(run)
                for server in servers:
                    opened.setdefault((form, server.name), []).append(asyncio.run(open_sessions(server, form, OPENED)))
            for server in servers:
                idle[form, server.name] = asyncio.run(idle_kilobytes(server, form, IDLE))
    return table(driven, opened, idle, repetitions)


def table(
    driven: dict[tuple[str, str, int], list[Driven]],
    opened: dict[tuple[str, str], list[Opened]],
    idle: dict[tuple[str, str], float],
    repetitions: int,
) -> Table:
    rows = []
    budgets = []
    for form in FORMS:
        for name in (OURS, DEFAULTS, THEIRS):
            for sessions in SESSIONS:
                runs, peers = driven[form, name, sessions], driven[form, THEIRS, sessions]
                faster = [run.steps_per_second / peer.steps_per_second for run, peer in zip(runs, peers, strict=True)]
                cheaper = [peer.cpu_us / run.cpu_us for run, peer in zip(runs, peers, strict=True)]
                last = sessions == SESSIONS[-1]
                openings = opened[form, name]
                rows.append(
                    [
                        f"{name}, {form}, {sessions}",
                        middle([run.cpu_us for run in runs], 0),
                        middle(cheaper),
                        f"{median([run.steps_per_second for run in runs]):.0f}",
                        middle(faster),
                        f"{median([run.p50_ms for run in runs]):.2f}",
                        f"{median([run.p99_ms for run in runs]):.1f}",
                        f"{median([run.per_second for run in openings]):.0f}" if last else "",
                        middle([run.cpu_ms for run in openings]) if last else "",
                        f"{idle[form, name]:.0f}" if last else "",
                    ]
                )
                if name == OURS:
                    seen = median(faster)
                    plural = "sessions" if sessions > 1 else "session"
                    words = f"{form}, {sessions} {plural}: at least OpenEnv's steps/s (goal: 1.5 times)"
                    budgets.append(Budget(words, f"{seen:.2f} × (CPU: {median(cheaper):.2f} ×)", seen >= 1))
    return Table(
        title="Sessions, compared with OpenEnv's own server",
        header=[
            "server, environment, concurrent sessions",
            "server CPU, µs per step",
            "OpenEnv's CPU ÷ this",
            "steps/s",
            "this ÷ OpenEnv's",
            "p50, ms",
            "p99, ms",
            "sessions opened/s",
            "server CPU, ms per session",
            "idle, kB per session",
        ],
        rows=rows,
        notes=[
            (
                f"The environment is a counter with episodes of {EPISODE_STEPS} steps, played over OpenEnv's `/ws`, "
                f"including resets. The figures are the median (range) of {repetitions} repetitions with {STEPS[1]} "
                f"steps in 1 session or {STEPS[16]} steps in 16 sessions. One small "
                "client drives both servers and uses the same 2 cores. Our server checks a key, and records and "
                "scores every episode; OpenEnv's does not. OpenEnv's server awaits an async environment on its event "
                "loop; our server never runs an author's code there. Each server has its default dependencies; only "
                "ours include uvloop."
            ),
            (
                f"An opened session is connected, reset and closed; {OPENED} per repetition, {AT_ONCE} at a time. "
                f"Idle is the server's memory for each of {IDLE} waiting sessions, measured once (10^3 bytes)."
            ),
            *[budget.sentence() for budget in budgets],
        ],
    )
