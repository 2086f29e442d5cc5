"""Reset and step of MiniWoB++ tasks: ours, beside BrowserGym's own, on the same pages and the same Chromium.

One episode at a time on both sides, in turns; an action changes nothing, so that what is measured is what each framework
does around the page. BrowserGym's observation has the DOM, the accessibility tree and a picture, whatever is asked for, so
ours is measured with a picture, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.processes import ROOT, TICKS_PER_SECOND, BenchFailed, cpu_ticks_of_family, peer_python
from bench.tables import Table, middle

PEER = "browsergym-0.14.3"
PROGRAM = ROOT / "bench" / "browsergym_reference.py"
TASKS = ("click-test", "click-checkboxes", "login-user", "choose-date", "email-inbox", "search-engine")
STEPS = 6
OURS, SEEING, THEIRS = "text", "text and a picture", "BrowserGym 0.14.3"


@dataclass(frozen=True)
class PlayedEpisode:
    """Seconds of one episode's parts; cpu_seconds: of all its processes."""

    reset: float
    steps: list[float]
    whole: float
    cpu_seconds: float


def ours(task: str, seed: int, screenshot: bool) -> PlayedEpisode:
    from environments.web.miniwob.environment import Miniwob
    from environments.web.miniwob.rows import MiniwobTask, rows

    row: MiniwobTask = next(row for row in rows(range(seed, seed + 1)) if row.name == task)
    ticks, begun = cpu_ticks_of_family(os.getpid()), time.perf_counter()
    episode = Miniwob(screenshot=screenshot)
    took = []
    try:
        episode.reset(row)
        reset = time.perf_counter() - begun
        for _ in range(STEPS):
            started = time.perf_counter()
            step = episode.noop()
            took.append(time.perf_counter() - started)
            if step.terminated:
                break
    finally:
        episode.close()
    whole = time.perf_counter() - begun
    return PlayedEpisode(reset, took, whole, (cpu_ticks_of_family(os.getpid()) - ticks) / TICKS_PER_SECOND)


class BrowserGym:
    """The peer's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._line()

    def play(self, task: str, seed: int) -> PlayedEpisode:
        assert self._process.stdin is not None
        ticks = cpu_ticks_of_family(self._process.pid)
        self._process.stdin.write(json.dumps({"task": task, "seed": seed}) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line())
        cpu = (cpu_ticks_of_family(self._process.pid) - ticks) / TICKS_PER_SECOND
        return PlayedEpisode(found["reset"], found["steps"], found["episode"], cpu)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchFailed("BrowserGym's program ended; its reason is above.")
        return line


@contextmanager
def browsergym() -> Iterator[BrowserGym]:
    """Starts the peer. Raises BenchFailed."""
    from environments.web import chromium
    from environments.web.miniwob import pages

    folder = pages.folder()
    command = [peer_python(PEER), str(PROGRAM), f"{folder.as_uri()}/miniwob/", chromium.find(), str(STEPS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield BrowserGym(process)
        finally:
            process.terminate()


def measure(repetitions: int, _scratch: Path) -> Table:
    """Measures in turns, one episode at a time."""
    from environments.web.browser import shared

    played: dict[str, list[PlayedEpisode]] = {OURS: [], SEEING: [], THEIRS: []}
    loads = [os.getloadavg()[0]]
    with browsergym() as peer:
        peer.play(TASKS[0], 1000)
        ours(TASKS[0], 1000, screenshot=True)
        for repetition in range(repetitions):
            for task in TASKS:
                played[THEIRS].append(peer.play(task, repetition))
                played[OURS].append(ours(task, repetition, screenshot=False))
                played[SEEING].append(ours(task, repetition, screenshot=True))
    shared().close()
    loads.append(os.getloadavg()[0])
    return table(played, repetitions, max(loads))


def table(played: dict[str, list[PlayedEpisode]], repetitions: int, load: float) -> Table:
    """One row for each contender."""
    rows = []
    for name, episodes in played.items():
        rows.append(
            [
                name,
                middle([each.reset for each in episodes]),
                middle([took for each in episodes for took in each.steps]),
                f"{1 / median(each.whole for each in episodes):.2f}",
                middle([each.cpu_seconds for each in episodes]),
            ]
        )
    return Table(
        title="MiniWoB++ beside BrowserGym's own reset and step",
        header=["", "seconds a reset", "seconds a step", "episodes/s", "CPU seconds an episode"],
        rows=rows,
        notes=[
            (
                f"{len(TASKS)} tasks ({', '.join(TASKS)}), {repetitions} seeds each, a reset and up to {STEPS} actions that "
                "change nothing, one episode at a time and in turns: median (lowest to highest). The pages are those of the "
                "package miniwob 1.1.0, the Chromium is the same. BrowserGym starts two browsers at each reset, one of them "
                "for its chat, waits half a second before each observation, and observes DOM, accessibility tree and picture "
                f"always. Highest load average at the run's begin and end: {load:.1f}."
            )
        ],
    )
