"""The report: its verdict, the page and the SARIF log, and what another report differs in."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.doctor.doctor_options import DoctorOptions
from taskapp_kit.doctor.report import DoctorReport, page, report_on_app, sarif
from taskapp_kit.doctor.verify import MISSING, differences, options_again, read_report
from taskapp_kit.errors import ConfigError
from tests.doctor.gallery import CAPITALS, CHEST, HUNT, RNG, fault
from tests.doctor.test_gallery import Unhurried

ROOT = Path(__file__).parents[2]
RUBRIC = "float(answer_text.strip().lower() == task.answer.lower())"
PAYS_LETTERS = {RUBRIC: "float(answer_text.strip().lower()[:3] == task.answer.lower()[:3])"}


def report_on(folder: Path, source: str, **options: Any) -> DoctorReport:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "app.py").write_text(source, encoding="utf-8")
    chosen = Unhurried(processes=False, **options)
    return asyncio.run(report_on_app(find_app(str(folder / "app.py")), "app.py", chosen, Settings(variables={})))


def named(before: DoctorReport, after: DoctorReport) -> set[tuple[str, ...]]:
    """The paths of the differences, as a saved report has them."""
    return {item.path for item in differences(json.loads(json.dumps(before.to_json())), after.to_json())}


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.parametrize("example", ["adder", "capitals"])
def test_a_report_is_equal_in_another_process_and_directory(example: str, tmp_path: Path) -> None:
    source = (ROOT / "examples" / f"{example}.py").read_text()
    done = []
    for number, more in enumerate((["--json"], ["--verify", str(tmp_path / "report.json")])):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "app.py").write_text(source)
        command = [sys.executable, "-m", "taskapp_kit", "doctor", "app.py" if number else str(folder / "app.py"), *more]
        command += [] if number else ["--quick"]
        environment = {**os.environ, "PYTHONHASHSEED": str(number + 1)}
        done.append(subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False))
        assert done[-1].returncode == 0, done[-1].stdout + done[-1].stderr
        if not number:
            (tmp_path / "report.json").write_bytes(done[0].stdout)
    report = json.loads(done[0].stdout)
    (environment_facts,) = report["facts"]["environments"].values()
    assert len(environment_facts["checks"]) > 30
    assert environment_facts["functions"] and any(environment_facts["episodes"].values())


def test_a_changed_rubric_a_changed_row_and_a_changed_policy_are_named(tmp_path: Path) -> None:
    before = report_on(tmp_path / "before", CAPITALS)
    assert named(before, report_on(tmp_path / "same", CAPITALS)) == set()
    rubric = named(before, report_on(tmp_path / "rubric", fault(CAPITALS, PAYS_LETTERS)))
    ask = ("environments", "ask")
    assert {(*ask, "functions", "correct"), (*ask, "checks", "attack"), ("safe",)} <= rubric
    assert not any(path[2] in ("rows", "episodes") for path in rubric if path[:2] == ask)
    row = named(before, report_on(tmp_path / "row", fault(CAPITALS, {'"Lima"': '"Quito"'})))
    assert {path for path in row if path[:3] == (*ask, "rows")} == {
        (*ask, "rows", "train", "all"),
        (*ask, "rows", "train", "each", "2"),
    }
    assert (*ask, "functions", "correct") not in row
    fewer = named(before, report_on(tmp_path / "fewer", fault(CAPITALS, {'    ("Cuba", "Havana"),\n': ""})))
    assert {(*ask, "rows", "train", "count"), (*ask, "rows", "train", "each", "5")} <= fewer
    policy = named(before, report_on(tmp_path / "policy", fault(CAPITALS, {"return task.answer\n": 'return "Oslo"\n'})))
    assert (*ask, "functions", "gold") in policy
    assert (*ask, "episodes", "gold", "train 0", "reward") in policy


def test_nondeterminism_is_named(tmp_path: Path) -> None:
    before = report_on(tmp_path / "before", HUNT)
    after = named(before, report_on(tmp_path / "after", fault(HUNT, {RNG: "rng = random.Random(time.time_ns())"})))
    hunt = ("environments", "hunt")
    assert {
        (*hunt, "checks", "same-seed"),
        (*hunt, "source"),
        (*hunt, "episodes", "random", "train 0", "digest"),
    } <= after


def test_what_differs_in_each_process_is_named_although_no_check_finds_it(tmp_path: Path) -> None:
    source = fault(HUNT, {RNG: "rng = random.Random(f'{seed} {SALT!r}')", "SHARED:": "SALT = os.urandom(8)\nSHARED:"})
    reports = [report_on(tmp_path / str(number), source) for number in range(2)]
    assert [finding.name for report in reports for finding in report.findings if finding.status == "wrong"] == []
    found = named(*reports)
    assert ("environments", "hunt", "episodes", "random", "train 0", "digest") in found
    assert {path[:3] for path in found} == {("environments", "hunt", "episodes")}


def test_the_verdict_is_no_with_undeserved_rewards_first(tmp_path: Path) -> None:
    empty_pays = {RUBRIC: "float(answer_text.strip().lower() in task.answer.lower())"}
    made = report_on(tmp_path, fault(CAPITALS, empty_pays))
    assert [item.name for item in made.findings if item.status == "wrong"] == ["nonsense-pays", "attack"]
    report = made.to_json()
    assert (report["ok"], report["safe"]) == (False, "no")
    assert [reason["check"] for reason in report["reasons"]] == ["attack", "nonsense-pays"]
    written = page(report)
    assert (
        written.index("<h2>Findings</h2>") < written.rindex("</span> attack") < written.rindex("</span> nonsense-pays")
    )


def test_the_verdict_is_yes_only_if_undeserved_rewards_were_looked_for(tmp_path: Path) -> None:
    assert report_on(tmp_path / "gold", CAPITALS).to_json()["safe"] == "yes"
    without = report_on(tmp_path / "none", HUNT).to_json()
    assert (without["ok"], without["safe"], without["reasons"][0]["check"]) == (True, "not_examined", "attack")


def test_an_app_that_does_not_load_is_not_safe_and_has_no_facts_about_environments(tmp_path: Path) -> None:
    report = report_on(tmp_path, fault(CAPITALS, {"answer_text: str, task": "answer_txt: str, task"})).to_json()
    assert (report["safe"], report["reasons"][0]["check"]) == ("no", "declarations")
    assert report["facts"]["environments"] == {}
    assert "Safe to train on: <b>no</b>" in page(report)


def test_an_accepted_declaration_is_not_examined(tmp_path: Path) -> None:
    source = fault(CAPITALS, {"answer_text: str, task": "answer_txt: str, task"})
    report = report_on(tmp_path, source, allow=("declarations",)).to_json()
    assert (report["ok"], report["safe"]) == (True, "not_examined")


def test_baselines_have_intervals_within_the_rewards_scale(tmp_path: Path) -> None:
    adder = (ROOT / "examples" / "adder.py").read_text()
    baselines = report_on(tmp_path, adder).measured["adder"]["baselines"]
    assert next(iter(baselines)) == "gold"
    assert all(0.0 <= one["low"] <= one["mean"] <= one["high"] <= 1.0 for one in baselines.values())
    assert baselines["random"]["low"] < baselines["random"]["mean"] < baselines["random"]["high"]
    assert baselines["constant"]["action"]


def test_the_page_escapes_what_the_app_says_and_needs_no_script(tmp_path: Path) -> None:
    report = report_on(tmp_path, fault(CAPITALS, PAYS_LETTERS)).to_json()
    report["findings"][-1] |= {"status": "wrong", "found": "<script>alert(1)</script>"}
    written = page(report)
    assert written.index("Safe to train on: <b>no</b>") < written.index("<h2>Findings</h2>")
    assert "<script" not in written and "&lt;script&gt;" in written
    assert not re.search(r"(?:src|href)=.https?:", written)
    for heading in ("Baselines", "Undeserved rewards", "The same episode again", "Leaks", "Speed and memory"):
        assert f"<h2>{heading}</h2>" in written


def test_the_sarif_log_has_a_location_for_each_problem(tmp_path: Path) -> None:
    report = report_on(tmp_path, fault(CAPITALS, PAYS_LETTERS), allow=("nonsense-pays",)).to_json()
    place = report["findings"][0] | {"name": "rows", "status": "allowed", "environment": "ask", "place": "an app.py:7"}
    report["findings"].append(place)
    (run,) = sarif(report)["runs"]
    results = {item["ruleId"]: item for item in run["results"]}
    assert results["attack"]["level"] == "error"
    where = results["attack"]["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"].startswith("file:///") and where["region"]["startLine"] > 1
    assert results["rows"]["suppressions"] and results["rows"]["level"] == "warning"
    assert results["rows"]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "an%20app.py"
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == results.keys()


def a_report(**measured: Any) -> dict[str, Any]:
    return {"safe": "yes", "facts": {}, "measured": {"e": {"baselines": {}, "seconds": {}, **measured}}}


def baseline(mean: float, reach: float | None, action: object = None) -> dict[str, Any]:
    ends = {"low": None, "high": None} if reach is None else {"low": mean - reach, "high": mean + reach}
    return {"random": {"mean": mean, **ends, "action": action}}


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        (baseline(0.5, 0.1), baseline(0.65, 0.1), False),
        (baseline(0.5, 0.0), baseline(0.51, 0.0), False),
        (baseline(0.5, 0.1), baseline(0.8, 0.1), True),
        (baseline(0.8, 0.1), baseline(0.5, 0.1), True),
        (baseline(0.5, None), baseline(0.9, 0.1), False),
        (baseline(0.5, 0.1, "a"), baseline(0.8, 0.1, "b"), False),
    ],
)
def test_mean_rewards_differ_if_their_intervals_are_apart(before: Any, after: Any, differs: bool) -> None:
    found = differences(a_report(baselines=before), a_report(baselines=after))
    assert [item.path for item in found] == [("measured", "e", "baselines", "random", "mean")] * differs


@pytest.mark.parametrize(
    ("before", "after", "differs"), [(1e-5, 9e-3, False), (0.1, 0.9, False), (0.1, 1.1, True), (1.1, 0.1, True)]
)
def test_durations_differ_if_one_is_ten_times_as_long(before: float, after: float, differs: bool) -> None:
    found = differences(a_report(seconds={"step": before}), a_report(seconds={"step": after}))
    assert [item.path for item in found] == [("measured", "e", "seconds", "step")] * differs


def test_episodes_and_checks_that_only_one_report_has_are_not_compared() -> None:
    episodes = {"random": {"train 0": {"digest": "a"}, "train 1": {"digest": "b"}}}
    facts = {"environments": {"e": {"checks": {"rows": "ok", "images": "ok"}, "episodes": episodes}}}
    before = a_report() | {"facts": facts}
    after = deepcopy(before)
    del after["facts"]["environments"]["e"]["checks"]["rows"]
    del after["facts"]["environments"]["e"]["episodes"]["random"]["train 1"]
    assert differences(before, after) == []
    del after["facts"]["environments"]["e"]["episodes"]["random"]
    (found,) = differences(before, after)
    assert (found.path, found.after) == (("environments", "e", "episodes", "random"), MISSING)


def test_skipped_and_measuring_checks_are_no_facts(tmp_path: Path) -> None:
    report = report_on(tmp_path, HUNT)
    facts = report.facts["environments"]["hunt"]["checks"]
    by_name = {item.name: item.status for item in report.findings}
    assert by_name["attack"] == "skipped" and by_name["cost"] == "ok"
    assert not facts.keys() & {"attack", "cost", "memory"}
    assert facts["same-seed"] == "ok"


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"{}", b'{"format":1}', b'{"format":2,"facts":{},"measured":{},"options":{}}']
)
def test_a_file_that_is_no_report_is_rejected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(content)
    with pytest.raises(ConfigError) as failed:
        read_report(tmp_path / "report.json")
    assert failed.value.hint


def test_a_reports_options_are_used_and_judges_need_the_users_word() -> None:
    saved = {"options": {"quick": True, "judges": False, "environment": "e", "allow": ["rows"]}}
    plain = DoctorOptions()
    again = options_again(saved, plain)
    assert (again.quick, again.judges, again.environment, again.allow) == (True, False, "e", ("rows",))
    with pytest.raises(ConfigError):
        options_again(saved, replace(plain, quick=True))
    with pytest.raises(ConfigError):
        options_again({"options": {**saved["options"], "judges": True}}, plain)
    assert options_again({"options": {**saved["options"], "judges": True}}, replace(plain, judges=True)).judges
    with pytest.raises(ConfigError):
        options_again({"options": {**saved["options"], "allow": [1]}}, plain)


def test_measured_values_of_another_form_are_rejected() -> None:
    with pytest.raises(ConfigError):
        differences(
            a_report(baselines={"random": {"mean": 1, "low": "x", "high": 2}}), a_report(baselines=baseline(1, 1))
        )


def test_a_repeated_reward_is_the_first_reason(tmp_path: Path) -> None:
    report = report_on(tmp_path, CHEST)
    safe, reasons = report.verdict()
    assert (safe, [item.name for item in reasons]) == ("no", ["repeat-pays"])
