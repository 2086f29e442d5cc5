from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskapp_kit.errors import ConfigError, StoreError
from taskapp_kit.evaluate.directory import CONFIG, RESULTS, SUMMARY, Directory, differing
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.records.seeds import Seeds


def plan(seeds: str = "0-9") -> EvalPlan:
    return EvalPlan(Seeds.read(seeds), [{"policy": "random"}])


def config(asked: EvalPlan, eval_id: str = "e1") -> dict[str, Any]:
    return {"asked": asked.to_json(), "eval_id": eval_id}


def result(seed: int, *, failed: bool = False) -> RolloutRow:
    return RolloutRow(
        "failed" if failed else "terminated", f"r{seed}", seed=seed, reward=None if failed else float(seed)
    )


def opened(
    path: Path, *, resume: bool = True, seeds: str = "0-9", eval_id: str = "e1"
) -> tuple[Directory, dict[str, Any]]:
    directory = Directory(path, plan(seeds))
    try:
        return directory, directory.begin(config(plan(seeds), eval_id), resume=resume)
    except BaseException:
        directory.close()
        raise


def missing(directory: Directory, *, retry: bool = False) -> list[tuple[int, int]]:
    return list(directory.missing(retry_failed=retry))


def test_what_is_appended_is_there_when_it_is_taken_up_again(tmp_path: Path) -> None:
    directory, began = opened(tmp_path / "new" / "out", resume=False)
    assert began["eval_id"] == "e1"
    directory.append([(3, result(3)), (1, result(1))])
    directory.append([(0, result(0))])
    directory.close()
    again, before = opened(tmp_path / "new" / "out", eval_id="another")
    assert before["eval_id"] == "e1"
    assert again.done == 3
    assert [item.seed for item in again.results()] == [0, 1, 3]
    assert [position for position, _ in missing(again)] == [2, 4, 5, 6, 7, 8, 9]
    again.close()


@settings(max_examples=60)
@given(cut=st.integers(0, 1200), flips=st.booleans())
def test_whatever_was_cut_off_costs_the_torn_line_alone(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flips: bool
) -> None:
    path = tmp_path_factory.mktemp("torn")
    directory, _ = opened(path)
    for seed in range(3):
        directory.append([(seed, result(seed))])
    directory.close()
    whole = (path / RESULTS).read_bytes()
    kept = whole[: min(cut, len(whole))]
    (path / RESULTS).write_bytes(kept + (b"\0" * 40 if flips else b""))
    again, _ = opened(path)
    lines = kept.count(b"\n")
    assert again.done == lines
    assert (path / RESULTS).read_bytes() == b"".join(whole.splitlines(keepends=True)[:lines])
    again.append([(position, result(position)) for position, _ in missing(again)])
    again.close()
    told = [json.loads(line)["key"]["seed"] for line in (path / RESULTS).read_bytes().splitlines()]
    assert sorted(told) == list(range(10))


def test_a_line_that_is_wrong_in_the_middle_is_told_not_dropped(tmp_path: Path) -> None:
    directory, _ = opened(tmp_path)
    directory.append([(seed, result(seed)) for seed in range(3)])
    directory.close()
    lines = (tmp_path / RESULTS).read_bytes().splitlines(keepends=True)
    for spoiled, said in (
        ([lines[0], b"}{\n", lines[2]], "line 2, .*JSON"),
        ([lines[0], lines[1], lines[0]], "line 3, is a duplicate"),
        ([lines[0].replace(b'"seed":0', b'"seed":77')], "line 1, .*plan"),
        ([lines[0].replace(b'"status"', b'"state"')], "line 1, .*release"),
    ):
        (tmp_path / RESULTS).write_bytes(b"".join(spoiled))
        with pytest.raises(StoreError, match=said):
            opened(tmp_path)
        assert (tmp_path / RESULTS).read_bytes() == b"".join(spoiled)


def test_a_failure_stays_until_it_is_asked_to_be_played_again(tmp_path: Path) -> None:
    directory, _ = opened(tmp_path, seeds="0-2")
    directory.append([(0, result(0)), (1, result(1, failed=True))])
    directory.close()
    again, _ = opened(tmp_path, seeds="0-2")
    assert missing(again) == [(2, 0)]
    assert missing(again, retry=True) == [(1, 1), (2, 0)]
    again.append([(1, result(1, failed=True))])
    again.append([(2, result(2))])
    again.close()
    third, _ = opened(tmp_path, seeds="0-2")
    assert (third.done, third.failed) == (3, 1)
    assert missing(third, retry=True) == [(1, 2)]
    third.append([(1, result(1))])
    assert [item.failed for item in third.results()] == [False, False, False]
    assert (third.done, third.failed) == (3, 0)
    third.close()
    last, _ = opened(tmp_path, seeds="0-2")
    assert missing(last, retry=True) == []
    last.close()


def test_without_resume_what_is_there_is_left_alone(tmp_path: Path) -> None:
    directory, _ = opened(tmp_path)
    directory.append([(0, result(0))])
    directory.close()
    before = (tmp_path / RESULTS).read_bytes(), (tmp_path / CONFIG).read_bytes()
    with pytest.raises(ConfigError) as refused:
        opened(tmp_path, resume=False)
    assert "--resume" in refused.value.hint
    with pytest.raises(ConfigError, match="seeds .*0-9.*0-8"):
        opened(tmp_path, seeds="0-8")
    assert ((tmp_path / RESULTS).read_bytes(), (tmp_path / CONFIG).read_bytes()) == before


def test_where_nothing_was_played_anything_may_begin(tmp_path: Path) -> None:
    opened(tmp_path, seeds="0-3")[0].close()
    directory, began = opened(tmp_path, seeds="0-3", eval_id="e2")
    directory.close()
    assert began["eval_id"] == "e1"  # killed before the first result: a server may still play under this id
    directory, began = opened(tmp_path, seeds="0-9", eval_id="e3")
    directory.close()
    assert began["eval_id"] == "e3"
    directory, began = opened(tmp_path, seeds="0-9", eval_id="e4", resume=False)
    directory.close()
    assert began["eval_id"] == "e4"


def test_files_of_somebody_else_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text('{"mine": true}')
    with pytest.raises(ConfigError, match=r"/config\.json "):
        opened(tmp_path)
    assert (tmp_path / CONFIG).read_text() == '{"mine": true}'
    (tmp_path / CONFIG).unlink()
    (tmp_path / RESULTS).write_text("1\n")
    with pytest.raises(ConfigError, match=r"results\.jsonl .*config\.json"):
        opened(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="/file .*--out"):
        opened(tmp_path / "file")


@pytest.mark.process
def test_two_at_once_are_refused_until_the_first_ends_however_it_ends(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from taskapp_kit.evaluate.directory import Directory;"
        "from taskapp_kit.evaluate.plan import EvalPlan; from taskapp_kit.records.seeds import Seeds;"
        f"Directory(Path({str(tmp_path)!r}), EvalPlan(Seeds.read('0-9'), [{{'policy': 'random'}}]));"
        "print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match="Another"):
            opened(tmp_path)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    opened(tmp_path)[0].close()


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    directory, _ = opened(tmp_path)
    directory.append([(0, result(0))])
    size = (tmp_path / RESULTS).stat().st_size
    import signal

    old, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, old[1]))
    try:
        with pytest.raises(StoreError, match=r"results\.jsonl .*written"):
            directory.append([(1, result(1)), (2, result(2))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (tmp_path / RESULTS).stat().st_size == size
    assert directory.done == 1
    directory.append([(1, result(1))])
    assert [item.seed for item in directory.results()] == [0, 1]
    directory.close()


def test_the_summary_comes_in_one_step_and_goes_when_more_is_to_come(tmp_path: Path) -> None:
    directory, _ = opened(tmp_path)
    directory.write_summary({"a": 1})
    assert json.loads((tmp_path / SUMMARY).read_text()) == {"a": 1}
    directory.drop_summary()
    directory.drop_summary()
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, RESULTS]
    directory.close()


def test_differences_are_named_down_to_the_member() -> None:
    before = {"a": 1, "policy": {"model": "m", "temperature": 0.5}, "split": None}
    now = {"a": 1, "policy": {"model": "n", "temperature": 0.5}, "split": "test", "x": "y" * 100}
    assert differing(before, now) == [
        "policy.model was m, is n", "split was not set, is test", f"x was not set, is {'y' * 69}…",
    ]  # fmt: skip


def test_a_folder_that_takes_no_changes_is_a_sentence(tmp_path: Path, evaluations: Any) -> None:
    asked = EvalPlan(Seeds.read("0-3"), [{"policy": "presser"}])
    evaluations.run(tmp_path, asked)
    results, summary = tmp_path / "results.jsonl", tmp_path / "summary.json"
    results.write_bytes(b"".join(results.read_bytes().splitlines(keepends=True)[:2]))
    summary.unlink()
    (summary / "inner").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"summary\.json .*removed"):
        evaluations.run(tmp_path, asked)
    assert len(results.read_bytes().splitlines()) == 2
