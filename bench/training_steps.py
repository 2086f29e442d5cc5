"""One step of training beside plain TRL: CPU seconds for equal batches, models and numbers of tokens."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.processes import ROOT, BenchFailed, Server, our_command, served
from bench.tables import Budget, Table, middle

SIZES = {"small": "0.5 million parameters", "middle": "3.6 million parameters"}
APP = str(ROOT / "bench" / "one_word_app.py")
OURS, THEIRS = "taskapp-kit", "TRL"
RATIO = 1.3
NEEDED = ("torch", "transformers", "tokenizers", "trl", "datasets")


class Contender:
    """A process that makes one step for each line."""

    def __init__(self, module: str, size: str, folder: Path, *arguments: str) -> None:
        folder.mkdir()
        self._module = module
        self._log = folder / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"bench.{module}", size, str(folder), *arguments],
                cwd=ROOT,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def line(self) -> dict[str, Any]:
        """Its next line. Raises BenchFailed when it has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise BenchFailed(f"{self._module} ended: {self._log.read_text()[-1000:]}")

    def step(self) -> dict[str, Any]:
        """Let it make a step."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.line()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def contenders(size: str, server: Server, scratch: Path) -> Iterator[tuple[Contender, Contender]]:
    """Both, after a first step each."""
    started = [Contender("training_step_ours", size, scratch / f"ours-{size}", server.address, server.key)]
    try:
        prompts = scratch / f"prompts-{size}.json"
        prompts.write_text(json.dumps(started[0].line()["prompts"]))
        started[0].line()
        started.append(Contender("training_step_trl", size, scratch / f"trl-{size}", str(prompts)))
        started[1].line()
        yield started[0], started[1]
    finally:
        for each in started:
            each.end()


def missing() -> list[str]:
    """Return the packages without which nothing can be measured."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def measure(repetitions: int, scratch: Path) -> Table:
    """Measures each size, the contenders taking turns. Raises BenchFailed without the train extra and trl."""
    if lacking := missing():
        raise BenchFailed(f"{', '.join(lacking)} is not installed: pip install -e '.[train]' trl")
    measured: dict[tuple[str, str], list[dict[str, Any]]] = {}
    app_seconds: dict[str, list[float]] = {}
    with served("one-word", our_command(APP), ROOT, scratch / "home") as server:
        for size in SIZES:
            with contenders(size, server, scratch) as (ours, theirs):
                for _ in range(repetitions):
                    before = server.cpu_seconds()
                    measured.setdefault((size, OURS), []).append(ours.step())
                    app_seconds.setdefault(size, []).append(server.cpu_seconds() - before)
                    measured.setdefault((size, THEIRS), []).append(theirs.step())
    return table(measured, app_seconds, repetitions)


def table(
    measured: dict[tuple[str, str], list[dict[str, Any]]], app_seconds: dict[str, list[float]], repetitions: int
) -> Table:
    def of(size: str, who: str, name: str) -> list[float]:
        return [step.get(name, 0.0) for step in measured[size, who]]

    rows, budgets = [], []
    for size, words in SIZES.items():
        for who in (OURS, THEIRS):
            steps = measured[size, who]
            rest = [
                step["cpu_seconds"] - sum(step.get(f"{name}_seconds", 0.0) for name in ("sampler", "update", "gateway"))
                for step in steps
            ]
            rows.append(
                [
                    f"{who}, {words}",
                    *(middle(of(size, who, f"{name}_seconds")) for name in ("cpu", "sampler", "update")),
                    middle(of(size, who, "gateway_seconds")) if who == OURS else "",
                    middle(rest) if who == OURS else "",
                    middle(app_seconds[size]) if who == OURS else "",
                    f"{fmean(of(size, who, 'tokens')):.0f}",
                ]
            )
        ratios = [
            ours / theirs
            for ours, theirs in zip(of(size, OURS, "cpu_seconds"), of(size, THEIRS, "cpu_seconds"), strict=True)
        ]
        budgets.append(
            Budget(
                f"with {words}, a step takes at most {RATIO} times TRL's CPU seconds",
                f"{middle(ratios)} ×",
                median(ratios) <= RATIO,
            ).sentence()
        )
    return Table(
        title="A training step, compared with TRL",
        header=["CPU seconds per step", "all", "sampling", "update", "gateway", "driver", "task app", "tokens"],
        rows=rows,
        notes=[
            (
                "Each step has 8 prompts with 8 samples of up to 24 new bytes, and one optimizer step (fp32, one "
                "torch thread, random weights). taskapp-kit plays the samples as rollouts over HTTP: a task app calls "
                "the gateway from a separate process, which has its own column. TRL's GRPOTrainer 1.16 generates in "
                "its own process and calls a function for the reward; its sampling time includes the reward. The "
                f"figures are the median (range) of {repetitions} repetitions."
            ),
            *budgets,
        ],
    )
