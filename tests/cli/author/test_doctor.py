"""`taskapp doctor APP`: the table, the JSON and the exit status. For a URL, see test_train.py and tests/client."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import ADDER, Run

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


def test_mistakes_in_the_declarations_are_listed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text(CARELESS.replace("def go(self)", "def go(self, where)"))
    told = run("doctor", "careless.py", "--json", status=1)
    (problem,) = json.loads(told.stdout)["findings"]
    assert problem["part"] == "task app" and "careless.py:11" in problem["found"] and problem["do"]


def test_an_app_that_is_not_there_is_a_mistake_of_the_command_line(run: Run) -> None:
    run("doctor", "nothing.py", status=2)
