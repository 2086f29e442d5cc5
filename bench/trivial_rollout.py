"""A ten-step rollout of a counter: server CPU and p99, one worker, 16 in flight, beside the Synth SDK's server."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench import load
from bench.processes import ROOT, BenchFailed, Server, our_command, served, synth_command
from bench.tables import Budget, Table, middle

IN_FLIGHT = 16
ROLLOUTS = 2000
WARM_UP = 200
ANSWERED = b'"num_steps":10'
OFF, ON, SYNTH = "taskapp-kit, store off", "taskapp-kit, store on (SQLite)", "synth-ai 0.3.9"


def bodies(count: int) -> list[dict[str, Any]]:
    """Requests like a trainer's, with a correlation id; both servers get the same."""
    url = "http://127.0.0.1:9/v1/chat/completions?cid=trace_{}"
    return [
        {
            "run_id": f"run-{number}",
            "env": {"env_name": "counter", "seed": number % 100},
            "policy": {
                "policy_name": "scripted",
                "config": {"inference_url": url.format(number), "trace_correlation_id": f"trace_{number}"},
            },
            "ops": ["agent", "env"] * 10,
            "mode": "rl",
        }
        for number in range(count)
    ]


def compare(servers: Iterable[Server]) -> None:
    """Raises BenchFailed unless all servers return the same observations, actions, rewards and outcome score."""
    answers: dict[str, list[Any]] = {}
    for server in servers:
        run = load.run(server, bodies(12), 1, ANSWERED, keep=True)
        answers[server.name] = [
            [
                [(step["obs"], step["tool_calls"], step["reward"], step["done"]) for step in trajectory["steps"]]
                for trajectory in answer["trajectories"]
            ]
            + [answer["metrics"]["mean_return"], round(answer["metrics"]["outcome_score"], 9)]
            for answer in run.answers
        ]
    first, *others = answers
    for other in others:
        if answers[other] != answers[first]:
            raise BenchFailed(f"{other} and {first} answer differently: the comparison would mean nothing.")


def measure(repetitions: int, scratch: Path) -> Table:
    """Measures the three servers in turns, `repetitions` times; the others idle meanwhile."""
    app = str(ROOT / "bench" / "counter_app.py")
    commands = {
        OFF: our_command(app),
        ON: our_command(app, f"sqlite:///{scratch / 'bench.sqlite'}"),
        SYNTH: synth_command(),
    }
    runs: dict[str, list[load.Run]] = {name: [] for name in commands}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(served(name, command, ROOT, scratch / "home"))
            for name, command in commands.items()
        }
        compare(servers.values())
        for server in servers.values():
            load.run(server, bodies(WARM_UP), IN_FLIGHT, ANSWERED)
        for _ in range(repetitions):
            for name, server in servers.items():
                runs[name].append(load.run(server, bodies(ROLLOUTS), IN_FLIGHT, ANSWERED))
        memory = {name: server.resident_megabytes() for name, server in servers.items()}
    ratios = {
        name: [peer.cpu_ms / ours.cpu_ms for peer, ours in zip(runs[SYNTH], runs[name], strict=True)]
        for name in commands
    }
    rows = [
        [
            name,
            middle([run.cpu_ms for run in runs[name]], 3),
            middle(ratios[name]),
            middle([run.p50_ms for run in runs[name]], 1),
            middle([run.p99_ms for run in runs[name]], 1),
            f"{median([run.rollouts_per_second for run in runs[name]]):.0f}",
            f"{memory[name]:.0f}",
        ]
        for name in commands
    ]
    store_ms = [on.cpu_ms - off.cpu_ms for on, off in zip(runs[ON], runs[OFF], strict=True)]
    p99, off, on = median([run.p99_ms for run in runs[OFF]]), median(ratios[OFF]), median(ratios[ON])
    budgets = [
        Budget("without a store, the Synth server uses at least 2 times our CPU time", f"{off:.2f} ×", off >= 2),
        Budget("with a store, it uses at least as much CPU time as ours (goal: 2 times)", f"{on:.2f} ×", on >= 1),
        Budget("p99 is under 30 ms on a quiet machine", f"{p99:.1f} ms", p99 < 30),
    ]
    return Table(
        title="A trivial rollout of ten steps",
        header=[
            "server",
            "server CPU, ms per rollout",
            "synth-ai's CPU ÷ this",
            "p50, ms",
            "p99, ms",
            "rollouts/s",
            "memory, MB",
        ],
        rows=rows,
        notes=[
            (
                f"Median (range) of {repetitions} repetitions with {ROLLOUTS} rollouts each, {IN_FLIGHT} in flight, "
                "one worker. Each server has the same counter, policy and rubrics and receives the same requests. "
                "The Synth server runs with its pinned dependencies (uvicorn with h11 and asyncio) and without its "
                "access log. Our server is started with `taskapp serve`."
            ),
            f"Storing a rollout costs {middle(store_ms, 3)} ms of server CPU.",
            *[budget.sentence() for budget in budgets],
        ],
    )
