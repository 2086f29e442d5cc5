"""The cost of a language model's turn: five tool calls a rollout, 1 to 512 rollouts in flight, beside two peers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import load
from bench.processes import ROOT, BenchFailed, bare_environment, our_command, peer_python, served
from bench.tables import Budget, Table, middle
from taskapp_kit.testing import MockModel

TURNS = 5
APP = str(ROOT / "bench" / "turns_app.py")
ANSWERED = b'"num_steps":%d' % TURNS
WARM_UP = 64
LATENCIES_SECONDS = (0.0, 0.05)
ROLLOUTS: Mapping[float, Mapping[int, int]] = {
    0.0: {1: 60, 16: 240, 128: 640, 512: 1536},
    0.05: {1: 16, 16: 240, 128: 640, 512: 1536},
}
"""Model's seconds to in flight to rollouts."""
PEER_ROLLOUTS = {1: 8, 16: 32, 128: 128, 512: 512}
PEER_SECONDS = 600.0
OURS = "taskapp-kit"
PEERS = {"verifiers 0.3.1 (v0)": "verifiers-0.3.1", "inspect-ai 0.3.285": "inspect-ai-0.3.285"}
PROGRAMS = {"verifiers-0.3.1": "verifiers_counter.py", "inspect-ai-0.3.285": "inspect_counter.py"}


@dataclass(frozen=True)
class Cell:
    """One run: one program, one model, one number in flight. Times in ms; `beyond` is a rollout's without the model's."""

    cpu_ms: float
    turns_per_second: float
    p50_beyond_ms: float
    p99_beyond_ms: float

    @classmethod
    def of(
        cls, turns: int, cpu_seconds: float, wall_seconds: float, latencies_ms: Sequence[float], model: float
    ) -> Cell:
        """model: seconds of one call."""
        beyond = sorted(each - TURNS * model * 1000 for each in latencies_ms)
        p50, p99 = (beyond[min(len(beyond) - 1, int(len(beyond) * share))] for share in (0.5, 0.99))
        return cls(cpu_seconds / turns * 1000, turns / wall_seconds, p50, p99)


Cells = dict[tuple[float, int], list[Cell]]
"""(Model's seconds, in flight) to repetitions."""


def body(address: str, seed: int, environment: str = "counter") -> dict[str, Any]:
    """The request for a rollout of the model at `address`."""
    return {
        "run_id": f"seed-{seed}",
        "env": {"env_name": environment, "seed": seed},
        "policy": {"config": {"inference_url": address, "model": "mock"}},
        "ops": [],
        "mode": "rl",
    }


def measure(repetitions: int, scratch: Path) -> Table:
    """Measures our server first, then each peer once. A peer whose environment cannot be built is noted and left out."""
    measured = {OURS: ours(repetitions, scratch)}
    notes = []
    for name, peer in PEERS.items():
        try:
            python = peer_python(peer)
        except BenchFailed as error:
            notes.append(f"{name} is left out. {error}")
            continue
        measured[name] = {
            (latency, in_flight): [cell]
            for latency in LATENCIES_SECONDS
            for in_flight, cell in of_peer(python, PROGRAMS[peer], latency, scratch).items()
        }
    return table(measured, repetitions, notes)


def ours(repetitions: int, scratch: Path) -> Cells:
    """Measures `taskapp serve` in threads, store off; the models and the numbers in flight take turns."""
    cells: Cells = {}
    with served("turns", our_command(APP), ROOT, scratch / "home") as server:
        for repetition in range(repetitions):
            for latency in LATENCIES_SECONDS:
                with MockModel.process(latency_seconds=latency) as model:
                    load.run(server, [body(model.url, seed) for seed in range(WARM_UP)], WARM_UP, ANSWERED)
                    for in_flight, rollouts in ROLLOUTS[latency].items():
                        first = 1000 + 10_000 * repetition
                        requests = [body(model.url, seed) for seed in range(first, first + rollouts)]
                        run = load.run(server, requests, in_flight, ANSWERED)
                        cell = Cell.of(
                            rollouts * TURNS, run.server_cpu_seconds, run.wall_seconds, run.latencies_ms, latency
                        )
                        cells.setdefault((latency, in_flight), []).append(cell)
    return cells


def of_peer(python: str, program: str, latency: float, scratch: Path) -> dict[int, Cell]:
    """Measures a peer in one process of its own; returns in flight to cell. Raises BenchFailed."""
    with MockModel.process(latency_seconds=latency) as model:
        command = [python, str(ROOT / "bench" / program), model.url, json.dumps(list(PEER_ROLLOUTS.items()))]
        environment = bare_environment(scratch / "home", {"PEER_KEY": "none", "INSPECT_DISPLAY": "none"})
        try:
            done = subprocess.run(
                command, env=environment, cwd=scratch, capture_output=True, text=True, timeout=PEER_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise BenchFailed(f"{program} did not end within {PEER_SECONDS:.0f} s.") from None
    if done.returncode != 0:
        raise BenchFailed(f"{program} ended with {done.returncode}: {done.stderr[-1000:]}")
    cells = {}
    for line in done.stdout.splitlines():
        if not line.startswith('{"in_flight"'):  # inspect-ai prints other lines, whatever its display setting
            continue
        result = json.loads(line)
        in_flight = result["in_flight"]
        if result["turns"] != TURNS * PEER_ROLLOUTS[in_flight]:
            raise BenchFailed(f"{program} played {result['turns']} turns with {in_flight} in flight: another game.")
        cells[in_flight] = Cell.of(
            result["turns"], result["cpu_seconds"], result["wall_seconds"], result["latencies_ms"], latency
        )
    if set(cells) != set(PEER_ROLLOUTS):
        raise BenchFailed(f"{program} reported {sorted(cells)} in flight only: {done.stdout[-500:]}")
    return cells


def table(measured: Mapping[str, Cells], repetitions: int, left_out: Sequence[str]) -> Table:
    rows = [
        [
            f"{name}, {latency * 1000:.0f} ms model, {in_flight} in flight",
            middle([cell.cpu_ms for cell in cells]),
            middle([cell.turns_per_second for cell in cells], 0),
            middle([cell.p50_beyond_ms for cell in cells], 0),
            middle([cell.p99_beyond_ms for cell in cells], 0),
        ]
        for name, mine in measured.items()
        for (latency, in_flight), cells in mine.items()
    ]
    own = measured[OURS]
    dearest, (latency, in_flight) = max(
        (median([cell.cpu_ms for cell in cells]), where) for where, cells in own.items()
    )
    ratios = {latency: wide(own[latency, 512], own[latency, 128]) for latency in LATENCIES_SECONDS}
    return Table(
        title="A model's turn",
        header=["", "CPU, ms per turn", "turns/s", "p50 without the model, ms", "p99 without the model, ms"],
        rows=rows,
        notes=[
            (
                f"The environment is a counter with {TURNS} turns and one tool call per turn. The mock model runs in "
                "a separate process, which is not counted. taskapp-kit plays and scores `POST /rollout` requests "
                f"without a store; its figures are the median (range) of {repetitions} repetitions. Each other "
                "program was run once, in one process without HTTP, with its default log and scoring. The latencies "
                f"are for a complete rollout, minus the time of its {TURNS} model calls; they include waiting for a "
                "free core."
            ),
            *left_out,
            Budget(
                "under 1 ms CPU per turn, for any number in flight",
                f"at most {dearest:.2f} ms, with a {latency * 1000:.0f} ms model and {in_flight} in flight",
                dearest < 1,
            ).sentence(),
            Budget(
                "with a 50 ms model, 512 in flight reach at least 0.9 times the turns/s of 128 in flight",
                f"{ratios[0.05]:.2f} × (0 ms model: {ratios[0.0]:.2f} ×)",
                ratios[0.05] >= 0.9,
            ).sentence(),
        ],
    )


def wide(many: Sequence[Cell], few: Sequence[Cell]) -> float:
    """Median of the ratio of turns/s, repetition by repetition."""
    return median([one.turns_per_second / other.turns_per_second for one, other in zip(many, few, strict=True)])
