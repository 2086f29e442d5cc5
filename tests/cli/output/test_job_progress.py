"""A job as it is shown: what odd backends say of it never breaks the picture, and no key is in it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from taskapp_kit.cli.output.job_progress import (
    Lines,
    LiveDisplay,
    facts,
    follow,
    progress_of,
    report,
    reward_of,
    sentence,
)
from taskapp_kit.errors import BackendError, JobTimeout
from taskapp_kit.records.job_status import best_checkpoint
from tests.cli.conftest import assert_no_key

KEY = "canary-follow-key-9911"
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b\u202e"

ODD: list[Any] = [
    None, True, 0, -1, 7, 1e308, float("nan"), float("inf"), "", "x", ESCAPES, "a\nb\r\nc", "w" * 9000, [], {}, [1], {"a": {}},
]  # fmt: skip
JSON = st.recursive(
    st.sampled_from(ODD), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
)
STATUS = st.dictionaries(
    st.sampled_from(["status", "state", "progress", "metrics", "engine", "error"]),
    JSON
    | st.fixed_dictionaries({"completed": JSON, "total": JSON})
    | st.fixed_dictionaries({"reward": JSON, "failed": JSON}),
)
EVENT = st.dictionaries(
    st.sampled_from(["type", "message", "level", "data", "seq"]),
    JSON | st.just("rl.train.step") | st.fixed_dictionaries({"step": JSON, "reward": JSON}),
)


def shown(width: int = 80) -> tuple[Console, io.StringIO]:
    """A console that is no terminal, and what it was told."""
    text = io.StringIO()
    return Console(file=text, width=width, highlight=False, markup=False, emoji=False), text


@given(st.lists(STATUS, max_size=4), st.lists(EVENT, max_size=4))
@settings(max_examples=30)  # half of what is drawn is odd
def test_nothing_that_a_backend_says_breaks_the_picture_or_steers_the_terminal(
    statuses: list[dict[str, Any]], events: list[dict[str, Any]]
) -> None:
    out, text = shown()
    lines, live = Lines(out), LiveDisplay(out)
    for status in statuses:
        lines.status(status)
        live.status(status)
    for event in events:
        lines.event(event)
        live.event(event)
    out.print(live.render())
    assert not set(text.getvalue()) & set("\x1b\x9b\x07\r\u202e")
    assert max(map(len, text.getvalue().split("\n"))) < 700


def test_lines_tell_every_event_and_progress_now_and_then() -> None:
    clock = [0.0]
    out, text = shown()
    lines = Lines(out, clock=lambda: clock[0])
    running = {"status": "running", "metrics": {"reward": 0.5}}
    lines.status({"status": "queued"})
    for clock[0], completed in ((1.0, 1), (2.0, 2), (14.0, 3), (40.0, 4), (-50.0, 5), (41.0, 6)):  # one jump back
        lines.status({**running, "progress": {"completed": completed, "total": 8, "unit": "rollouts"}})
    lines.event({"type": "rl.train.step", "message": "step 1"})
    lines.event({"type": "rl.job.failed", "level": "ERROR"})
    lines.status({"status": "SUCCEEDED"})
    assert text.getvalue().splitlines() == [
        "queued",
        "running · 1/8 rollouts · reward 0.5",
        "running · 4/8 rollouts · reward 0.5",
        "step 1",
        "error: rl.job.failed",
        "SUCCEEDED",
    ]


def test_the_live_picture_has_a_bar_a_curve_and_the_latest_events() -> None:
    out, text = shown(width=100)
    live = LiveDisplay(out)
    live.status({"status": "running", "progress": {"completed": 3, "total": 4}, "metrics": {"reward": 0.75}})
    for step in range(9):
        live.event({"type": "rl.train.step", "message": f"step {step}", "data": {"step": step, "reward": step / 8}})
    out.print(live.render())
    told = text.getvalue()
    assert told.startswith("running  0:0")
    assert "3/4" in told and "reward 0.75" in told and "reward, by iteration" in told
    assert "█" in told
    assert "step 2\n" not in told and "step 3" in told and "step 8" in told


def test_what_is_undefined_is_not_told() -> None:
    assert progress_of({"progress": {"completed": "3", "total": True}}) == (0.0, 0.0)
    assert facts({"metrics": {"reward": None, "failed": 0}}) == ["failed 0"]
    assert reward_of({"type": "rl.train.step", "data": {"step": 3}}) == (3, None)
    assert reward_of({"type": "rl.train.step", "data": {"step": True, "reward": 1}}) is None
    assert sentence({}) == "event"


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ({"best": "rl:tiny:a:checkpoint-2", "best_score": 0.75}, "rl:tiny:a:checkpoint-2, reward 0.75"),
        ({"best": "rl:tiny:a:checkpoint-2", "best_score": 0}, "rl:tiny:a:checkpoint-2, reward 0"),
        ({"best": None, "best_score": None}, ""),
        ({"best": "a", "best_score": True}, ""),
        (["best"], ""),
        (None, ""),
    ],
)
def test_the_best_checkpoint_has_its_score(results: Any, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = {"job_id": "rl_1", "status": "succeeded", "results": results}
    assert best_checkpoint(status) == words
    report(status)
    assert words in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("warnings", [["Nothing was learned.\x1b[31m"], "no list", None, [3]])
def test_the_warnings_of_a_job_are_printed(warnings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    report({"job_id": "rl_1", "status": "succeeded", "results": {"warnings": warnings}})
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert printed.count("warning: ") == (len(warnings) if isinstance(warnings, list) else 0)


class Job:
    """What `follow` needs of a job."""

    def __init__(self, *events: dict[str, Any], error: Exception | None = None, endless: bool = False) -> None:
        self.events, self.error, self.endless, self.closed = events, error, endless, False

    async def poll_until_complete_async(self, *, timeout: float, interval: float, on_status: Any) -> dict[str, Any]:
        status = {"status": "failed", "error": f"no such key {KEY}", "metrics": {KEY: KEY}}
        on_status(status)
        await asyncio.sleep(0.05)
        if self.error is not None:
            raise self.error
        return status

    async def stream_async(self) -> AsyncIterator[dict[str, Any]]:
        try:
            for event in self.events:
                yield event
            if self.endless:
                await asyncio.sleep(60)
        finally:
            self.closed = True


class Kept:
    def __init__(self) -> None:
        self.told: list[Mapping[str, Any]] = []

    def status(self, status: Mapping[str, Any]) -> None:
        self.told.append(status)

    event = status


def test_no_key_that_a_backend_tells_is_shown() -> None:
    kept = Kept()
    event = {"type": "x", "message": f"Bearer {KEY} and {KEY[2:14]}", "data": {"list": [KEY, 1, None]}}
    asyncio.run(follow(Job(event), kept, timeout_seconds=1, interval_seconds=1, keys=(KEY, None)))  # type: ignore[arg-type]
    told = str(kept.told)
    assert len(kept.told) == 2
    assert_no_key(told, KEY)


@pytest.mark.parametrize("error", [JobTimeout("late"), BackendError("gone", status=404)], ids=repr)
def test_the_stream_is_closed_however_it_ends(error: Exception) -> None:
    job = Job({"type": "x"}, error=error, endless=True)
    with pytest.raises(type(error)):
        asyncio.run(follow(job, Kept(), timeout_seconds=1, interval_seconds=1))  # type: ignore[arg-type]
    assert job.closed
