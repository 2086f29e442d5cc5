"""Random Crafter episodes over POST /rollout, beside the same episodes without a server and in stock Crafter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from bench import load
from bench.processes import ROOT, BenchFailed, Server, bare_environment, our_command, served
from bench.tables import Budget, Table, middle

IN_FLIGHT = 4
EPISODES = 30
STOCK_EPISODES = 8  # 0.65 s of CPU for each of its worlds
FIRST_SEED = 500_000
SERVED = "POST /rollout"
LOOPS = {
    "environment": "our bare loop (environment, text observations)",
    "rules": "our game alone, no observations",
    "stock": "stock crafter, as pip installs it",
    "stock-numba": "stock crafter with numba",
}


def bodies(first_seed: int, count: int) -> list[dict[str, Any]]:
    """Requests for whole random episodes on seeds not played before, so that no cached world distorts the result."""
    return [
        {
            "run_id": f"crafter-{seed}",
            "env": {"env_name": "crafter", "seed": seed},
            "policy": {"policy_name": "random", "config": {}},
            "ops": [],
            "mode": "eval",
        }
        for seed in range(first_seed, first_seed + count)
    ]


def episode(body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Seed and game actions of a finished rollout."""
    calls = [call for step in answer["trajectories"][0]["steps"] for call in step["tool_calls"]]
    return {"seed": body["env"]["seed"], "actions": [name for call in calls for name in call["args"]["actions"]]}


def looped(name: str, episodes: list[dict[str, Any]], home: Path) -> float:
    """Replays `episodes` in one of LOOPS; returns game steps per CPU second."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.crafter_loops", name],
        input=json.dumps(episodes),
        cwd=ROOT,
        env=bare_environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchFailed(f"The Crafter loop {name!r} failed: {done.stderr[-1000:]}")
    result = json.loads(done.stdout)
    return float(result["steps"]) / float(result["cpu_seconds"])


def rolled_out(server: Server, first_seed: int) -> tuple[float, list[dict[str, Any]]]:
    """Plays episodes on the server; returns (game steps per CPU second of the server, the episodes)."""
    requests = bodies(first_seed, EPISODES)
    run = load.run(server, requests, IN_FLIGHT, b'"num_steps":', keep=True)
    by_name = {answer["run_id"]: answer for answer in run.answers}
    episodes = [episode(body, by_name[body["run_id"]]) for body in requests]
    return sum(len(one["actions"]) for one in episodes) / run.server_cpu_seconds, episodes


def measure(repetitions: int, scratch: Path) -> Table:
    """Measures in turns: the server plays new episodes, then each loop replays them."""
    home = scratch / "home"
    speeds: dict[str, list[float]] = {SERVED: [], **{name: [] for name in LOOPS}}
    steps = 0
    with served("crafter", our_command("crafter"), ROOT, home) as server:
        load.run(server, bodies(FIRST_SEED - 2, 2), 1, b'"num_steps":')
        for repetition in range(repetitions):
            speed, episodes = rolled_out(server, FIRST_SEED + repetition * EPISODES)
            speeds[SERVED].append(speed)
            steps += sum(len(one["actions"]) for one in episodes)
            for name in LOOPS:
                played = episodes[:STOCK_EPISODES] if name.startswith("stock") else episodes
                speeds[name].append(looped(name, played, home))
        memory = server.resident_megabytes()
    ratios = {
        name: [served_speed / speed for served_speed, speed in zip(speeds[SERVED], speeds[name], strict=True)]
        for name in speeds
    }
    loop, stock = median(ratios["environment"]), median(ratios["stock"])
    budgets = [
        Budget("at least 4 times as fast as stock crafter", f"{stock:.2f} ×", stock >= 4),
        Budget("at least 0.9 times as fast as our own bare loop", f"{loop:.2f} ×", loop >= 0.9),
    ]
    return Table(
        title="Random Crafter episodes",
        header=["", "game steps per CPU second", "speed of POST /rollout ÷ this"],
        rows=[[LOOPS.get(name, SERVED), middle(speeds[name], 0), middle(ratios[name])] for name in speeds],
        notes=[
            (
                f"Median (range) of {repetitions} repetitions. Each plays {EPISODES} complete episodes of the random "
                f"policy with new seeds, {IN_FLIGHT} in flight, without a store. The episodes had {steps} game steps "
                f"in total; the server used {memory:.0f} MB at the end. The loops replay the same seeds and actions "
                f"(stock: the first {STOCK_EPISODES}). Resets and steps are timed, imports and compilation are not."
            ),
            *[budget.sentence() for budget in budgets],
        ],
    )
