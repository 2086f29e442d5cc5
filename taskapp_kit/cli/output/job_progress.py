"""Follow a job, with a live view of progress, reward and events on a terminal, and plain lines otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click
from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.text import Text

from taskapp_kit.cli.output.terminal import clean, console, echo, number, one_line, table
from taskapp_kit.cli.output.text_chart import curve
from taskapp_kit.errors import JobTimeout
from taskapp_kit.net.envelope import ended
from taskapp_kit.net.redact import without_keys
from taskapp_kit.records.job_status import best_checkpoint, tag_texts, weights_note

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from taskapp_kit.client import RLJob


T = TypeVar("T")

QUIET_SECONDS = 15.0
"""The minimum interval between two lines of progress, in seconds, if stderr is not a terminal."""
LAST_EVENTS_SECONDS = 5.0
"""How long to wait for the last events after the job's end, in seconds."""
SHOWN_EVENTS = 6
SHOWN_EVALUATIONS = 5
SHOWN_WARNINGS = 10


class JobDisplay(Protocol):
    """A display that shows a running job from the backend's status objects and events."""

    def status(self, status: Mapping[str, Any]) -> None:
        """Show a new status."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Show an event."""


async def follow(
    job: RLJob, display: JobDisplay, *, timeout_seconds: float, interval_seconds: float, keys: Sequence[str | None] = ()
) -> dict[str, Any]:
    """Follow a job to its end and return its last status.

    keys: API keys to remove from everything that is shown, because a backend might send them.

    Raises JobTimeout if the job does not end within `timeout_seconds`, and BackendError if the backend cannot be used.
    """
    with _without_warnings():
        events_task = asyncio.create_task(_show_events(job, display, keys))
        try:
            last = await job.poll_until_complete_async(
                timeout=timeout_seconds,
                interval=interval_seconds,
                on_status=lambda status: display.status(without_keys(status, keys)),
            )
            await asyncio.wait([events_task], timeout=LAST_EVENTS_SECONDS)
        finally:
            events_task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):  # only the status is needed
                await events_task
    return last


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence the log warnings of the event stream and of the job, because polling and the final report repeat them."""
    loggers = [logging.getLogger(f"taskapp_kit.jobs.client.{name}") for name in ("stream", "rl_job")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


async def _show_events(job: RLJob, display: JobDisplay, keys: Sequence[str | None]) -> None:
    async for event in job.stream_async():
        display.event(without_keys(event, keys))


@contextlib.contextmanager
def display_for(*, quiet: bool = False) -> Iterator[JobDisplay]:
    """Provide a live display if stderr is a terminal, and otherwise a display of plain lines.

    quiet: whether to print nothing.
    """
    out = console(stderr=True)
    out.quiet = quiet
    if quiet or not out.is_terminal:
        yield Lines(out)
        return
    live_display = LiveDisplay(out)
    with Live(get_renderable=live_display.render, console=out, refresh_per_second=4, transient=False):
        yield live_display


class Lines:
    """A display that prints a line for each event and each new status, and progress from time to time."""

    def __init__(self, out: Console, clock: Any = time.monotonic) -> None:
        self._out, self._clock = out, clock
        self._word = ""
        self._printed_at = -QUIET_SECONDS

    def status(self, status: Mapping[str, Any]) -> None:
        """Print the status if it changed, or if nothing was printed for QUIET_SECONDS."""
        word = word_of(status)
        if word == self._word and self._clock() - self._printed_at < QUIET_SECONDS:
            return
        self._word = word
        self._say(" · ".join([word, *facts(status)]))

    def event(self, event: Mapping[str, Any]) -> None:
        """Print the event."""
        self._say(sentence(event))

    def _say(self, text: str) -> None:
        self._printed_at = self._clock()
        self._out.print(text, soft_wrap=True)


class LiveDisplay:
    """A live view of the status, a bar, the reward's curve and the latest events."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._status: Mapping[str, Any] = {}
        self._rewards: dict[int, float | None] = {}
        self._evaluations: dict[int, float | None] = {}
        self._events: list[str] = []
        self._began = time.monotonic()

    def status(self, status: Mapping[str, Any]) -> None:
        """Replace the shown status."""
        self._status = status

    def event(self, event: Mapping[str, Any]) -> None:
        """Add the event to the latest events. Add the reward of a training step or an evaluation to its curve."""
        self._events = [*self._events, sentence(event)][-SHOWN_EVENTS:]
        for kind, rewards in (("rl.train.step", self._rewards), ("rl.eval.summary", self._evaluations)):
            step = reward_of(event, kind)
            if step is not None:
                rewards[step[0]] = step[1]

    def render(self) -> RenderableType:
        """Return the current view."""
        width = max(20, min(72, self._out.width - 12))
        completed, total = progress_of(self._status)
        seconds = int(time.monotonic() - self._began)
        head = f"{word_of(self._status)}  {seconds // 60}:{seconds % 60:02d}  " + "  ".join(facts(self._status))
        parts: list[RenderableType] = [Text(head, style="bold", no_wrap=True, overflow="ellipsis")]
        if total > 0:
            bar = ProgressBar(total=total, completed=max(0.0, min(completed, total)), width=width)
            parts.append(Padding(bar, 0))  # without padding, a bar doesn't end its line
        drawn = curve([self._rewards[step] for step in sorted(self._rewards)], width=width)
        if len(self._rewards) > 1 and drawn:
            parts += [Text("reward, by iteration", style="dim"), *(Text(line, no_wrap=True) for line in drawn)]
        if self._evaluations:
            parts.append(Text(evaluation_words(self._evaluations), no_wrap=True, overflow="ellipsis"))
        parts += [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in self._events]
        return Group(*parts)


def word_of(status: Mapping[str, Any]) -> str:
    """Return the status as one word. Before the first status, return `waiting`."""
    return one_line(str(status.get("status") or status.get("state") or "waiting"), 40)


def progress_of(status: Mapping[str, Any]) -> tuple[float, float]:
    """Return the completed and the total amount of work. Both are 0 if the backend does not report them."""
    progress = status.get("progress")
    if not isinstance(progress, Mapping):
        return 0.0, 0.0
    return _finite(progress.get("completed")) or 0.0, _finite(progress.get("total")) or 0.0


def facts(status: Mapping[str, Any]) -> list[str]:
    """Return the progress and the latest metrics as short strings."""
    parts = []
    completed, total = progress_of(status)
    if total > 0:
        unit = " rollouts" if status["progress"].get("unit") == "rollouts" else ""
        parts.append(f"{completed:g}/{total:g}{unit}")
    metrics = status.get("metrics")
    if isinstance(metrics, Mapping):
        parts += [
            f"{one_line(str(name), 24)} {number(metrics[name])}"
            for name in ("reward", "eval_reward", "failed")
            if _finite(metrics.get(name)) is not None
        ]
    return parts


def sentence(event: Mapping[str, Any]) -> str:
    """Return one line for an event: its message or type, preceded by the level for a warning or an error."""
    level = str(event.get("level") or "info").lower()
    words = str(event.get("message") or event.get("type") or "event")
    mark = f"{level}: " if level in ("warning", "error", "critical") else ""
    return mark + one_line(words, 300)


def evaluation_words(rewards: Mapping[int, float | None]) -> str:
    """Return the mean rewards of the evaluations as text.

    From a long list, only the first and the last few are shown.
    """
    words = [f"{number(rewards[step])} after step {step}" for step in sorted(rewards)]
    shown = words if len(words) <= SHOWN_EVALUATIONS else [words[0], "…", *words[1 - SHOWN_EVALUATIONS :]]
    return f"evaluations: {', '.join(shown)}"


def reward_of(event: Mapping[str, Any], kind: str = "rl.train.step") -> tuple[int, float | None] | None:
    """Return (step, mean reward) of an event of the type `kind`. Return None for any other event."""
    data = event.get("data")
    if event.get("type") != kind or not isinstance(data, Mapping):
        return None
    step = data.get("step", data.get("iteration"))
    if isinstance(step, bool) or not isinstance(step, int):
        return None
    return step, _finite(data.get("reward", data.get("mean_reward")))


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def bounded(text: str) -> str:
    """Return a backend's text for the terminal. It is cleaned and cut to 2000 characters."""
    return clean(text)[:2000]


def report(last: Mapping[str, Any]) -> None:
    """Print the job's last status as a table on stdout."""
    out = console()
    rows = table("", "")
    rows.add_row("job", one_line(str(last.get("job_id") or last.get("id") or "-"), 80))
    rows.add_row("status", one_line(str(last.get("status") or last.get("state")), 40))
    rows.add_row("tags", one_line(" ".join(tag_texts(last)) or "-", 200))
    rows.add_row("final reward", number(last.get("final_reward")))
    if best := best_checkpoint(last):
        rows.add_row("best checkpoint", one_line(best, 200))
    note = weights_note(last)
    if note:
        rows.add_row("", note)
    metrics = last.get("metrics")
    for name, value in sorted(metrics.items()) if isinstance(metrics, dict) else ():
        rows.add_row(one_line(str(name), 40), number(value))
    out.print(rows)
    results = last.get("results")
    warnings = results.get("warnings") if isinstance(results, Mapping) else None
    for warning in warnings[:SHOWN_WARNINGS] if isinstance(warnings, list) else ():
        out.print(f"warning: {one_line(str(warning), 300)}", soft_wrap=True)


def cause_of(last: Mapping[str, Any]) -> str:
    """Return one sentence that states why a job did not succeed."""
    cause = last.get("error")
    if isinstance(cause, Mapping):
        cause = cause.get("message")
    return f"The job ended with status {word_of(last)}" + (f": {ended(bounded(str(cause)))}" if cause else ".")


def run_following(ctx: click.Context, job: RLJob, backend: str, following: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that follows a job, and return its result.

    If Ctrl-C or a JobTimeout ends it, print that the job continues. Ctrl-C ends the command with status 1.
    """

    async def cancelable() -> T:
        task = asyncio.current_task()
        assert task is not None
        # by default, asyncio.run cancels in the signal handler, so a callback of the loop may find its future canceled
        # halfway, and logs a traceback
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        return await following

    try:
        return asyncio.run(cancelable())
    except (KeyboardInterrupt, asyncio.CancelledError):
        _print_left(job, backend)
        ctx.exit(1)
    except JobTimeout:
        _print_left(job, backend)
        raise


def _print_left(job: RLJob, backend: str) -> None:
    if job.job_id is None:
        echo("\nStopped before the job was submitted.", err=True)
    else:
        name = clean(job.job_id)
        echo(
            f"\nStopped following. Job {name} continues at {clean(backend)}. To follow it: taskapp jobs follow {name}",
            err=True,
        )
