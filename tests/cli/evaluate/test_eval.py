from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.cli.output.eval_progress import EvalDisplay
from taskapp_kit.evaluate.progress import Progress
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.testing import Faults, MockModel
from tests.cli.author.test_doctor import CARELESS
from tests.cli.conftest import ADDER, CAPITALS, ROOT, Run, Served

FLAKY = str(ROOT / "tests" / "evaluate" / "flaky.py")
GOLD = (ADDER, "--policy", "gold", "--seeds", "0-19")


def test_the_table_says_what_many_rollouts_come_to(run: Run, tmp_path: Path) -> None:
    told = run("eval", *GOLD, "--repeats", "2", "--out", "r1", status=0)
    summary = json.loads((tmp_path / "r1" / "summary.json").read_text())
    mean = f"{summary['reward']['mean']:.4g} ± {summary['reward']['standard_error']:.2g}"
    assert re.search(r"^app +adder 1\.0\.0", told.stdout, re.MULTILINE)
    assert re.search(r"^rollouts +40 \(40 terminated\), seeds 0-19, 2 of each", told.stdout, re.MULTILINE)
    assert re.search(rf"^reward +{mean} +reward = 1 · outcome_score", told.stdout, re.MULTILINE)
    assert re.search(r"^reached +1 +0 +40", told.stdout, re.MULTILINE)
    assert re.search(r"^stored in +r1", told.stdout, re.MULTILINE)
    assert "adder 1.0.0, policy gold, seeds 0-19: 40 rollouts; results go to r1" in told.stderr
    assert sorted(path.name for path in (tmp_path / "r1").iterdir()) == [
        "config.json", "report.html", "results.jsonl", "rollouts.db", "summary.json",
    ]  # fmt: skip


def test_json_is_the_summary_and_nothing_else(run: Run, tmp_path: Path) -> None:
    told = run("eval", *GOLD, "--out", "r1", "--json", "--store", "none")
    assert json.loads(told.stdout) == json.loads((tmp_path / "r1" / "summary.json").read_text())
    assert told.stderr == ""
    assert not (tmp_path / "r1" / "rollouts.db").exists()


def test_the_first_try_needs_no_flag(run: Run, tmp_path: Path) -> None:
    told = run("eval", ADDER, status=0)
    assert (
        "policy random (no --policy was given), seeds 0-9 of 100 (--seeds 0-99 plays all): 10 rollouts" in told.stderr
    )
    (place,) = (tmp_path / ".taskapp" / "evals").iterdir()
    assert re.fullmatch(r"adder-random-\d{8}-\d{6}", place.name)
    told = run("eval", "--app-id", ADDER, "--split", "test", "--json", "--out", "t")
    assert json.loads(told.stdout)["seeds"] == "100-109"


def test_resume_goes_on_and_refuses_what_is_not_the_same(run: Run, tmp_path: Path) -> None:
    assert run("eval", *GOLD, "--out", "r1", "--resume").exit_code == 0
    results = tmp_path / "r1" / "results.jsonl"
    kept = results.read_bytes()
    again = run("eval", *GOLD, "--out", "r1", status=2)
    assert "--resume" in again.stderr
    changed = run("eval", ADDER, "--policy", "random", "--seeds", "0-9", "--out", "r1", "--resume", status=2)
    assert "seeds was 0-19, is 0-9" in changed.stderr
    source = Path(ADDER).read_text()
    (tmp_path / "adder.py").write_text(source.replace("max_steps=20", "max_steps=19"))
    other = run("eval", "adder.py", "--policy", "gold", "--seeds", "0-19", "--out", "r1", "--resume", status=2)
    assert "spec_hash was" in other.stderr
    assert results.read_bytes() == kept
    results.write_bytes(b"".join(kept.splitlines(keepends=True)[:5]))
    done = run("eval", *GOLD, "--out", "r1", "--resume", status=0)
    assert "5 rollouts were played before." in done.stderr
    assert sorted(json.loads(line)["key"]["seed"] for line in results.read_bytes().splitlines()) == list(range(20))


def test_failures_are_apart_and_make_the_status_1(run: Run, tmp_path: Path) -> None:
    told = run("eval", FLAKY, "--policy", "presser", "--seeds", "0-19", "--concurrency", "1", "--out", "r1", status=1)
    assert re.search(r"^rollouts +20 \(16 terminated, 4 failed, 2 without a reward\)", told.stdout, re.MULTILINE)
    assert re.search(r"^reward +0\.4286 ± \S+ \(14 of 20\)", told.stdout, re.MULTILINE)
    assert re.search(r"^environment +environment_raised +4", told.stdout, re.MULTILINE)
    assert "seed 3 failed at environment (environment_raised): environment Flaky raised KeyError" in told.stderr
    again = run(
        "eval", FLAKY, "--policy", "presser", "--seeds", "0-19", "--out", "r1", "--resume", "--retry-failed", status=1
    )
    assert "20 rollouts were played before; 4 of them failed." in again.stderr
    assert (tmp_path / "r1" / "results.jsonl").read_bytes().count(b"\n") == 24


def test_one_at_a_time_a_change_of_a_global_random_state_is_reported_once(run: Run, tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text(CARELESS)
    asked = ("eval", "careless.py", "--policy", "random", "--seeds", "0-4", "--store", "none")
    told = run(*asked, "--concurrency", "1", status=0)
    assert told.stderr.count("Warning:") == 1
    assert re.search(r"Warning: .*'careless'.* random,", " ".join(told.stderr.split()))
    as_json = run(*asked, "--concurrency", "1", "--json")
    assert json.loads(as_json.stdout)["rollouts"]["done"] == 5
    assert as_json.stderr.count("Warning:") == 1
    assert "Warning" not in run(*asked, "--concurrency", "2").stderr  # other episodes would be blamed on this one
    assert "Warning" not in run("eval", *GOLD, "--concurrency", "1").stderr


def test_author_metrics_stand_in_the_table(run: Run, tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(
        Path(ADDER).read_text()
        + """

@app.metric
def always_two(trajectory) -> float:
    return 2.0


@app.metric
def nothing(trajectory) -> float:
    return 0.0
"""
    )
    told = run("eval", "counted.py", "--policy", "gold", "--seeds", "0-4", "--out", "r1", status=0)
    assert re.search(r"^metric +mean +± s\.e\. +n", told.stdout, re.MULTILINE)
    assert re.search(r"^always_two +2 +0 +5", told.stdout, re.MULTILINE)
    assert "1 metric is 0 on average" in told.stdout
    assert "invalid_actions" not in told.stdout


def test_published_figures_stand_beside_the_apps_own(run: Run) -> None:
    told = run("eval", FLAKY, "--policy", "presser", "--seeds", "0-2", "--out", "r1")
    assert re.search(r"^press +here +them", told.stdout, re.MULTILINE)
    assert re.search(r"^share +0\.3333 +0\.5", told.stdout, re.MULTILINE)
    assert re.search(r"^first +0 +-", told.stdout, re.MULTILINE)
    assert re.search(r"^more +- +1\.25", told.stdout, re.MULTILINE)


@pytest.mark.server
def test_a_model_plays_and_its_tokens_are_counted(run: Run, tmp_path: Path) -> None:
    with MockModel() as model:
        told = run(
            "eval", ADDER, "--model", "m", "--inference-url", f"{model.url}?key=CANARY", "--seeds", "0-3", "--out", "r1",
            "--policy-config", '{"api_key": "CANARYCANARY", "temperature": 0.5}', "--ops", "3",
        )  # fmt: skip
    assert told.exit_code == 0, told.stderr
    assert re.search(r"^tokens +completion [1-9]\d*, prompt [1-9][\d,]*, total [1-9]", told.stdout, re.MULTILINE)
    assert re.search(rf"^policy +model m at {model.url}, temperature 0.5", told.stdout, re.MULTILINE)
    assert b"CANARY" not in b"".join(path.read_bytes() for path in (tmp_path / "r1").iterdir())
    assert "CANARY" not in told.output


@pytest.mark.process
def test_at_a_servers_address(run: Run, adder_server: Served, tmp_path: Path) -> None:
    key = str(adder_server.key)
    asked = ("--policy", "gold", "--seeds", "0-4", "--key", key)
    told = run("eval", adder_server.url, *asked, "--out", "there", status=0)
    assert "Aggregates need the app's code." in told.stdout
    assert run("eval", ADDER, *asked, "--out", "here").exit_code == 0
    here, there = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("here", "there"))
    assert (here["reward"], here["digest"]) == (there["reward"], there["digest"])
    assert key not in (tmp_path / "there" / "config.json").read_text()
    assert run("eval", adder_server.url, *asked, "--out", "there", "--resume").exit_code == 0
    run("eval", adder_server.url, "--policy", "nobody", "--seeds", "0-4", "--key", key, "--out", "wrong", status=2)
    run("eval", "http://127.0.0.1:9", *asked, status=1)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "No app was given"),
        ((ADDER, "--app-id", CAPITALS), "name different apps"),
        ((ADDER, "--model", "m", "--policy", "gold"), "has no address"),
        ((ADDER, "--policy", "gold", "--policy", "gold"), "Two policies are called gold"),
        ((ADDER, "--policy", "gold", "--policy", "random", "--action", "x"), "--action applies to"),
        ((ADDER, "--model", "m", "--inference-url", "http://a", "--inference-url", "http://b"), "one for each --model"),
        ((ADDER, "--concurrency", "many"), "neither auto nor"),
        ((ADDER, "--difficulty", "hard"), "has no rows"),
        ((ADDER, "--by", "topic"), "no row of these seeds"),
        ((ADDER, "--retry-failed"), "needs --resume"),
        ((ADDER, "--seeds", "9-1"), "ends before it starts"),
        ((ADDER, "--seeds", "0-500"), "outside the seeds"),
        ((ADDER, "--policy", "glod"), "Did you mean 'gold'"),
        ((ADDER, "--split", "nope"), "--seeds"),
        ((CAPITALS,), "policy 'random' is unavailable"),
        (("http://127.0.0.1:9", "--workers", "2"), "--workers applies only to an app in this process"),
        (("http://127.0.0.1:9", "--store", "none"), "--store applies only to an app in this process"),
        (("nowhere.py",), "nowhere.py"),
    ],
)
def test_a_wrong_command_line_is_told_and_leaves_nothing(
    run: Run, tmp_path: Path, args: tuple[str, ...], said: str
) -> None:
    told = run("eval", *args, "--out", "r1", status=2)
    assert said in told.stderr
    assert not (tmp_path / "r1").exists()


@pytest.mark.server
def test_a_model_that_is_gone_stops_it_and_the_way_on_is_said(run: Run, tmp_path: Path) -> None:
    with MockModel(faults=Faults({"401": 1.0})) as model:
        asked = ("eval", ADDER, "--model", "m", "--inference-url", model.url, "--seeds", "0-29", "--ops", "2")
        told = run(*asked, "--out", "r1", "--concurrency", "1", "--max-consecutive-failures", "3", status=1)
        assert "model_refused" in told.stderr
        assert "3 of 30 rollouts are stored (3 of them failed)" in told.stderr
        assert "`taskapp eval r1 --retry-failed` continues" in told.stderr
        model.faults = Faults()
        run("eval", "r1", "--retry-failed", status=0)
        assert len(model.requests) == 3 + 60


# The display


def scored(reward: float) -> RolloutRow:
    return RolloutRow("terminated", "r", reward=reward)


def failed(boundary: str | None, message: str = "m") -> RolloutRow:
    return RolloutRow("failed", "r", boundary=boundary, code="c", message=message)


def test_without_a_terminal_nothing_steers_and_few_lines_come(capsys: Any) -> None:
    display = EvalDisplay()
    display.begin(asked=5, done=0)
    for result in (scored(1.0), failed("policy", "\x1b[31m[red]boo"), failed("policy", "again")):
        display.result(result, "random")
    display.close()
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "seed 0 failed at policy (c): \\x1b[31m[red]boo\n"


def test_of_several_policies_a_failure_names_its_own_and_the_comparison_is_offered(run: Run, tmp_path: Path) -> None:
    flaky = str(Path(__file__).parents[2] / "evaluate" / "flaky.py")
    done = run("eval", flaky, "--policy", "presser", "--policy", "random", "--seeds", "3,6", "--out", "two")
    assert re.search(r"^(presser|random), seed 3 failed at environment", done.stderr, re.MULTILINE), done.stderr
    assert "`taskapp compare two` shows which policy is better." in done.stdout
    alone = run("eval", flaky, "--policy", "presser", "--seeds", "3,6", "--out", "one")
    assert re.search(r"^seed 3 failed", alone.stderr, re.MULTILINE) and "taskapp compare" not in alone.stdout


@pytest.mark.parametrize("terminal", [False, True])
def test_a_line_comes_at_each_tick_in_a_terminal_and_in_a_pipe(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    display, progress = EvalDisplay(), Progress()
    display.begin(asked=5, done=0)
    progress.under_way = 3
    display.tick(progress)
    progress.add(2, {"prompt_tokens": 7.0})
    display.tick(progress)
    display.close()
    told = capsys.readouterr().err
    assert "0 of 5 done, 3 in progress\n" in told.replace("\r\n", "\n")
    assert "0 of 5 done, 3 in progress, 2 turns, 7 tokens" in told
    assert "\x1b" in told if terminal else "\x1b" not in told
