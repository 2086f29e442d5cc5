"""`taskapp eval` over rows: which are chosen, how results are grouped; and going on from a directory alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.testing import MockModel
from tests.cli.conftest import ADDER, ROOT, Run, Served

FLAKY = str(ROOT / "tests" / "evaluate" / "flaky.py")

QUIZ = '''
import random

from pydantic import BaseModel

from taskapp_kit import Private, Step, TaskApp, action

app = TaskApp("quiz", version="1.0.0")


class Row(BaseModel):
    question: str
    answer: Private[str]
    difficulty: str
    tags: list[str] = []
    secret_level: Private[str] = "SECRETLEVEL"


ROWS = [
    Row(question=f"{n}" + "q" * 150, answer="CANARY", difficulty=("easy", "hard")[n % 2], tags=["even", "short"] if n % 4 == 0 else ["x"])
    for n in range(14)
]


@app.environment("quiz", tasks={"train": ROWS[:12], "test": ROWS[12:]}, row=Row)
class Quiz:
    """Say it."""

    def reset(self, task: Row) -> str:
        self.task = task
        return task.question

    @action(text=True)
    def say(self, text: str) -> Step:
        """Say it."""
        if text == "boom" and self.task.difficulty == "hard":
            raise KeyError("boom")
        return Step("", terminated=True)


@app.rubric
def solved(trajectory) -> float:
    """It was even."""
    return float(trajectory.seed % 4 == 0)
'''


@pytest.fixture
def quiz(tmp_path: Path) -> str:
    (tmp_path / "quiz.py").write_text(QUIZ)
    return "quiz.py"


SAY = ("--policy", "constant", "--action", "boom")


def summary_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return found


def test_rows_are_chosen_by_difficulty_and_tags(run: Run, quiz: str, tmp_path: Path) -> None:
    run("eval", quiz, *SAY, "--tags", "even, short", "--difficulty", "easy", "--seeds", "0-9", "--out", "r1", status=0)
    summary = summary_of(tmp_path / "r1")
    assert (summary["seeds"], summary["tags"], summary["difficulty"]) == ("0,4,8", ["even", "short"], ["easy"])
    assert summary["reward"]["mean"] == 1.0
    assert run("eval", quiz, *SAY, "--difficulty", "hard", "--out", "r2").exit_code == 1
    assert summary_of(tmp_path / "r2")["seeds"] == "1,3,5,7,9,11"
    for wrong in (("--difficulty", "SECRETLEVEL"), ("--tags", "even,none"), ("--split", "nope", "--tags", "x")):
        run("eval", quiz, *SAY, *wrong, "--seeds", "0-9", "--out", "no", status=2)
        assert not (tmp_path / "no").exists()


def test_results_are_grouped_by_public_fields_then_and_later(run: Run, quiz: str, tmp_path: Path) -> None:
    told = run("eval", quiz, *SAY, "--seeds", "0-11", "--by", "difficulty", "--by", "tag", "--out", "r1", status=1)
    assert re.search(r"^difficulty +rollouts +failed +reward +95 % interval", told.stdout, re.MULTILINE)
    assert re.search(r"^easy +6 +0\.5 ± ", told.stdout, re.MULTILINE)
    assert re.search(r"^hard +6 +6 +-", told.stdout, re.MULTILINE)
    assert re.search(r"^even +3 +1 ± 0", told.stdout, re.MULTILINE)
    assert b"SECRETLEVEL" not in b"".join(path.read_bytes() for path in (tmp_path / "r1").iterdir())
    assert "CANARY" not in (tmp_path / "r1" / "results.jsonl").read_text()
    (tmp_path / "quiz.py").unlink()
    later = run("eval", "r1", "--by", "seed", "--pass-at", "0.5", "--json", status=1)
    again = json.loads(later.stdout)
    assert [group["value"] for group in again["by"]["seed"]] == list(range(12))
    assert again["pass"]["at"] == 0.5
    assert again == summary_of(tmp_path / "r1")
    for private in ("answer", "secret_level", "question"):
        refused = run("eval", "r1", "--by", private)
        assert refused.exit_code != 0
        assert "CANARY" not in refused.output


def test_a_wrong_field_is_refused_before_anything_is_played(run: Run, quiz: str, tmp_path: Path) -> None:
    for field, said in (
        ("dificulty", "Did you mean 'difficulty'"),
        ("answer", "The fields are"),
        ("question", "The fields are"),
    ):
        told = run("eval", quiz, *SAY, "--by", field, "--out", "r1", status=2)
        assert said in told.stderr
    assert not (tmp_path / "r1").exists()


def test_several_policies_are_one_table_and_one_directory(run: Run, tmp_path: Path) -> None:
    asked = ("eval", ADDER, "--policy", "gold", "--policy", "random", "--seeds", "0-4", "--repeats", "2")
    told = run(*asked, "--by", "seed", "--pass-at", "0.9", "--out", "r1", status=0)
    assert re.search(r"^policy +rollouts +reward +95 % interval", told.stdout, re.MULTILINE)
    assert re.search(r"^gold +10 +0\.9", told.stdout, re.MULTILINE)
    assert re.search(r"^gold +2 +1 ± 0 +1 ± 0 +5$", told.stdout, re.MULTILINE)
    assert re.search(r"^seed +gold +random", told.stdout, re.MULTILINE)
    assert re.search(r"^reached +1 ± 0 +0\.", told.stdout, re.MULTILINE)
    summary = summary_of(tmp_path / "r1")
    assert summary["rollouts"]["done"] == 20
    assert "reward" not in summary
    for name in ("gold", "random"):
        assert run("eval", *asked[1:2], "--policy", name, *asked[6:], "--out", name, "--pass-at", "0.9").exit_code == 0
        alone, both = summary_of(tmp_path / name), summary["by_policy"][name]
        assert (alone["reward"], alone["digest"], alone["pass"]) == (both["reward"], both["digest"], both["pass"])
    results = tmp_path / "r1" / "results.jsonl"
    kept = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"".join(kept[:7]))
    (tmp_path / "r1" / "summary.json").unlink()
    on = run("eval", "r1", status=0)
    assert "7 rollouts were played before." in on.stderr
    resumed = summary_of(tmp_path / "r1")
    assert {**resumed, "timing": None, "by_policy": None} == {**summary, "timing": None, "by_policy": None}
    for name, numbers in summary["by_policy"].items():
        assert {**resumed["by_policy"][name], "timing": None} == {**numbers, "timing": None}


@pytest.mark.server
def test_models_that_share_a_name_are_told_apart_and_keys_come_from_the_environment(run: Run, tmp_path: Path) -> None:
    with MockModel() as one, MockModel() as two:
        (tmp_path / "models.toml").write_text(
            f'[base]\nurl = "{one.url}"\nmodel = "m"\nkey = "BASE_KEY"\n'
            "usd_per_million_input_tokens = 1.0\nusd_per_million_output_tokens = 2.0\n"
            f'[tuned]\nurl = "{two.url}"\nmodel = "m"\n'
        )
        (tmp_path / ".env").write_text("BASE_KEY=CANARYCANARY\n")
        asked = ("--seeds", "0-3", "--ops", "2", "--out", "r1", "--concurrency", "1")
        run("eval", ADDER, "--model", "base", "--model", "tuned", "--policy", "random", *asked, status=0)
        names = ["random", "base", "tuned"]
        assert list(summary_of(tmp_path / "r1")["by_policy"]) == names
        cost = {name: numbers["cost"] for name, numbers in summary_of(tmp_path / "r1")["by_policy"].items()}
        assert cost["base"]["total"] > 0
        assert (cost["tuned"]["total"], cost["tuned"]["without_price"]) == (None, 4)
        assert cost["random"]["without_price"] == 0
        results = tmp_path / "r1" / "results.jsonl"
        results.write_bytes(b"".join(results.read_bytes().splitlines(keepends=True)[:5]))
        before = len(one.requests), len(two.requests)
        run("eval", "r1", "--concurrency", "2", status=0)
        assert (len(one.requests) - before[0], len(two.requests) - before[1]) == (4, 6)
        assert all(request.header("authorization") == "Bearer CANARYCANARY" for request in one.requests)
        assert not any("CANARY" in str(request.headers) for request in two.requests)
    assert "CANARY" not in "".join(path.read_text(errors="replace") for path in (tmp_path / "r1").iterdir())


@pytest.mark.server
def test_what_cannot_be_found_again_is_said(run: Run, tmp_path: Path) -> None:
    with MockModel() as model:
        more = ("--policy-config", '{"extra_body": {"a": 1}, "api_key": "CANARYCANARY"}', "--max-total-tokens", "1")
        told = run("eval", ADDER, "--model", "m", "--inference-url", model.url, *more, "--seeds", "0-40", "--out", "r1")
    assert told.exit_code == 1
    assert "--max-total-tokens is 1" in told.stderr
    assert "The same command with --out r1 --resume continues" in told.stderr
    assert re.search(r"^rollouts +\d+ \(", told.stdout, re.MULTILINE), "what was played is summarised"
    assert not (tmp_path / "r1" / "summary.json").exists()
    on = run("eval", "r1", status=2)
    assert "not stored: extra_body, api_key" in on.stderr
    plan = run("eval", "r1", "--seeds", "0-9", "--judges", "skip", status=2)
    assert "--seeds cannot be changed for the evaluation in r1." in plan.stderr


@pytest.mark.server
def test_a_cost_limit_holds_until_a_higher_one_is_given(run: Run, tmp_path: Path) -> None:
    with MockModel() as model:
        (tmp_path / "models.toml").write_text(
            f'[m]\nurl = "{model.url}"\nusd_per_million_input_tokens = 1000.0\nusd_per_million_output_tokens = 1000.0\n'
        )
        limits = ("--ops", "2", "--concurrency", "2", "--max-cost", "2")
        asked = ("eval", ADDER, "--model", "m", "--seeds", "0-19", *limits)
        told = run(*asked, "--out", "r1", status=1)
        assert "--max-cost is 2" in told.stderr
        assert "`taskapp eval r1` continues" in told.stderr
        # each rollout costs 1.05, and one more may be in progress when the limit is reached
        assert re.search(r"^cost +\$[23]\.", told.stdout, re.MULTILINE)
        played = (tmp_path / "r1" / "results.jsonl").read_bytes().count(b"\n")
        assert 0 < played < 20
        again = run("eval", "r1")
        assert (again.exit_code, "--max-cost is 2" in again.stderr) == (1, True)
        assert (tmp_path / "r1" / "results.jsonl").read_bytes().count(b"\n") == played
        assert run("eval", "r1", "--max-cost", "1000").exit_code == 0
    assert summary_of(tmp_path / "r1")["rollouts"]["done"] == 20


def test_a_directory_of_an_earlier_release_is_read_and_goes_on(run: Run, tmp_path: Path) -> None:
    """Its lines lack what is new, and its configuration has no options."""
    assert run("eval", FLAKY, "--policy", "presser", "--seeds", "0-9", "--out", "r1", "--store", "none").exit_code == 1
    config = json.loads((tmp_path / "r1" / "config.json").read_text())
    del config["options"]
    (tmp_path / "r1" / "config.json").write_text(json.dumps(config))
    entries = [json.loads(line) for line in (tmp_path / "r1" / "results.jsonl").read_text().splitlines()]
    for entry in entries:
        for new in ("cost", "other_cost", "row", "observation_digest"):
            del entry[new]
    old = "".join(json.dumps(entry) + "\n" for entry in entries)
    (tmp_path / "r1" / "results.jsonl").write_text(old)
    told = run("eval", "r1", "--by", "seed", "--json", status=1)
    assert json.loads(told.stdout)["reward"]["n"] == 7
    (tmp_path / "r1" / "results.jsonl").write_text("".join(old.splitlines(keepends=True)[:4]))
    (tmp_path / "r1" / "summary.json").unlink()
    on = run("eval", FLAKY, "--policy", "presser", "--seeds", "0-9", "--out", "r1", "--resume", "--store", "none")
    assert "4 rollouts were played before" in on.stderr
    assert summary_of(tmp_path / "r1")["reward"]["n"] == 7


@pytest.mark.process
def test_from_its_directory_an_evaluation_goes_on_at_the_server(run: Run, adder_server: Served, tmp_path: Path) -> None:
    key = str(adder_server.key)
    asked = ("--policy", "gold", "--seeds", "0-4", "--key", key, "--out", "r1")
    assert run("eval", adder_server.url, *asked).exit_code == 0
    results = tmp_path / "r1" / "results.jsonl"
    results.write_bytes(b"".join(results.read_bytes().splitlines(keepends=True)[:2]))
    (tmp_path / "r1" / "summary.json").unlink()
    run("eval", "r1", "--key", key, status=0)
    assert summary_of(tmp_path / "r1")["rollouts"]["done"] == 5
