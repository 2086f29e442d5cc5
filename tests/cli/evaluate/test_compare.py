"""`taskapp compare`: policies of known skill, failures apart, declarations that differ, what would decide it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskapp_kit.cli.evaluate.view import ui_source
from taskapp_kit.evaluate.source import open_source
from taskapp_kit.records.protocols import RolloutQuery
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.viewer.run_pages import run_figures
from tests.cli.conftest import Run, Served

SKILLED = str(Path(__file__).parents[2] / "evaluate" / "skilled.py")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluations of skilled.py: weak, strong and broken on 60 seeds; few, strong on six; twice, weak on 30 seeds twice."""
    from taskapp_kit.cli.main import main

    folder = tmp_path_factory.mktemp("compare")
    for name, *flags in (
        ("weak", "--policy", "weak", "--seeds", "0-59"),
        ("strong", "--policy", "strong", "--seeds", "0-59"),
        ("broken", "--policy", "broken", "--seeds", "0-59"),
        ("few", "--policy", "strong", "--seeds", "0-5"),
        ("twice", "--policy", "strong", "--seeds", "0-29", "--repeats", "2", "--store", "none"),
    ):
        done = CliRunner().invoke(main, ["eval", SKILLED, *flags, "--out", str(folder / name), "--json"])
        assert done.exit_code == (1 if name == "broken" else 0), done.output
    return folder


@pytest.fixture
def compared(run: Run, played: Path) -> Callable[..., dict[str, Any]]:
    def once(*args: str) -> dict[str, Any]:
        done = run("compare", *args, "--json", folder=played, status=0)
        (one,) = json.loads(done.stdout)["comparisons"]
        assert isinstance(one, dict)
        return one

    return once


def lines(path: Path) -> dict[int, dict[str, Any]]:
    found = [json.loads(line) for line in (path / "results.jsonl").read_text().splitlines()]
    return {line["key"]["seed"]: line for line in found}


@pytest.mark.parametrize("seeds", [2, 3, 4, 8])
def test_few_seeds_show_no_impossible_interval(run: Run, tmp_path: Path, seeds: int) -> None:
    run("eval", SKILLED, "--policy", "weak", "--policy", "strong", "--seeds", f"0-{seeds - 1}", "--out", "e", status=0)
    numbers = json.loads((tmp_path / "e" / "summary.json").read_text())["by_policy"]
    (pair,) = json.loads(run("compare", "e", "--json", status=0).stdout)["comparisons"]
    source = ui_source(open_source(str(tmp_path / "e")))
    rows = asyncio.run(source.rows(RolloutQuery(), "newest", Caller()))
    for lowest, interval in (
        (0.0, numbers["weak"]["interval"]),
        (0.0, numbers["strong"]["interval"]),
        (0.0, run_figures(rows, source)["reward"]),
        *((-1.0, measure["interval"]) for measure in (pair["reward"], *pair["criteria"])),
    ):
        if seeds < 3:
            assert interval["low"] is None is interval["high"]
        else:
            assert lowest <= interval["low"] <= interval["mean"] <= interval["high"] <= 1.0


def test_the_better_of_two_known_policies_is_found(compared: Callable[..., dict[str, Any]], played: Path) -> None:
    one = compared("weak", "strong")
    weak, strong = lines(played / "weak"), lines(played / "strong")
    differences = [strong[seed]["reward"] - weak[seed]["reward"] for seed in range(60)]
    reward = one["reward"]
    assert one["pairs"] == reward["interval"]["n"] == reward["interval"]["clusters"] == 60
    assert reward["interval"]["mean"] == pytest.approx(sum(differences) / 60)
    assert reward["interval"]["low"] < 0.75 - 0.35 < reward["interval"]["high"]
    assert (reward["wins"], reward["ties"], reward["losses"]) == tuple(map(differences.count, (1.0, 0.0, -1.0)))
    assert reward["decided"] and one["more_seeds"] == 0 and reward["permutation_p"] < 0.05 > reward["sign_p"]
    assert [item["name"] for item in one["criteria"]] == ["right", "brief"]
    assert {item["name"] for item in one["numbers"]} >= {"length", "seconds"}


def test_the_seeds_that_changed_have_the_line_that_shows_them(
    run: Run, compared: Callable[..., dict[str, Any]], played: Path
) -> None:
    one = compared("weak", "strong")
    weak, strong = lines(played / "weak"), lines(played / "strong")
    kinds = {(0.0, 1.0): "gained", (1.0, 0.0): "lost"}
    assert {change["seed"]: change["kind"] for change in one["changes"]} == {
        seed: kinds[weak[seed]["reward"], strong[seed]["reward"]]
        for seed in range(60)
        if weak[seed]["reward"] != strong[seed]["reward"]
    }
    done = run("compare", "weak", "strong", "--changes", "3", folder=played, width=200)
    shown = [line for line in done.stdout.splitlines() if "taskapp show strong " in line]
    assert [line.split()[-1] for line in shown] == [change["other"]["rollout_id"][:8] for change in one["changes"][:3]]


def test_failures_are_counted_apart_and_are_in_no_difference(
    compared: Callable[..., dict[str, Any]], played: Path
) -> None:
    one = compared("weak", "broken")
    assert one["failed"] == {"baseline": 0, "other": 6, "both": 0}
    assert one["pairs"] == one["reward"]["interval"]["n"] == 54
    assert (one["reward"]["wins"], one["reward"]["losses"], one["reward"]["interval"]["mean"]) == (0, 0, 0.0)
    assert one["more_seeds"] is None and not one["reward"]["decided"]
    assert {change["kind"] for change in one["changes"]} == {"failed"} and len(one["changes"]) == 6
    assert all(change["other"]["reward"] is None for change in one["changes"])
    back = compared("broken", "weak")
    assert back["failed"]["baseline"] == 6 and {change["kind"] for change in back["changes"]} == {"recovered"}


def test_few_seeds_decide_nothing_and_the_number_that_would_is_named(
    run: Run, compared: Callable[..., dict[str, Any]], played: Path
) -> None:
    one = compared("weak", "few")
    assert one["pairs"] == 6 and one["unpaired"] == {"baseline": 54, "other": 0}
    assert not one["reward"]["decided"] and one["more_seeds"] > 0
    assert one["reward"]["interval"]["method"] == "t"
    done = run("compare", "weak", "few", folder=played)
    assert "Undecided" in done.stdout and f"{one['more_seeds']:,} more" in done.stdout


def test_samples_are_paired_one_by_one_and_seeds_are_the_clusters(compared: Callable[..., dict[str, Any]]) -> None:
    one = compared("strong", "twice")
    assert one["pairs"] == 30 and one["unpaired"] == {"baseline": 30, "other": 30}  # sample 1 has no partner
    assert one["reward"]["interval"]["mean"] == 0.0, "the same policy on the same seeds and samples"
    same = compared("twice", "twice")
    assert (same["pairs"], same["reward"]["interval"]["clusters"]) == (60, 30)


def test_the_reward_is_broken_down_by_fields_of_the_rows(
    run: Run, compared: Callable[..., dict[str, Any]], played: Path
) -> None:
    one = compared("weak", "strong", "--by", "difficulty", "--by", "tag")
    parts = {group["name"]: group["interval"]["n"] for group in one["by"]["difficulty"]}
    assert parts == {"easy": 40, "hard": 20}
    assert {group["name"]: group["interval"]["n"] for group in one["by"]["tag"]} == {"even": 30, "odd": 30, "other": 30}
    means = {group["name"]: group["interval"]["mean"] for group in one["by"]["difficulty"]}
    assert (40 * means["easy"] + 20 * means["hard"]) / 60 == pytest.approx(one["reward"]["interval"]["mean"])
    shown = run("compare", "weak", "strong", "--by", "difficulty", folder=played)
    assert "reward, difficulty hard" in shown.stdout
    seeds = compared("weak", "few", "--by", "seed")["by"]["seed"]
    assert [group["name"] for group in seeds] == ["0", "1", "2", "3", "4", "5"]
    unknown = run("compare", "weak", "strong", "--by", "dificulty", folder=played, status=2)
    assert "'difficulty'" in unknown.stderr
    run("compare", "weak", "strong", "--by", "answer", folder=played, status=2)


def test_the_policies_of_one_evaluation_are_compared(run: Run, played: Path) -> None:
    both = ("--policy", "weak", "--policy", "strong", "--seeds", "0-19")
    run("eval", SKILLED, *both, "--out", "both", "--json", folder=played, status=0)
    told = run("compare", "both", "--json", folder=played)
    (one,) = json.loads(told.stdout)["comparisons"]
    assert (one["baseline"]["name"], one["other"]["name"], one["pairs"]) == ("weak", "strong", 20)
    assert one["configuration"] == {"policy.policy": ["weak", "strong"]}


def test_a_narrow_terminal_gets_fewer_columns_and_whole_cells(run_at_terminal: Run, played: Path) -> None:
    wide = run_at_terminal("compare", "weak", "strong", "--changes", "0", folder=played, width=120).stdout
    narrow = run_at_terminal("compare", "weak", "strong", "--changes", "0", folder=played, width=70).stdout
    assert "sign p" in wide.split("Intervals by")[0] and "Too narrow" not in wide
    (row,) = (line for line in narrow.splitlines() if line.startswith("reward "))
    assert " to +" in row and row.split() == [word for word in row.split() if word in wide]
    assert "the terminal is too narrow: sign p" in " ".join(narrow.split()) and max(map(len, narrow.splitlines())) <= 70


def test_what_differed_in_the_configuration_is_named(compared: Callable[..., dict[str, Any]]) -> None:
    assert compared("weak", "few")["configuration"] == {
        "policy.policy": ["weak", "strong"],
        "seeds": ["0-59", "0-5"],
    }


def test_other_declarations_are_refused_and_compared_with_force(
    run: Run, played: Path, tmp_path: Path, compared: Callable[..., dict[str, Any]]
) -> None:
    newer = tmp_path / "newer.py"
    newer.write_text(Path(SKILLED).read_text().replace('version="1.0.0"', 'version="2"'))
    run("eval", str(newer), "--policy", "weak", "--seeds", "0-9", "--out", "newer", "--json", folder=played, status=0)
    done = run("compare", "weak", "newer", folder=played, status=2)
    assert "--force" in done.stderr
    one = compared("weak", "newer", "--force")
    assert one["pairs"] == 10 and one["configuration"]["app_version"] == ["1.0.0", "2"]


def test_a_store_with_several_policies_is_compared_by_itself(run: Run, played: Path, tmp_path: Path) -> None:
    for policy in ("weak", "strong"):
        asked = ("--policy", policy, "--seeds", "0-39", "--store", "all.db")
        run("eval", SKILLED, *asked, "--out", policy, "--json", status=0)
    done = run("compare", "all.db", "--baseline", "weak", "--json")
    (one,) = json.loads(done.stdout)["comparisons"]
    assert (one["baseline"]["name"], one["other"]["name"], one["pairs"]) == ("weak", "strong", 40)
    assert one["configuration"] == {"policy.policy": ["weak", "strong"]}
    mixed = run("compare", "all.db", str(played / "strong"), "--policy", "strong", "--json")
    (same,) = json.loads(mixed.stdout)["comparisons"]
    assert (same["pairs"], same["reward"]["ties"], same["unpaired"]["other"]) == (40, 40, 20)


@pytest.mark.server
def test_the_rollouts_of_a_server_are_compared(run: Run, adder_server: Served) -> None:
    served = (adder_server.url, "--key", str(adder_server.key))
    run("eval", *served, "--policy", "random", "--policy", "gold", "--seeds", "0-5", "--out", "e", "--json", status=0)
    told = run("compare", *served, "--baseline", "random", "--json", status=0)
    found = json.loads(told.stdout)["comparisons"]
    (one,) = [one for one in found if one["other"]["name"] == "gold"]
    assert one["pairs"] >= 6 and one["reward"]["interval"]["mean"] > 0
    assert str(adder_server.key) not in told.stdout


def test_hostile_names_are_text(run: Run, played: Path, tmp_path: Path) -> None:
    name = "\x1b[31m[bold]red\x07\u202e"
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    config = json.loads((played / "weak" / "config.json").read_text())
    config["asked"]["policy"] = {"model": name}
    (hostile / "config.json").write_text(json.dumps(config))
    written = []
    for seed, line in lines(played / "weak").items():
        line["key"]["policy"], line["criteria"] = name, {name: float(seed % 2)}
        written.append(json.dumps(line))
    (hostile / "results.jsonl").write_text("\n".join([*written, ""]))
    done = run("compare", str(played / "strong"), str(hostile), status=0)
    assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout) and "[bold]red" in done.stdout


def test_three_are_compared_with_the_first(run: Run, played: Path) -> None:
    done = run("compare", "weak", "strong", "broken", "--json", folder=played)
    found = json.loads(done.stdout)["comparisons"]
    assert [(one["baseline"]["name"], one["other"]["name"]) for one in found] == [
        ("weak", "strong"),
        ("weak", "broken"),
    ]


@pytest.mark.parametrize(
    "args",
    [
        ("weak",),
        ("weak", "nowhere"),
        ("weak", "strong", "--policy", "nobody"),
        ("weak", "strong", "--baseline", "nobody"),
    ],
)
def test_what_cannot_be_compared_is_refused(run: Run, played: Path, args: tuple[str, ...]) -> None:
    done = run("compare", *args, folder=played)
    assert done.exit_code in (1, 2) and done.stderr.startswith("Error:") and not done.stdout
