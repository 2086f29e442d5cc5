"""512 rollouts in flight with a failing model: right, wrong, declared and lost rollouts, and the server's latency."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench import load
from bench.fault_count import Outcome, Reward, Tally
from bench.health_probe import HealthProbe
from bench.model_turns import ANSWERED, APP, TURNS, body
from bench.processes import ROOT, Server, our_command, served
from bench.tables import Budget, Table
from taskapp_kit.testing import Faults, MockModel, MockProcess

SECONDS = 60.0
IN_FLIGHT = 512
LATENCY_SECONDS = 0.2
SHARE = 0.05
KINDS = ("429", "500", "503", "reset", "truncated", "hang")
SEEDS = 1000
WARM_SHARE = 1 / 3
"""Share of the time before memory is measured: by then calls hang and are given up at a steady rate."""
DEADLINE_SECONDS = 60.0
LOST_AFTER_SECONDS = DEADLINE_SECONDS + 30
DECLARED_AT = ("policy", "timeout")


@dataclass
class Seen(Tally):
    """The outcomes of the rollouts, and the server's figures; `in_time`: right ones within the run's seconds."""

    in_time: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    health_ms: list[float] = field(default_factory=list)
    growth_megabytes: float = 0.0
    resident_megabytes: float = 0.0
    cpu_seconds: float = 0.0
    calls: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)
    load_average: float = 0.0


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure(repetitions: int, scratch: Path, seconds: float = SECONDS) -> Table:
    """For each repetition: a new server, the answers without faults, then `seconds` with them. Raises BenchFailed."""
    runs = []
    for _ in range(repetitions):
        with served("faults", our_command(APP), ROOT, scratch / "home") as server:
            expected = answers_without_faults(server)
            faults = Faults({kind: SHARE / len(KINDS) for kind in KINDS}, seed=1)
            with MockModel.process(latency_seconds=LATENCY_SECONDS, faults=faults) as model:
                runs.append(asyncio.run(under_faults(server, model, expected, seconds)))
    return table(runs, seconds)


def answers_without_faults(server: Server) -> dict[int, Reward]:
    """Seed to (digest, reward), with a model that never fails."""
    with MockModel.process() as model:
        requests = [body(model.url, seed) for seed in range(SEEDS)]
        run = load.run(server, requests, 64, ANSWERED, keep=True)
    return {int(answer["run_id"].removeprefix("seed-")): _compared(answer) for answer in run.answers}


def _compared(answer: Mapping[str, Any]) -> Reward:
    return answer["digest"], answer["reward"]


async def under_faults(server: Server, model: MockProcess, expected: Mapping[int, Reward], seconds: float) -> Seen:
    seen = Seen(load_average=os.getloadavg()[0])
    headers = {"X-API-Key": server.key, "Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=LOST_AFTER_SECONDS)
    cpu = server.cpu_seconds()
    end = time.monotonic() + seconds
    seeds = itertools.cycle(expected)
    async with (
        aiohttp.ClientSession(
            server.address, connector=aiohttp.TCPConnector(limit=0), headers=headers, timeout=timeout
        ) as session,
        HealthProbe(server) as probe,
    ):
        callers = [
            asyncio.create_task(_caller(session, model.url, seeds, expected, seen, end)) for _ in range(IN_FLIGHT)
        ]
        resident = []
        while time.monotonic() < end:
            if time.monotonic() > end - seconds * (1 - WARM_SHARE):
                resident.append(server.resident_megabytes())
            await asyncio.sleep(1.0)
        seen.cpu_seconds = server.cpu_seconds() - cpu
        seen.growth_megabytes, seen.resident_megabytes = resident[-1] - resident[0], resident[-1]
        stats = await asyncio.to_thread(model.stats)
        seen.calls, seen.faults = int(stats["requests"]), stats["faults"]
        await asyncio.gather(*callers)
    seen.health_ms = probe.latencies_ms
    return seen


async def _caller(
    session: aiohttp.ClientSession,
    address: str,
    seeds: Iterator[int],
    expected: Mapping[int, Reward],
    seen: Seen,
    end: float,
) -> None:
    while time.monotonic() < end:
        seed = next(seeds)
        request = {**body(address, seed), "safety": {"max_time_s": DEADLINE_SECONDS}}
        sent = time.monotonic()
        try:
            async with session.post("/rollout", data=json.dumps(request)) as response:
                status, answer = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            seen.count(Outcome(), expected[seed], (), f"{type(error).__name__}: {error}")
            continue
        now = time.monotonic()
        seen.latencies_ms.append((now - sent) * 1000)
        judge(status, answer, expected[seed], seen, in_time=now <= end)


def judge(status: int, answer: bytes, expected: Reward, seen: Seen, *, in_time: bool) -> None:
    """Count one answer. Right: equal to the one without faults; declared: a typed failure at the model; else lost."""
    try:
        body = json.loads(answer)
    except json.JSONDecodeError:
        body = {}
    detail = body.get("detail")
    error = detail.get("error", {}) if isinstance(detail, dict) else {}
    code = f"{status} {error.get('code')}"
    outcome = Outcome([_compared(body)] if status == 200 and "digest" in body else [], code)
    right = seen.right
    seen.count(outcome, expected, {code} if error.get("boundary") in DECLARED_AT else (), repr(answer[:300]))
    seen.in_time += in_time and seen.right > right


def table(runs: list[Seen], seconds: float) -> Table:
    speeds = [run.in_time / seconds for run in runs]
    health = [percentile(run.health_ms, 0.99) for run in runs]
    growth = [run.growth_megabytes for run in runs]
    bad = sum(run.wrong + run.lost for run in runs)
    declared: Counter[str] = sum((run.declared for run in runs), Counter())
    kinds: Counter[str] = sum((Counter(run.faults) for run in runs), Counter())
    notes = [
        (
            f"{IN_FLIGHT} rollouts of {TURNS} turns are in flight for {seconds:.0f} s. The model takes "
            f"{LATENCY_SECONDS * 1000:.0f} ms per call, and {SHARE:.0%} of its calls fail in one of these ways, "
            f"equally often: {', '.join(KINDS)}. A rollout is right if its digest and reward equal those of the same "
            "seed without faults, wrong if they differ, declared if it reports a failure of the model by name, and "
            "otherwise lost. Rollouts/s counts right rollouts. A separate process requests /health. Growth of memory "
            "is measured after the first third of the time (10^6 bytes). The load average before the run was "
            f"{runs[0].load_average:.1f}."
        ),
        f"Failed calls: {_listed(kinds)}. Declared: {_listed(declared) or 'none'}.",
        *(run.examples[0] for run in runs if run.examples),
        Budget("no rollout is wrong or lost", f"{bad} of {sum(run.asked for run in runs)}", bad == 0).sentence(),
        Budget("at least 200 rollouts/s", f"{min(speeds):.0f}", min(speeds) >= 200).sentence(),
        Budget(
            "the p99 of /health is under 50 ms on a quiet machine", f"{max(health):.0f} ms", max(health) < 50
        ).sentence(),
        Budget("memory grows by less than 50 MB", f"{max(growth):.0f} MB", max(growth) < 50).sentence(),
    ]
    return Table(
        title="A model that fails",
        header=[
            "",
            "right",
            "wrong",
            "declared",
            "lost",
            "rollouts/s",
            "p50, s",
            "p99, s",
            "/health p99, ms",
            "calls per turn",
            "server CPU, ms per call",
            "memory, MB",
            "growth, MB",
        ],
        rows=[
            [
                f"repetition {number}",
                str(run.right),
                str(run.wrong),
                str(run.declared.total()),
                str(run.lost),
                f"{speed:.0f}",
                f"{percentile(run.latencies_ms, 0.5) / 1000:.2f}",
                f"{percentile(run.latencies_ms, 0.99) / 1000:.1f}",
                f"{percentile(run.health_ms, 0.99):.0f}",
                f"{run.calls / (run.calls - sum(run.faults.values())):.3f}",
                f"{run.cpu_seconds / run.calls * 1000:.2f}",
                f"{run.resident_megabytes:.0f}",
                f"{run.growth_megabytes:.1f}",
            ]
            for number, (run, speed) in enumerate(zip(runs, speeds, strict=True), 1)
        ],
        notes=notes,
    )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in sorted(counts.items()))
