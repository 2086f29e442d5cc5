"""CPU-bound Crafter episodes over HTTP with 1, 2 and 4 worker processes, the load generator on the same cores."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench import load
from bench.crafter_episodes import bodies
from bench.processes import ROOT, BenchFailed, our_command, served
from bench.tables import Budget, Table, middle

IN_FLIGHT = 8
EPISODES = 200
WARM_UP = 16
FIRST_SEED = 700_000
ANSWERED = b'"num_steps":'
NAMES = {0: "threads in the server's process", 1: "1 worker", 2: "2 workers", 4: "4 workers"}


def digests(run: load.Run) -> dict[str, str]:
    """The digest of each rollout by its label."""
    return {answer["run_id"]: answer["digest"] for answer in run.answers}


def measure(repetitions: int, scratch: Path) -> Table:
    """The servers play the same episodes in turns; the others idle meanwhile. Raises BenchFailed if they differ."""
    runs: dict[int, list[load.Run]] = {workers: [] for workers in NAMES}
    with ExitStack() as stack:
        servers = {
            workers: stack.enter_context(
                served(f"crafter-{workers}", our_command("crafter", workers=workers), ROOT, scratch / "home")
            )
            for workers in NAMES
        }
        for server in servers.values():
            load.run(server, bodies(FIRST_SEED - WARM_UP, WARM_UP), IN_FLIGHT, ANSWERED)
        for repetition in range(repetitions):
            requests = bodies(FIRST_SEED + repetition * EPISODES, EPISODES)
            for workers, server in servers.items():
                runs[workers].append(load.run(server, requests, IN_FLIGHT, ANSWERED, keep=True))
            found = {workers: digests(runs[workers][-1]) for workers in NAMES}
            if different := [NAMES[workers] for workers in NAMES if found[workers] != found[1]]:
                raise BenchFailed(f"{different[0]} and {NAMES[1]} play different episodes for the same seeds.")
        memory = {workers: server.resident_megabytes() for workers, server in servers.items()}
    speeds = {workers: [run.rollouts_per_second for run in runs[workers]] for workers in NAMES}
    ratios = {
        workers: [speed / one for speed, one in zip(speeds[workers], speeds[1], strict=True)] for workers in NAMES
    }
    two = median(ratios[2])
    return Table(
        title="Worker processes",
        header=[
            "Crafter, random policy, played by",
            "rollouts/s",
            "this ÷ one worker",
            "front, % of a core",
            "CPU of all processes, ms per rollout",
            "p50, ms",
            "p99, ms",
            "memory, MB",
        ],
        rows=[
            [
                name,
                middle(speeds[workers], 1),
                middle(ratios[workers]),
                middle([100 * run.parent_share for run in runs[workers]], 1),
                middle([run.cpu_ms for run in runs[workers]], 1),
                middle([run.p50_ms for run in runs[workers]], 0),
                middle([run.p99_ms for run in runs[workers]], 0),
                f"{memory[workers]:.0f}",
            ]
            for workers, name in NAMES.items()
        ],
        notes=[
            (
                f"Median (range) of {repetitions} repetitions with {EPISODES} complete episodes each, {IN_FLIGHT} in "
                f"flight, without a store. The load generator uses the same {os.cpu_count()} cores. The front is the "
                "process that accepts requests; with workers, it plays no episodes. The digests of all "
                f"{EPISODES * repetitions} episodes are equal in all rows."
            ),
            Budget(
                "on 2 cores, 2 workers are at least 1.6 times as fast as one", f"{two:.2f} ×", two >= 1.6
            ).sentence(),
        ],
    )
