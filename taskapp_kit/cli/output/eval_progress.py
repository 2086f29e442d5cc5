"""Print the progress of an evaluation on stderr: a line every ten seconds, and a bar if stderr is a terminal."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from taskapp_kit.cli.output.terminal import clean, console, one_line
from taskapp_kit.records.formatting import dollars

if TYPE_CHECKING:
    from rich.progress import TaskID

    from taskapp_kit.evaluate.progress import Progress as Used
    from taskapp_kit.records.protocols import RolloutRow


FAILURES_SHOWN = 3
"""For how many kinds of failures the first failure is printed immediately. Other failures are only counted."""


class Counts:
    """The results so far and their rate since the last `begin`."""

    def __init__(self) -> None:
        self.asked = self.done = self.played = 0
        self._scored = 0
        self._sum = 0.0
        self.failures: Counter[str] = Counter()
        self._began = time.monotonic()

    def begin(self, asked: int, done: int) -> None:
        """Start measuring the rate. asked: the planned number of rollouts. done: how many were played before."""
        self.asked, self.done, self.played = asked, done, 0
        self._began = time.monotonic()

    def see(self, result: RolloutRow) -> None:
        """Count a result of this run or of an earlier run."""
        if result.failed:
            self.failures[result.boundary or "unknown"] += 1
        elif result.reward is not None:
            self._scored += 1
            self._sum += result.reward

    @property
    def seconds(self) -> float:
        """Return the seconds since `begin` was called."""
        return time.monotonic() - self._began

    def words(self) -> list[str]:
        """Return the mean reward, the rate, the remaining time and the failures by boundary. Unknown values are omitted."""
        parts = [f"reward {self._sum / self._scored:.4g}"] if self._scored else []
        rate = self.played / self.seconds if self.seconds > 0 else 0.0
        if rate:
            parts += [f"{rate:.3g}/s", f"{_clock((self.asked - self.done) / rate)} to go"]
        if self.failures:
            by = ", ".join(f"{clean(name)} {count}" for name, count in self.failures.most_common())
            parts.append(f"{self.failures.total()} failed ({by})")
        return parts


class EvalDisplay:
    """A watcher for `evaluate` that prints progress. Close it before printing anything else.

    Attributes:
        several: Whether there are several policies, so that the line of a failure names the policy.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.counts = Counts()
        self.several = False
        self._out = console(stderr=True)
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._failures_shown: set[tuple[str | None, str | None]] = set()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if not self._quiet:
            self._out.print(text, soft_wrap=not self._out.is_terminal)

    def begin(self, *, asked: int, done: int) -> None:
        """Show the bar."""
        self.counts.begin(asked, done)
        if self._quiet or not self._out.is_terminal or done == asked:
            return
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            console=self._out,
            transient=True,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("", total=asked, completed=done, words="")
        self._bar.start()

    def result(self, result: RolloutRow, policy: str) -> None:
        """Count one more result and update the bar."""
        self.counts.see(result)
        self.counts.done += 1
        self.counts.played += 1
        if result.failed:
            self._failure(result, policy)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.counts.done, words="  ".join(self.counts.words()))

    def tick(self, progress: Used) -> None:
        """Print a line of progress. Called every ten seconds."""
        counts = self.counts
        self.say(", ".join([f"{counts.done} of {counts.asked} done", *used_words(progress), *counts.words()]))

    def _failure(self, result: RolloutRow, policy: str) -> None:
        kind = result.boundary, result.code
        if kind in self._failures_shown or len(self._failures_shown) >= FAILURES_SHOWN:
            return
        self._failures_shown.add(kind)
        whose = f"{policy}, " if self.several else ""
        where = f"{whose}seed {result.seed} failed at {result.boundary or 'an unknown boundary'} ({result.code}): "
        self.say(clean(where) + one_line(result.message or "", 300))

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def used_words(progress: Used) -> list[str]:
    """Return the number of rollouts in progress, and the turns, tokens and cost so far. Unknown values are omitted."""
    parts = [f"{progress.under_way} in progress"]
    if progress.turns:
        parts.append(f"{progress.turns:,} turn{'' if progress.turns == 1 else 's'}")
    if progress.tokens:
        parts.append(f"{progress.tokens:,.0f} tokens")
    if progress.cost is not None:
        parts.append(dollars(progress.cost))
    return parts


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
