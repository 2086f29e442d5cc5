"""`taskapp rescore`: today's rubrics and judges on what was stored; the answered scores stay."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskapp_kit.testing import MockModel, judge
from tests.cli.conftest import ROOT, Run

SKILLED = (ROOT / "tests" / "evaluate" / "skilled.py").read_text()
RUBRIC = "    return float(answer_text == task.answer)\n"
BREAKS = SKILLED.replace(RUBRIC, f'    assert "3 a number" not in task.question\n{RUBRIC}')
STRICT = SKILLED.replace(RUBRIC, "    return 0.25 * (answer_text == task.answer)\n")
OTHER_ROW = STRICT.replace('f"Is {n} a number?"', 'f"Is {n} a number?" if n != 4 else "Is 4 one?"')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Apps, and e: seeds 0 to 19 of breaks.py by weak; seeds 3 and 13 failed in scoring. pruned: the same without whole rollouts."""
    from taskapp_kit.cli.main import main

    made = tmp_path_factory.mktemp("rescore")
    for name, text in (("breaks", BREAKS), ("mended", SKILLED), ("strict", STRICT), ("other", OTHER_ROW)):
        (made / f"{name}.py").write_text(text)
    for name, *flags in (("e", "--seeds", "0-19"), ("numbers", "--seeds", "0-2", "--store", "none")):
        args = ["eval", str(made / "breaks.py"), "--policy", "weak", *flags, "--out", str(made / name), "--json"]
        done = CliRunner().invoke(main, args)
        assert done.exit_code == (1 if name == "e" else 0), done.output
    return made


def rescored(run: Run, folder: Path, *args: str, status: int = 0, **variables: str) -> dict[str, Any]:
    done = run("rescore", *args, "--json", folder=folder, **variables)
    assert done.exit_code == status, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def answered(folder: Path) -> list[Any]:
    with closing(sqlite3.connect(folder / "e" / "rollouts.db")) as database:
        return database.execute("SELECT * FROM rollouts ORDER BY rollout_id").fetchall()


def test_a_rubrics_change_is_scored_and_the_answered_scores_stay(run: Run, folder: Path) -> None:
    before = answered(folder)
    told = rescored(run, folder, "e", "--app", "strict.py", "--scores", "strict")
    assert (told["scorer"], told["scored"], told["scored_before"], told["failed"], told["refused"]) == (
        "strict", 20, 0, [], [],
    )  # fmt: skip
    reward = told["comparison"]["reward"]
    assert reward["other"] == pytest.approx(reward["baseline"] / 4)
    assert told["comparison"]["failed"] == {"baseline": 2, "other": 0, "both": 0}
    changes = told["comparison"]["changes"]
    assert {change["seed"] for change in changes if change["kind"] == "recovered"} == {3, 13}
    assert {change["kind"] for change in changes} == {"recovered", "lost"}
    assert told["comparison"]["configuration"]["scorer"] == ["answered", "strict"]
    assert answered(folder) == before

    again = rescored(run, folder, "e", "--app", "strict.py", "--scores", "strict")
    assert (again["scored"], again["scored_before"]) == (0, 20) and again["comparison"]["reward"] == reward


def test_later_scores_are_shown_by_their_version(run: Run, folder: Path) -> None:
    rescored(run, folder, "e", "--app", "strict.py", "--scores", "shown")
    done = run("show", "e", "--scores", "shown", "--best", "20", "--json", folder=folder)
    rows = json.loads(done.stdout)["rollouts"]
    assert len(rows) == 20 and {row["status"] for row in rows} == {"terminated"}
    assert {row["reward"] for row in rows} == {0.0, 0.25} and rows[0]["reward"] == 0.25
    assert run("show", "e", "--scores", "shown", "--failed", "--json", folder=folder).stdout.count("rollout_id") == 0
    failed = json.loads(run("show", "e", "--failed", "--json", folder=folder).stdout)["rollouts"]
    one = run("show", "e", failed[0]["rollout_id"], "--scores", "shown", "--json", folder=folder)
    details = json.loads(one.stdout)
    assert details["status"] == "terminated" and details["failure"] is None and "right" in json.dumps(details)
    unknown = run("show", "e", "--scores", "nobody", folder=folder, status=2)
    assert "shown" in unknown.stderr


def test_a_changed_scorer_has_another_version_and_an_equal_one_the_same(run: Run, folder: Path) -> None:
    def version(app: str) -> str:
        return str(rescored(run, folder, "e", "--app", app, "--dry-run")["scorer"])

    (folder / "copy.py").write_text(SKILLED)
    assert version("mended.py") == version("copy.py")
    assert len({version("mended.py"), version("strict.py"), version("breaks.py")}) == 3


def test_a_row_that_changed_is_refused_by_its_seed(run: Run, folder: Path) -> None:
    told = rescored(run, folder, "e", "--app", "other.py", "--scores", "other", status=1)
    assert [(one["split"], one["seed"]) for one in told["refused"]] == [("train", 4)]
    assert told["scored"] == 19 and told["comparison"]["pairs"] == 17
    done = run("rescore", "e", "--app", "other.py", "--scores", "other", folder=folder, status=1)
    assert "refused: skilled train 4 " in done.stdout


def test_a_rollout_that_was_pruned_is_refused_and_the_others_are_scored(run: Run, folder: Path) -> None:
    shutil.copytree(folder / "e", folder / "pruned")
    assert run("store", "prune", "pruned/rollouts.db", "--keep", "12", "--yes", folder=folder).exit_code == 0
    told = rescored(run, folder, "pruned", "--app", "mended.py", "--scores", "pruned", status=1)
    assert (told["scored"], len(told["refused"]), told["comparison"]["pairs"]) == (
        12,
        8,
        12 - told["comparison"]["failed"]["baseline"],
    )
    assert {one["problem"] for one in told["refused"]} == {"its events were not stored, or were pruned."}


def test_what_still_fails_is_no_score_and_is_tried_again(run: Run, folder: Path) -> None:
    told = rescored(run, folder, "e", "--scores", "still", status=1)  # the evaluation names its app
    assert [one["seed"] for one in told["failed"]] == [3, 13] and told["scored"] == 20
    assert told["comparison"]["failed"]["both"] == 2
    mended = rescored(run, folder, "e", "--app", "mended.py", "--scores", "still")
    assert (mended["scored"], mended["scored_before"], mended["failed"]) == (2, 18, [])


def test_a_dry_run_counts_and_stores_nothing(run: Run, folder: Path) -> None:
    told = rescored(run, folder, "e", "--app", "mended.py", "--scores", "dry", "--dry-run")
    assert (told["to_score"], told["judge_calls"], told["comparison"]) == (20, {}, None)
    assert run("show", "e", "--scores", "dry", folder=folder).exit_code == 2


@pytest.mark.parametrize(
    "args",
    [
        ("numbers",),  # it has no whole rollouts
        ("e/rollouts.db",),  # a store names no app
        ("e/rollouts.db", "--app", str(ROOT / "examples" / "adder.py")),  # of another app
        ("nowhere.db", "--app", "mended.py"),
        ("http://127.0.0.1:9", "--app", "mended.py"),
    ],
)
def test_what_cannot_be_rescored_is_refused(run: Run, folder: Path, args: tuple[str, ...]) -> None:
    done = run("rescore", *args, folder=folder)
    assert done.exit_code in (1, 2) and not done.stdout and ("Error:" in done.stderr)
    assert not (folder / "nowhere.db").exists()


@pytest.mark.server
def test_judges_are_asked_again_and_only_with_their_model(run: Run, folder: Path, polite: dict[str, str]) -> None:
    judged = str(ROOT / "tests" / "cli" / "judged.py")
    run("eval", judged, "--env", "judged", "--policy", "constant", "--action", "Clouds.", "--seeds", "0-1",
               "--judges", "skip", "--out", "judged", "--json", folder=folder, status=0)  # fmt: skip
    missing = run("rescore", "judged", folder=folder, status=1)
    assert "TASKAPP_JUDGE_URL" in missing.stderr
    planned = rescored(run, folder, "judged", "--dry-run", **polite)
    assert (planned["to_score"], planned["judge_calls"]) == (2, {"judge": 2})
    told = rescored(run, folder, "judged", **polite)
    assert (told["scored"], told["judge_calls"], told["scorer"]) == (2, {"judge": 2}, planned["scorer"])
    criteria = {item["name"]: item for item in told["comparison"]["criteria"]}
    assert criteria["polite"]["undefined"] == 2, "the answered score is null, which is no number"
    rows = json.loads(run("show", "judged", "--scores", told["scorer"], "--json", folder=folder).stdout)["rollouts"]
    assert [row["criteria"]["polite"] for row in rows] == [1.0, 1.0] and all(row["reward"] == 1.0 for row in rows)


@pytest.fixture(scope="module")
def polite() -> Iterator[dict[str, str]]:
    with MockModel(judge("polite")) as model:
        yield {"TASKAPP_JUDGE_URL": model.url, "TASKAPP_JUDGE_MODEL": "mock"}
