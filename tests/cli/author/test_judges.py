"""Judges of an app that is played in this process: which settings are read, and `--judges skip`."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.store import open_store
from taskapp_kit.testing import Faults, MockModel, judge
from tests.cli.conftest import ADDER, ROOT, Run, Served

JUDGED = str(ROOT / "tests" / "cli" / "judged.py")
FORTY_ROWS = re.sub(r"train=\[.*\]", 'train=[{"question": f"Why {n}?"} for n in range(40)]', Path(JUDGED).read_text())
ONE = (JUDGED, "--env", "judged", "--seed", "0")


@pytest.fixture(scope="module")
def settings() -> Iterator[dict[str, str]]:
    """The variables of a judge that always finds an answer polite."""
    with MockModel(judge("polite")) as model:
        yield {"TASKAPP_JUDGE_URL": model.url, "TASKAPP_JUDGE_MODEL": "mock"}


def criteria(told: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item for item in told["scorecard"]["criteria"]}


@pytest.mark.server
def test_play_asks_the_judge_as_rollout_does(run: Run, settings: dict[str, str]) -> None:
    played = run("play", *ONE, stdin="Clouds.\n", status=0, **settings)
    rolled = run("rollout", *ONE, "--action", "Clouds.", "--json", **settings)
    assert criteria(json.loads(rolled.stdout))["polite"]["score"] == 1.0
    assert played.stdout.count("polite") == 1


@pytest.mark.server
def test_an_environments_own_model_is_read_everywhere(run: Run) -> None:
    with MockModel(["Good morning."]) as model:
        user = {"TASKAPP_USER_URL": model.url, "TASKAPP_USER_MODEL": "mock"}
        prompt = run("info", JUDGED, "--prompt", "--env", "talk", status=0, **user)
        assert "They say: Good morning." in prompt.stdout
        played = run("play", JUDGED, "--env", "talk", "--judges", "skip", stdin="Hello.\n", status=0, **user)
        assert "They say: Good morning." in played.stdout


def test_a_prompt_needs_no_judge(run: Run) -> None:
    prompt = run("info", JUDGED, "--prompt", status=0)
    assert "Why does it rain?" in prompt.stdout


def test_skipped_judges_leave_the_reward_undefined_and_it_is_said(run: Run, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'kept.db'}"
    told = run("rollout", *ONE, "--action", "Clouds.", "--judges", "skip", "--store", store, "--json", status=0)
    answer = json.loads(told.stdout)
    assert (answer["status"], answer["reward"], answer["metrics"]["outcome_score"]) == ("terminated", None, None)
    found = criteria(answer)
    assert (found["short"]["score"], found["polite"]["score"], found["polite"]["reason"]) == (
        1.0,
        None,
        "judges_skipped",
    )
    assert any("polite" in warning for warning in answer["pipeline_metadata"]["warnings"])
    kept = asyncio.run(_load(store, answer["rollout_id"]))
    assert (kept.status, kept.reward) == ("terminated", None)
    assert "stepped" in [event["kind"] for event in kept.events]
    table = run("rollout", *ONE, "--action", "Clouds.", "--judges", "skip")
    assert "judges_skipped" in table.stdout
    assert "Warning: judges were skipped" in table.stderr
    played = run("play", *ONE, "--judges", "skip", stdin="Clouds.\n", status=0)
    assert "judges_skipped" in played.stdout


async def _load(url: str, rollout_id: str) -> Any:
    store = open_store(url)
    try:
        return await store.load(rollout_id)
    finally:
        await store.close()


@pytest.mark.process
@pytest.mark.server
@pytest.mark.parametrize("workers", ["0", "1"])
def test_an_evaluation_without_judges(run: Run, tmp_path: Path, settings: dict[str, str], workers: str) -> None:
    asked = ("eval", JUDGED, "--env", "judged", "--action", "Clouds.", "--seeds", "0-1", "--out", "r1")
    run(*asked, "--judges", "skip", "--workers", workers, status=0)
    lines = [json.loads(line) for line in (tmp_path / "r1" / "results.jsonl").read_text().splitlines()]
    assert [(line["status"], line["reward"], line["criteria"]) for line in lines] == [
        ("terminated", None, {"short": 1.0, "polite": None})
    ] * 2
    run(*asked, "--resume", status=2, **settings)


def test_a_missing_judge_is_noticed_before_anything_is_made(run: Run, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'kept.db'}"
    for told in (
        run("eval", JUDGED, "--env", "judged", "--action", "Clouds.", "--seeds", "0-1", "--out", "r1"),
        run("eval", JUDGED, "--env", "judged", "--action", "Clouds.", "--seeds", "0-1"),
        run("rollout", *ONE, "--action", "Clouds.", "--store", store),
        run("play", *ONE, stdin="Clouds.\n"),
    ):
        assert told.exit_code == 1
        assert "TASKAPP_JUDGE_URL" in told.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
@pytest.mark.parametrize("command", ["rollout", "eval"])
def test_a_server_asks_its_own_judges(run: Run, adder_server: Served, command: str) -> None:
    run(command, adder_server.url, "--judges", "skip", "--policy", "random", status=2)


@pytest.mark.server
def test_a_judge_without_a_models_name_names_the_variable(run: Run, settings: dict[str, str]) -> None:
    told = run("rollout", *ONE, "--action", "Clouds.", TASKAPP_JUDGE_URL=settings["TASKAPP_JUDGE_URL"], status=1)
    assert "TASKAPP_JUDGE_MODEL" in told.stderr


def test_the_mock_models_score_is_chosen_on_the_command_line(run: Run) -> None:
    run("mock-model", "--behaviour", "echo", "--score", "0.8", status=2)
    assert run("mock-model", "--behaviour", "judge", "--score", "nan").exit_code == 2
    assert run("rollout", ADDER, "--judges", "skip", "--policy", "gold").exit_code == 0  # an app without judges


@pytest.mark.server
@pytest.mark.parametrize("fault", ["401", "judge_unreadable", "rubric"])
def test_an_evaluation_whose_judge_fails_stops_and_is_finished_without_the_policy(
    run: Run, tmp_path: Path, fault: str
) -> None:
    app, mended = tmp_path / "judged.py", tmp_path / "mended.py"
    mended.write_text(FORTY_ROWS)
    app.write_text(FORTY_ROWS.replace("return 1.0 if", "return 1 / 0 if") if fault == "rubric" else FORTY_ROWS)
    faults = Faults({fault: 1.0} if fault == "401" else {})
    answers = ["nonsense"] * 1000 if fault == "judge_unreadable" else judge("polite")
    code = {"401": "judge_failed", "rubric": "criterion_failed"}.get(fault, fault)
    policies = ("--policy", "constant", "--action", "Clouds.", "--seeds", "0-39", "--concurrency", "2")
    with MockModel(answers, faults=faults) as model:
        variables = {"TASKAPP_JUDGE_URL": model.url, "TASKAPP_JUDGE_MODEL": "m"}
        told = run("eval", str(app), "--env", "judged", *policies, "--out", "e", folder=tmp_path, **variables)
    assert told.exit_code == 1
    lines = [json.loads(line) for line in (tmp_path / "e" / "results.jsonl").read_text().splitlines()]
    assert {line["code"] for line in lines} == {code} and 8 <= len(lines) <= 10
    last = told.stderr.splitlines()[-1]
    assert "`taskapp rescore e`" in last and last.index("rescore") < last.index("--retry-failed")
    with MockModel(judge("polite")) as model:
        variables = {"TASKAPP_JUDGE_URL": model.url, "TASKAPP_JUDGE_MODEL": "m"}
        rescore = ("rescore", "e", "--app", str(mended), "--json")
        unpriced = json.loads(run(*rescore, "--dry-run", folder=tmp_path, **variables).stdout)
        prices = "usd_per_million_input_tokens = 1.0\nusd_per_million_output_tokens = 1.0\n"
        (tmp_path / "models.toml").write_text(f'[j]\nurl = "{model.url}"\nmodel = "m"\n{prices}')
        priced = json.loads(run(*rescore, "--dry-run", folder=tmp_path, **variables).stdout)
        assert unpriced["judge_calls"] == priced["judge_calls"] == {"judge": len(lines)}
        assert unpriced["judge_costs"] == {"judge": None}
        assert (priced["judge_costs"]["judge"] is None) is (fault == "rubric"), "no judge was called before"
        assert not model.requests
        done = run(*rescore, folder=tmp_path, **variables)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["scored"] == len(lines)


@pytest.mark.server
def test_rescoring_stops_when_the_judge_is_gone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "judged.py").write_text(FORTY_ROWS)
    played = ("--env", "judged", "--policy", "constant", "--action", "Clouds.", "--seeds", "0-39", "--judges", "skip")
    assert run("eval", "judged.py", *played, "--out", "e", folder=tmp_path).exit_code == 0
    with MockModel(faults=Faults({"401": 1.0})) as model:
        variables = {"TASKAPP_JUDGE_URL": model.url, "TASKAPP_JUDGE_MODEL": "m"}
        told = run("rescore", "e", "--concurrency", "1", folder=tmp_path, **variables)
        assert told.exit_code != 0
        assert len(model.requests) == 8
