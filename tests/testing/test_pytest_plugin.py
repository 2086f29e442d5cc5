"""The pytest plugin as authors have it: a folder with an app and its tests, pytest in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ADDER = Path(__file__).parents[2] / "examples" / "adder.py"
TESTS = """
import httpx
from taskapp_kit.testing import play

def test_in_process(task_app):
    assert play(task_app, seed=3, policy="gold").reward == 0.9625

def test_served(taskapp_served):
    assert httpx.get(f"{taskapp_served.url}/health").status_code == 401
    answer = httpx.get(f"{taskapp_served.url}/health", headers={"X-API-Key": taskapp_served.key})
    assert answer.json()["healthy"]
    assert taskapp_served.key not in repr(taskapp_served)

def test_model(task_app, taskapp_mock_model):
    rollout = play(task_app, seed=3, policy=taskapp_mock_model)
    assert len(taskapp_mock_model.requests) == len(rollout.trajectory.turns)
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    others = (f"-pno:{name}" for name in ("cacheprovider", "schemathesis", "hypothesispytest", "xdist"))  # slow to load
    command = [sys.executable, "-P", "-m", "pytest", "-q", *others, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "game.py").write_text(ADDER.read_text())
    (tmp_path / "test_game.py").write_text(TESTS)
    return tmp_path


@pytest.mark.ci
def test_the_fixtures_serve_the_app_of_the_command_line(project: Path) -> None:
    done = run(project, "--taskapp", "game.py", "--doctor", "off")
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout


@pytest.mark.ci
def test_each_line_of_the_doctor_is_a_test(project: Path) -> None:
    done = run(project, "--taskapp", "game.py", "-vv", "-k", "doctor")
    assert done.returncode == 0, done.stdout
    assert "taskapp-doctor::doctor[adder-same-seed] PASSED" in done.stdout
    assert "DoctorWarning: idle-scores (warning): game.py:10" in done.stdout
    assert "3 deselected" in done.stdout
    source = (project / "game.py").read_text()
    careless = source.replace("self.target, self.total = random.Random(seed)", "self.target, self.total = random")
    (project / "game.py").write_text(careless)
    done = run(project, "--taskapp", "game.py", "-k", "same-seed or global-random")
    assert done.returncode == 1
    assert "FAILED taskapp-doctor::doctor[adder-same-seed]" in done.stdout
    assert (
        "1 failed" not in run(project, "--taskapp", "game.py", "--doctor-allow", "same-seed", "-k", "same-seed").stdout
    )


@pytest.mark.parametrize(
    "arguments",
    [pytest.param([], marks=pytest.mark.exhaustive), ["-c", "../pytest.ini", "--rootdir", "."]],
    ids=["found", "given"],
)
def test_the_fixtures_play_the_app_of_the_settings(project: Path, arguments: list[str]) -> None:
    (project / "pytest.ini").write_text("[pytest]\ntaskapp = game.py:app\n")
    (project / "sub").mkdir()
    done = run(project / "sub", *arguments, "../test_game.py", "-k", "in_process")
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout


JUDGED = """
from taskapp_kit import TaskApp
app = TaskApp("judged")
app.tasks("judged", prompt="{q}", train=[{"q": "Hello?"}])
@app.judge
def polite(answer_text):
    'Is it polite?'
    return answer_text
"""
JUDGED_TEST = """
import httpx

def test_served(taskapp_served):
    policy = {"config": {"policy": "constant", "action": "Hi"}}
    body = {"run_id": "r", "mode": "eval", "env": {"seed": 0}, "policy": policy, "ops": []}
    headers = {"X-API-Key": taskapp_served.key}
    answer = httpx.post(f"{taskapp_served.url}/rollout", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["metrics"]["outcome_score"] is None
"""


@pytest.mark.ci
def test_an_app_with_a_judge_is_served_without_judges(tmp_path: Path) -> None:
    (tmp_path / "judged.py").write_text(JUDGED)
    (tmp_path / "test_judged.py").write_text(JUDGED_TEST)
    (tmp_path / ".env").write_text("TASKAPP_JUDGE_URL=http://127.0.0.1:9/v1\nTASKAPP_JUDGE_MODEL=m\n")
    done = run(tmp_path, "--taskapp", "judged.py", "--doctor", "off")
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout


@pytest.mark.ci
def test_the_settings_of_the_doctor_are_printed_and_no_dot_env_is_read(project: Path) -> None:
    (project / "taskapp.toml").write_text("max_calls_per_answer = 7\n")
    (project / ".env").write_text("TASKAPP_MAX_CALLS_PER_ANSWER=3\n")
    done = run(project, "-v", "--taskapp", "game.py", "-k", "doctor and declarations")
    assert done.returncode == 0, done.stdout
    assert "max_calls_per_answer = 7 (taskapp.toml" in done.stdout, done.stdout
    assert ".env," not in done.stdout
    assert "max_calls_per_answer" not in run(project, "-v", "-k", "no_such_test").stdout


def test_fixture_without_an_app_fails_with_a_hint(project: Path) -> None:
    done = run(project, "-k", "in_process")
    assert done.returncode == 1
    assert "--taskapp" in done.stdout


def test_the_plugin_loads_nothing_but_pytest() -> None:
    code = (
        "import sys, json, pytest, taskapp_kit\nbefore = set(sys.modules)\n"
        "import taskapp_kit.testing.pytest_plugin\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["taskapp_kit.testing", "taskapp_kit.testing.pytest_plugin"]
