"""`taskapp jobs`, against a backend and a task app that run."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("nacl", reason="needs taskapp-kit[jobs]")

from taskapp_kit.client import RLJob
from taskapp_kit.records.job_status import WEIGHTS_NOTE
from tests.cli.conftest import ROOT, Run
from tests.cli.train.conftest import BACKEND_KEY, FAST, OTHER_BACKEND_KEY, TASK_APP_KEY, Both, safe

pytestmark = pytest.mark.server

CONFIG = ROOT / "examples" / "rl_in_process_config.toml"


def submitted(both: Both, iterations: int = 2) -> str:
    job = RLJob.from_config(
        CONFIG,
        backend_url=both.backend,
        api_key=BACKEND_KEY,
        task_app_url=both.task_app,
        task_app_api_key=TASK_APP_KEY,
        overrides={"training": {"iterations_per_epoch": iterations}, "tags": {"iterations": iterations}},
    )
    return job.submit()


def test_a_job_is_followed_listed_and_can_no_longer_be_cancelled(run: Run, both: Both) -> None:
    job_id = submitted(both)
    done = run("jobs", "follow", job_id, *FAST, width=200, status=0, **both.variables())
    assert "Iteration 2 of 2" in done.stderr
    assert re.search(rf"job +{job_id}", done.stdout) and re.search(r"tags +iterations=2", done.stdout)
    assert re.search(r"final reward +(1|0\.\d+)\s+" + re.escape(WEIGHTS_NOTE), done.stdout)
    safe(done.output)

    again = run("jobs", "follow", job_id, "--json", *FAST, **both.variables())
    assert (again.exit_code, json.loads(again.stdout)["status"], again.stderr) == (0, "succeeded", "")

    listed = run("jobs", "list", width=200, status=0, **both.variables())
    assert re.search(rf"(?m)^{job_id} +succeeded +\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d +12/12 ", listed.stdout), (
        listed.stdout
    )
    assert WEIGHTS_NOTE in listed.stdout

    for tag, count in (("iterations=2", 1), ("iterations", 1), ("iterations=3", 0)):
        tagged = json.loads(run("jobs", "list", "--tag", tag, "--json", **both.variables()).stdout)["jobs"]
        assert [job["job_id"] for job in tagged].count(job_id) == count, tag  # other tests have jobs, too

    late = run("jobs", "cancel", job_id, **both.variables())
    assert (late.exit_code, late.stdout) == (1, "")
    assert job_id in late.stderr and "succeeded" in late.stderr


def test_a_running_job_is_listed_by_its_status_and_cancelled(run: Run, both: Both) -> None:
    job_id = submitted(both, iterations=5000)
    running = run("jobs", "list", "--json", "--limit", "1", **both.variables())
    (told,) = json.loads(running.stdout)["jobs"]
    assert (told["job_id"], told["status"] in ("queued", "running")) == (job_id, True)
    assert (told["progress"]["unit"], told["updates_weights"]) == ("rollouts", False)

    run("jobs", "follow", job_id, "--poll-timeout", "0.5", *FAST, status=1, **both.variables())

    done = run("jobs", "cancel", job_id, "--json", **both.variables())
    assert (done.exit_code, json.loads(done.stdout)["status"]) == (0, "cancelled")
    again = run("jobs", "cancel", job_id, **both.variables())
    assert (again.exit_code, again.stderr) == (0, "")
    assert job_id in again.stdout
    restarted = run("jobs", "start", job_id, **both.variables())
    assert (restarted.exit_code, restarted.stdout) == (1, "")
    assert "has status cancelled and cannot be restarted" in restarted.stderr

    cancelled = json.loads(run("jobs", "list", "--status", "cancelled", "--json", **both.variables()).stdout)["jobs"]
    assert [job["job_id"] for job in cancelled] == [job_id]
    run("jobs", "follow", job_id, *FAST, status=1, **both.variables())


def test_there_are_no_jobs(run: Run, both: Both) -> None:
    nobodys = both.variables(SYNTH_API_KEY=OTHER_BACKEND_KEY)
    listed = run("jobs", "list", **nobodys)
    assert (listed.exit_code, listed.stdout) == (0, "")
    assert json.loads(run("jobs", "list", "--json", **nobodys).stdout) == {"jobs": []}


@pytest.mark.parametrize("verb", ["follow", "cancel", "start"])
def test_a_job_that_is_not_there(run: Run, both: Both, verb: str) -> None:
    done = run("jobs", verb, "rl_0000000000000000", **both.variables())
    assert (done.exit_code, done.stdout) == (1, "")
    assert "job_not_found" in done.stderr
    safe(done.stderr)


@pytest.mark.parametrize("args", [("list",), ("follow", "rl_1"), ("cancel", "rl_1"), ("start", "rl_1")])
def test_a_backend_and_a_key_are_needed(run: Run, both: Both, args: tuple[str, ...]) -> None:
    run("jobs", *args, status=2, **both.variables(BACKEND_BASE_URL=""))
    run("jobs", *args, status=2, **both.variables(SYNTH_API_KEY=""))
    wrong = run("jobs", *args, status=1, **both.variables(SYNTH_API_KEY="wrong-key-0123456789"))
    assert "wrong-key" not in wrong.output
