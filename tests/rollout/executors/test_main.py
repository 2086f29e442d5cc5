"""The worker's program alone: it starts, says what fails, ends with its front, and loads little before it listens."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.records.events import from_json, joined
from taskapp_kit.rollout.executors.pool import ProcessPool, StartFailed
from taskapp_kit.rollout.executors.remote import WorkerReport
from taskapp_kit.system.child_python import python_command

pytestmark = [pytest.mark.anyio, pytest.mark.process]

HOSTILE = Path(__file__).parents[2] / "hostile_app.py"


def pool(reference: str) -> ProcessPool:
    argv = python_command("taskapp_kit.rollout.executors.main", reference, os.pathsep.join(sys.path))
    return ProcessPool(argv, environment=dict(os.environ), shared=1)


Play = Callable[[dict[str, Any]], tuple[dict[str, Any], bytes, WorkerReport]]


@pytest.fixture(scope="module")
def played() -> Iterator[Play]:
    """Runs one job in a real worker: its last frame, what of its blob is neither events nor pictures, and the report."""
    with asyncio.Runner() as runner:
        made = pool(f"{HOSTILE}:app")
        runner.run(made.start())

        def play(job: dict[str, Any]) -> tuple[dict[str, Any], bytes, WorkerReport]:
            report = WorkerReport()

            def on_frame(frame: dict[str, Any], blob: bytes) -> None:
                assert report.take(frame, blob) == len(blob)

            frame, blob = runner.run(made.run(job, exclusive=False, seconds=20, on_frame=on_frame))
            return frame, blob[report.take(frame, blob) :] if "text" in frame else blob, report

        try:
            yield play
        finally:
            runner.run(made.close(0))


def a_job(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    request = {
        "run_id": "r",
        "env": {"env_name": "shared", "seed": 3, "config": config},
        "policy": {"policy_name": "noop"},
        "ops": [],
        "mode": "rl",
    }
    job = {"request": request, "recording": None, "rollout_id": "id", "created_at": 1.0, "versions": {"kit": "k"}}
    return {**job, "written": False, "live": False, "skip_judges": False, "max_calls": 64, "session": False, **more}


def test_quick_rollout_is_sent_in_one_frame(played: Play) -> None:
    frame, body, told = played(a_job({"image": True}))
    assert frame["outcome"]["length"] == 5
    assert frame["outcome"]["final_state"] == {"db": "sentinel-private"}
    assert len(told.pictures) == 5
    assert body == b""
    events = told.events()
    assert [event.kind for event in events][-2:] == ["ended", "scored"]
    assert len(told._pieces) == 1


def test_slow_rollout_sends_events_before_each_slow_step(played: Play) -> None:
    _, _, told = played(a_job({"slow": 0.06}))
    assert len(told._pieces) >= 5
    assert [event["seq"] for event in told.encoded()] == list(range(len(told.encoded())))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param(
            "import no_such_module_at_all", "No module named 'no_such_module_at_all'", marks=pytest.mark.exhaustive
        ),
        pytest.param(
            "from taskapp_kit import TaskApp\napp = TaskApp('empty')",
            "task app 'empty' has 1 problem",
            marks=pytest.mark.exhaustive,
        ),
        ("raise SystemExit(3)", "failed at"),
    ],
)
async def test_app_that_cannot_be_loaded_reports_its_own_error(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(text)

    with pytest.raises(StartFailed) as caught:
        await pool(str(tmp_path / "app.py")).start()
    assert sentence in caught.value.reason


def test_nothing_heavy_is_loaded_before_the_front_is_listened_to() -> None:
    code = "import sys, taskapp_kit.rollout.executors.main; print([m for m in ('pydantic', 'fastapi', 'numpy', 'asyncio') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_pieces_of_events_join_to_the_original() -> None:
    pieces = [b'{"v":1,"seq":0,"kind":"called","turn":0},{"v":1,"seq":1,"kind":"called","turn":1}',
              b'{"v":1,"seq":2,"kind":"called","turn":2}']  # fmt: skip
    assert [from_json(told).turn for told in joined(pieces)] == [0, 1, 2]  # type: ignore[union-attr]
