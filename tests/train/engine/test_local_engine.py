"""The backend's side of the engine `local`: trainers are started, replaced and ended. They are real processes without a model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from taskapp_kit.errors import StoreError
from taskapp_kit.train.engine.child_program import ChildProgram
from tests.jobs.server.exchange import APP_KEY, KEY, Backend, ScriptedApp, serving
from tests.train.engine.local_job import job_config, local_backend
from tests.waiting import alive, until

pytestmark = [pytest.mark.server, pytest.mark.process]

PROGRAM = "scripted_trainer"


@contextmanager
def scripted(tmp_path: Path, script: str, **options: Any) -> Iterator[tuple[Backend, str]]:
    """A backend with a job whose trainer does what `scripted_trainer` has under this name."""
    with (
        serving(ScriptedApp().app()) as url,
        local_backend(tmp_path, engine={"program": PROGRAM}, **options) as back,
    ):
        yield back, back.submit(url, job_config(label=script))


@pytest.fixture(autouse=True)
def _trainers_find_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def of(back: Backend, job_id: str, kind: str) -> list[dict[str, Any]]:
    return [event for event in back.events(job_id) if event["type"] == kind]


def test_a_trainer_that_dies_is_replaced_and_goes_on(tmp_path: Path) -> None:
    with scripted(tmp_path, "dies once") as (back, job_id):
        status = back.ended(job_id)
        assert status["status"] == "succeeded", status["error"]
        assert status["progress"] == {"completed": 3, "total": 3, "unit": "rollouts"}
        assert status["results"]["seed"] == 7
        assert status["results"]["last"]["iteration"] == 3
        (death,) = of(back, job_id, "rl.trainer.died")
        assert "SIGKILL" in death["message"]
        assert death["data"]["incarnation"] == 1
        assert len({event["data"]["pid"] for event in of(back, job_id, "rl.train.step")}) == 2


@pytest.mark.ci
def test_a_job_whose_trainers_die_after_a_unit_each_goes_on(tmp_path: Path) -> None:
    with scripted(tmp_path, "dies between units") as (back, job_id):
        assert back.ended(job_id)["status"] == "succeeded"
        assert len(of(back, job_id, "rl.trainer.died")) == 3


@pytest.mark.ci
@pytest.mark.parametrize(("script", "cause"), [("dies", "SIGSEGV"), ("raises", "RuntimeError: a bug near (key)")])
def test_a_job_fails_after_three_deaths_in_a_row(tmp_path: Path, script: str, cause: str) -> None:
    with scripted(tmp_path, script) as (back, job_id):
        status = back.ended(job_id)
        assert status["status"] == "failed"
        assert "died 3 times" in status["error"] and cause in status["error"]
        assert script == "raises" or "the last words, with (key)" in status["error"]
        assert len(of(back, job_id, "rl.trainer.died")) == 2
        assert APP_KEY[:8] not in str((status, back.events(job_id)))


def test_a_trainers_error_is_the_jobs_without_keys(tmp_path: Path) -> None:
    with scripted(tmp_path, "fails") as (back, job_id):
        status = back.ended(job_id)
        assert (status["status"], status["error"]) == ("failed", "It cannot be done with (key). Do this.")
        assert [each["data"]["code"] for each in of(back, job_id, "rl.job.failed")] == ["no_rewards"]
        assert not of(back, job_id, "rl.trainer.died")


def stuck(back: Backend, job_id: str) -> list[int]:
    """The process ids of a trainer that waits, and of its child."""
    until(lambda: of(back, job_id, "rl.test.child"))
    return [of(back, job_id, kind)[-1]["data"]["pid"] for kind in ("rl.test", "rl.test.child")]


def test_no_key_is_in_a_trainers_arguments_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTH_API_KEY", KEY)
    monkeypatch.setenv("ENVIRONMENT_API_KEY", APP_KEY)
    with scripted(tmp_path, "stuck") as (back, job_id):
        trainer, _ = stuck(back, job_id)
        seen = Path(f"/proc/{trainer}/environ").read_bytes() + Path(f"/proc/{trainer}/cmdline").read_bytes()
        assert b"scripted_trainer" in seen
        assert KEY.encode() not in seen and APP_KEY.encode() not in seen


def test_cancelling_ends_the_trainer_and_its_children(tmp_path: Path) -> None:
    with scripted(tmp_path, "stuck") as (back, job_id):
        processes = stuck(back, job_id)
        assert back.http.post(f"/rl/jobs/{job_id}/cancel").json()["status"] == "cancelled"
        until(lambda: not any(map(alive, processes)), 5)


@pytest.mark.ci
def test_a_backend_that_stops_ends_the_trainer_and_the_next_one_goes_on(tmp_path: Path) -> None:
    store = str(tmp_path / "jobs.db")
    with serving(ScriptedApp().app()) as url:
        with local_backend(tmp_path, engine={"program": PROGRAM}, store=store) as back:
            job_id = back.submit(url, job_config(label="stuck"))
            first = stuck(back, job_id)
        assert not any(map(alive, first))
        with local_backend(tmp_path, engine={"program": PROGRAM}, store=store) as back:
            until(lambda: len(of(back, job_id, "rl.test.child")) == 2)
            steps = of(back, job_id, "rl.train.step")
            assert [step["data"]["iteration"] for step in steps] == [1, 2]
            assert back.status(job_id)["status"] == "running"


def test_an_error_of_the_store_is_raised_as_it_is() -> None:
    """The backend then resumes the job later; the trainer gets no reply."""

    async def answered() -> None:
        async def full(name: str, arguments: object) -> None:
            raise StoreError("the disk is full")

        async with ChildProgram(PROGRAM) as child:
            try:
                await child.answer_calls(full)
            finally:
                assert alive(child.pid)
        assert not alive(child.pid)

    with pytest.raises(StoreError, match="the disk is full"):
        asyncio.run(answered())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_replies_to_a_child_that_is_gone_are_dropped(run: Callable[[Any], None]) -> None:
    """The first of them closes the transport, and uvloop's raise RuntimeError when they are closed."""
    begun: list[str] = []

    async def answered() -> None:
        async def late(name: str, arguments: object) -> None:
            begun.append(name)
            while len(begun) < 2:
                await asyncio.sleep(0.01)
            if name == "one":
                os.kill(child.pid, signal.SIGKILL)
            while alive(child.pid):
                await asyncio.sleep(0.01)
            if name == "two":
                await asyncio.sleep(0.2)  # the first reply found the socket closed

        async with ChildProgram("calling_twice") as child:
            await child.answer_calls(late)
            assert "SIGKILL" in await child.death()

    run(answered())
    assert sorted(begun) == ["one", "two"]


def test_without_the_extra_there_is_one_sentence(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from taskapp_kit.cli.main import main; main(['backend', 'serve', '--engine', 'local', '--port', '0'])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "pip install 'taskapp-kit[train]'" in ran.stderr
    assert "Traceback" not in ran.stderr
