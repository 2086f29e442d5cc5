"""`taskapp doctor APP`: the table, the JSON and the exit status. For a URL, see test_train.py and tests/client."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.asgi import build
from taskapp_kit.config import load
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.doctor.doctor_options import DoctorOptions
from taskapp_kit.doctor.finding import DoctorFinding, FindingEpisode
from taskapp_kit.doctor.report import DoctorReport, page
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.testing import play
from tests.cli.conftest import ADDER, Run
from tests.doctor.gallery import CAPITALS, CHEST, fault

CARELESS = """
import random
from taskapp_kit import Step, TaskApp, action
app = TaskApp("careless")
@app.environment("careless")
class Careless:
    '''Seeds what every episode shares.'''
    def reset(self, seed: int) -> str:
        random.seed(seed)
        return str(random.random())
    @action
    def go(self) -> Step:
        '''Go.'''
        return Step("gone", reward=1.0, terminated=True)
"""


@pytest.mark.process
def test_an_app_is_checked_here_and_nothing_is_left_behind(run: Run, tmp_path: Path) -> None:
    told = run("doctor", ADDER, "--quick", status=0)
    assert re.search(r"^task app +ok +adder 1\.0\.0", told.stdout, re.MULTILINE)
    assert re.search(r"^rollout +ok +Environment adder: policy random, seed 0", told.stdout, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ci
@pytest.mark.process
def test_a_finding_that_is_wrong_makes_the_status_1(run: Run, tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text(CARELESS)
    told = run("doctor", "careless.py", "--quick", status=1)
    assert re.search(r"^global-random +WRONG +careless.py:8: ", told.stdout, re.MULTILINE)
    again = json.loads(run("doctor", "careless.py:app", "--quick", "--json").stdout)
    assert again["ok"] is False
    assert [(item["name"], item["part"], item["place"]) for item in again["findings"] if not item["ok"]] == [
        ("global-random", "rollout", "careless.py:8")
    ]


@pytest.mark.process
def test_what_is_allowed_is_printed_and_does_not_count(run: Run, tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text(CARELESS)
    told = run("doctor", "careless.py", "--quick", "--allow", "global-random", status=0)
    assert re.search(r"^global-random +allowed +careless.py:8: ", told.stdout, re.MULTILINE)


def test_a_check_or_an_environment_that_is_not_there_is_a_mistake_of_the_command_line(run: Run) -> None:
    told = run("doctor", ADDER, "--allow", "global-randm")
    assert (told.exit_code, "'global-random'" in told.stderr) == (2, True)
    assert run("doctor", ADDER, "--env", "nothing").exit_code == 2
    assert run("doctor", "http://127.0.0.1:1", "--quick").exit_code == 2
    assert run("doctor", ADDER, "--load").exit_code == 2


@pytest.mark.process
def test_an_env_file_is_read_only_if_it_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "TASKAPP_MAX_CALLS_PER_ANSWER", "3"
    )  # the command exports it, and the end of the test removes it
    monkeypatch.delenv("TASKAPP_MAX_CALLS_PER_ANSWER")
    (tmp_path / ".env").write_text("TASKAPP_MAX_CALLS_PER_ANSWER=3\n")

    def told(*more: str) -> str:
        findings = json.loads(run("doctor", ADDER, "--quick", "--json", *more, status=0).stdout)["findings"]
        return " ".join(item["found"] for item in findings if item["name"] == "declarations")

    assert "max_calls_per_answer" not in told()
    assert "max_calls_per_answer = 3 (--env-file .env" in told("--env-file", ".env")


def test_mistakes_in_the_declarations_are_listed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text(CARELESS.replace("def go(self)", "def go(self, where)"))
    told = run("doctor", "careless.py", "--json", status=1)
    (problem,) = json.loads(told.stdout)["findings"]
    assert problem["part"] == "task app" and "careless.py:11" in problem["found"] and problem["do"]


def test_an_app_that_is_not_there_is_a_mistake_of_the_command_line(run: Run) -> None:
    run("doctor", "nothing.py", status=2)


SLOPPY = {
    "float(answer_text.strip().lower() == task.answer.lower())": "float(task.answer.lower() in answer_text.lower())"
}
ROOM = {"search": {"room": 1}}


@pytest.mark.parametrize(
    ("source", "environment", "action", "once"),
    [
        (fault(CAPITALS, SLOPPY), "ask", "Is it 'Paris'?\nOr \"Oslo\"?", False),
        (fault(CAPITALS, SLOPPY), "ask", "", False),
        (CHEST, "chest", [ROOM, {"open": {}}, {"open": {}}, {"leave": {}}], True),
    ],
)
def test_the_printed_command_plays_a_findings_episode_again(
    run: Run, tmp_path: Path, source: str, environment: str, action: Any, once: bool
) -> None:
    (tmp_path / "an app.py").write_text(source)
    app = find_app(str(tmp_path / "an app.py"))
    if once:
        room = int(str(play(app, seed=3, action={"leave": {}}).trajectory.initial).split("room ")[1].split()[0])
        action[0]["search"]["room"] = room
        ops = [{"type": "env", "tool": tool, "args": args} for one in action for tool, args in one.items()]
        earned = play(app, seed=3, ops=ops).reward
        assert earned == 2.0
    else:
        earned = play(app, seed=0, action=action).reward
        assert earned == float("Paris" in action)
    episode = FindingEpisode("train", 3 if once else 0, action, earned, 1.0, once)
    finding = DoctorFinding("attack", "rollout", "wrong", "paid", environment=environment, episode=episode)
    report = DoctorReport("an app.py", DoctorOptions(), findings=[finding], facts={"kit": "0", "python": "3"}).to_json()
    command = report["findings"][0]["episode"]["command"]
    program, *words = shlex.split(command)
    assert program == "taskapp"
    assert json.loads(run(*words, "--json", status=0).stdout)["reward"] == earned
    assert "taskapp rollout" in page(report)


@pytest.mark.process
def test_the_report_is_written_and_verified(run: Run, tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text(CARELESS)
    told = run("doctor", "careless.py", "--quick", "--json", "--html", "r.html", "--sarif", "r.sarif", status=1)
    report = json.loads(told.stdout)
    assert (report["safe"], report["options"]["quick"]) == ("no", True)
    assert "Safe to train on: <b>no</b>" in (tmp_path / "r.html").read_text()
    (result,) = [
        item
        for item in json.loads((tmp_path / "r.sarif").read_text())["runs"][0]["results"]
        if item["level"] == "error"
    ]
    location = result["locations"][0]["physicalLocation"]
    assert (location["artifactLocation"]["uri"], location["region"]["startLine"]) == ("careless.py", 8)
    (tmp_path / "report.json").write_text(told.stdout)
    assert (
        json.loads(run("doctor", "careless.py", "--verify", "report.json", "--json", status=0).stdout)["differences"]
        == []
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "careless.py").write_text(CARELESS.replace("reward=1.0", "reward=0.5"))
    saved = str(tmp_path / "report.json")
    again = run("doctor", "careless.py", "--verify", saved, status=1, folder=tmp_path / "other")
    assert "environments.careless.source" in again.stdout
    assert re.search(r"environments\.careless\.episodes\.random\.\w+ 0\.reward +1\.0 +0\.5", again.stdout)


def test_a_report_with_other_options_or_no_report_is_a_mistake_of_the_command_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    assert run("doctor", ADDER, "--verify", "report.json").exit_code == 2
    assert run("doctor", ADDER, "--verify", "nothing.json").exit_code == 2
    assert run("doctor", ADDER, "--html", "no/such/directory.html").exit_code == 2
    options = {"quick": False, "judges": True, "environment": None, "allow": []}
    (tmp_path / "report.json").write_text(json.dumps({"format": 1, "facts": {}, "measured": {}, "options": options}))
    assert run("doctor", ADDER, "--verify", "report.json").exit_code == 2


@pytest.mark.server
def test_at_a_url_the_rewards_are_not_examined(run: Run, tmp_path: Path) -> None:
    key = "a-key-for-the-report-0123456789"
    with BackgroundServer(build(find_app(ADDER), load({"environment_api_key": key}), exposure="local")) as server:
        told = run("doctor", server.url, "--json", "--html", "r.html", status=0, ENVIRONMENT_API_KEY=key)
        report = json.loads(told.stdout)
        assert (report["safe"], report["reasons"], report["measured"]) == ("not_examined", [], {})
        assert report["facts"]["task_info"].keys() >= {"rubric", "dataset"}
        written = (tmp_path / "r.html").read_text()
        assert "Safe to train on: <b>not examined</b>" in written and key not in written
        report["facts"]["task_info"]["rubric"] = "another"
        (tmp_path / "report.json").write_text(json.dumps(report))
        again = run("doctor", server.url, "--verify", "report.json", "--json", status=1, ENVIRONMENT_API_KEY=key)
        assert [item["path"] for item in json.loads(again.stdout)["differences"]] == ["task_info.rubric"]
