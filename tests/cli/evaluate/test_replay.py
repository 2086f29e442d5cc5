"""`taskapp replay`: the same again, or at which step it is not; it takes the episode and adds nothing where it reads."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.store import open_store
from taskapp_kit.store.sql import SqlStore
from taskapp_kit.testing import MockModel
from tests.cli.conftest import Run

APP = """
import random
from taskapp_kit import InvalidAction, Step, TaskApp, action

app = TaskApp("counting", version="1")

@app.environment("counting", splits={"train": range(50), "test": range(50, 60)}, max_steps=SIX)
class Counting:
    def __init__(self, high: int = 9):
        self.high = high

    def reset(self, seed: int) -> str:
        self.n, self.target = 0, random.Random(seed).randint(3, self.high)
        return f"to TARGET"

    @action(noop={})
    def add(self) -> Step:
        '''Adds one.'''
        self.n += 1
        return Step(f"at {self.n} SEEN", reward=1.0, terminated=self.n >= self.target)

    def final_state(self) -> int:
        return self.n

@app.policy("sampled")
def sampled(observation: str, rng: random.Random) -> str | dict:
    return {"add": {}} if rng.random() < 0.7 else {"nothing": {}}

@app.rubric(weight=1)
def whole(trajectory) -> float:
    return 1.0
"""


def write(
    folder: Path, name: str = "app.py", *, seen: str = "", target: str = "{self.target}", limit: str = "6",
    changed: str = "",
) -> None:  # fmt: skip
    text = APP.replace("SEEN", seen).replace("TARGET", target).replace("SIX", limit)
    (folder / name).write_text(text + changed)


def kept(path: Path) -> list[StoredRollout]:
    async def read() -> list[StoredRollout]:
        store = open_store(str(path))
        assert isinstance(store, SqlStore)
        try:
            rows = await store.recent(1000)
            return [found for row in rows if (found := await store.load(row.rollout_id)) is not None]
        finally:
            await store.close()

    return asyncio.run(read())


@pytest.fixture
def evaluated(run: Run, tmp_path: Path) -> Path:
    """An evaluation's directory, of a policy that draws."""
    write(tmp_path)
    run("eval", "app.py", "--policy", "sampled", "--seeds", "0-2,50", "--repeats", "2", "--out", "e",
               "--config", '{"high": 7}', status=0)  # fmt: skip
    return tmp_path / "e"


def test_an_evaluation_is_the_same_again_and_gets_no_row(run: Run, evaluated: Path, tmp_path: Path) -> None:
    before = kept(evaluated / "rollouts.db")
    assert len(before) == 8
    done = run("replay", "--from", "e", "--store", "replays.db", "--json", status=0)
    told = json.loads(done.stdout)
    assert (told["replayed"], told["differ"]) == (8, 0)
    assert {one["rollout_id"] for one in told["rollouts"]} == {row.rollout_id for row in before}
    assert all(one["same"] and one["digest"] == one["played_digest"] for one in told["rollouts"])
    assert {row.rollout_id for row in kept(evaluated / "rollouts.db")} == {row.rollout_id for row in before}
    replays = kept(tmp_path / "replays.db")
    assert sorted((row.seed, row.split, row.policy["sample"]) for row in replays) == sorted(
        (row.seed, row.split, row.policy["sample"]) for row in before
    )
    assert {row.policy["name"] for row in replays} == {"replay"}
    assert {tuple(row.config.items()) for row in replays} == {(("high", 7),)}


@pytest.mark.parametrize(
    ("change", "where", "what", "was", "now"),
    [
        ({"seen": "now"}, "", "observation", "at 1 ", "at 1 now"),  # at the step that showed this
        ({"seen": "{'x' if self.n > 1 else ''}"}, "", "observation", "at 2 ", "at 2 x"),
        ({"target": "somewhere"}, "the first observation", "observation", None, "to somewhere"),
        ({"changed": "\nCounting.final_state = lambda self: 0\n"}, "the end", "end state (private)", "one", "another"),
    ],
)
def test_a_difference_is_told_at_its_step(
    run: Run, evaluated: Path, tmp_path: Path, change: dict[str, str], where: str, what: str, was: Any, now: Any
) -> None:
    one = next(row for row in kept(evaluated / "rollouts.db") if row.length >= 3)
    write(tmp_path, "changed.py", **change)
    done = run("replay", one.rollout_id, "--from", "e", "--app", "changed.py", "--json", status=1)
    (told,) = json.loads(done.stdout)["rollouts"]
    difference = told["difference"]
    steps = [event["step"] for event in one.events if event["kind"] == "stepped"]
    where = where or next(f"step {step['index'] + 1}" for step in steps if step["observation"] == was)
    assert (difference["where"], difference["what"], difference["now"]) == (where, what, now)
    assert was is None or difference["was"] == was
    assert told["digest"] != told["played_digest"]
    shown = run("replay", "changed.py", one.rollout_id, "--from", "e", status=1)
    assert where in shown.stdout and "differs" in shown.stdout


def test_a_recorded_answer_that_is_not_used_is_a_difference(run: Run, evaluated: Path, tmp_path: Path) -> None:
    one = next(row for row in kept(evaluated / "rollouts.db") if row.length >= 3)
    write(tmp_path, "changed.py", limit="2")
    done = run("replay", one.rollout_id, "--from", "e", "--app", "changed.py", "--json", status=1)
    difference = json.loads(done.stdout)["rollouts"][0]["difference"]
    assert (difference["where"], difference["what"], difference["now"]) == ("step 3", "recorded answer", "not used")


def test_an_environment_that_breaks_now_is_a_difference(run: Run, evaluated: Path, tmp_path: Path) -> None:
    one = kept(evaluated / "rollouts.db")[0]
    write(tmp_path, "changed.py", seen="{1 // 0}")
    done = run("replay", one.rollout_id, "--from", "e", "--app", "changed.py", "--json", status=1)
    (told,) = json.loads(done.stdout)["rollouts"]
    assert told["same"] is False and "environment_raised" in told["problem"] and told["difference"] is not None


FLAKY = """
from taskapp_kit import Step, TaskApp, action

app = TaskApp("fragile", version="1")

@app.environment("fragile", splits={"train": range(9)}, max_steps=3)
class Fragile:
    def reset(self, seed: int) -> str:
        self.seed = seed
        return "go"

    @action
    def press(self) -> Step:
        '''Presses.'''
        return Step("pressed", terminated=bool(1 // BROKEN))

@app.rubric
def fine(trajectory) -> float:
    return 1 / min(2, abs(trajectory.seed - UNSCORED))
"""


@pytest.mark.server
def test_what_failed_fails_again_without_its_model_and_with_its_traceback(run: Run, tmp_path: Path) -> None:
    def write_app(name: str, broken: str, unscored: str) -> None:
        (tmp_path / name).write_text(FLAKY.replace("BROKEN", broken).replace("UNSCORED", unscored))

    write_app("app.py", "(self.seed - 1)", "2")  # seed 1 breaks in its action, seed 2 has no score
    with MockModel(lambda request: {"fault": "400"} if len(request.messages) > 3 else {"press": {}}) as model:
        done = run("eval", "app.py", "--model", "m", "--inference-url", model.url, "--seeds", "1-3", "--out", "e")
    assert done.exit_code == 1, done.output
    ids = {row.seed: row.rollout_id for row in kept(tmp_path / "e" / "rollouts.db")}
    shown = run("show", "e", ids[1])
    assert f"taskapp replay e {ids[1][:8]}" in shown.stdout, "the model is not asked again"
    for seed, place in ((1, "environment (environment_raised)"), (2, "scoring (criterion_failed)")):
        again = run("replay", "e", ids[seed][:8], status=0)
        assert f"failed at boundary {place}" in again.stdout, again.output
        assert "same" in again.stdout and "ZeroDivisionError" in again.stderr and "app.py" in again.stderr
        write_app("fixed.py", "1", "8")
        fixed = run("replay", "e", ids[seed][:8], "--app", "fixed.py", status=1)
        assert f"The stored rollout failed at boundary {place}" in fixed.stdout, fixed.output
        assert "Traceback" not in fixed.stderr
    write_app("fixed.py", "1", "1")
    other = run("replay", "e", ids[2][:8], "--app", "fixed.py", "--json", status=1)
    assert "Traceback" not in other.stderr
    asked = run("replay", "e", ids[3][:8], status=2)
    assert "failed at boundary policy" in asked.stderr
    assert run("replay", "e", "0000").exit_code == 2 and run("replay", "e", "0").exit_code == 2


def test_a_failed_scoring_after_a_limit_of_the_request_fails_again(run: Run, tmp_path: Path) -> None:
    text = FLAKY.replace("bool(1 // BROKEN)", "False").replace("return 1 / min", "return 1 / 0 * min")
    (tmp_path / "app.py").write_text(text.replace("UNSCORED", "8"))
    run("eval", "app.py", "--action", '{"press": {}}', "--policy", "constant", "--seeds", "1", "--ops", "2",
               "--out", "e", status=1)  # fmt: skip
    (row,) = kept(tmp_path / "e" / "rollouts.db")
    again = run("replay", "e", row.rollout_id, status=0)
    assert "failed at boundary scoring (criterion_failed)" in again.stdout, again.output


def test_what_differs_from_the_stored_episode_is_refused_by_its_flag(run: Run, evaluated: Path) -> None:
    one = next(row for row in kept(evaluated / "rollouts.db") if row.seed == 50 and row.policy["sample"] == 1)
    base = ("replay", "app.py", one.rollout_id, "--from", "e")
    same = ("--seed", "50", "--split", "test", "--config", '{"high": 7}', "--sample", "1", "--env", "counting")
    assert run(*base, *same).exit_code == 0
    for flags in (("--seed", "51"), ("--split", "train"), ("--config", '{"high": 8}'), ("--sample", "0")):
        done = run(*base, *flags, status=2)
        assert flags[0] in done.stderr, done.output
    assert run("replay", "app.py", "--from", "e", "--seed", "50").exit_code == 2  # goes with one rollout


@pytest.mark.parametrize("ops", [("--ops", "2"), ()])
def test_a_limit_of_the_request_ends_the_replay_where_it_ended_the_rollout(
    run: Run, tmp_path: Path, ops: tuple[str, ...]
) -> None:
    write(tmp_path)
    done = run("rollout", "app.py", "--policy", "noop", "--seed", "1", *ops, "--store", "r.db", "--json", status=0)
    told = json.loads(done.stdout)
    assert told["stop_reason"] == ("ops" if ops else "environment")
    run("replay", "app.py", told["rollout_id"], "--from", "r.db", status=0)


def test_reading_makes_no_store_and_writes_to_no_store_that_is_read(run: Run, evaluated: Path, tmp_path: Path) -> None:
    assert run("replay", "app.py", "--from", "nowhere.db").exit_code != 0
    assert not (tmp_path / "nowhere.db").exists()
    (tmp_path / "empty").mkdir()
    assert run("replay", "app.py", "--from", "empty").exit_code == 2
    assert run("replay", "--from", "e", "--store", "e/rollouts.db").exit_code == 2
    assert run("replay", "app.py", "0" * 32, "--from", "e").exit_code != 0
    assert run("replay", "--from", "e/rollouts.db").exit_code == 2  # a store names no app
    assert run("replay", "app.py", "--from", "e", "--app", "app.py").exit_code == 2
    assert len(kept(evaluated / "rollouts.db")) == 8


def test_an_evaluation_names_its_app_from_any_directory(
    run: Run, evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert json.loads((evaluated / "config.json").read_text())["app_reference"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run("replay", "--from", str(evaluated)).exit_code == 0


def test_a_directory_is_replayed_by_its_name(run: Run, evaluated: Path) -> None:
    one = kept(evaluated / "rollouts.db")[0]
    done = run("replay", "e", "--json", status=0)
    assert json.loads(done.stdout)["replayed"] == 8, done.output
    single = run("replay", "e", one.rollout_id, "--json")
    assert [row["rollout_id"] for row in json.loads(single.stdout)["rollouts"]] == [one.rollout_id]
    assert run("replay", "e", "--app", "app.py").exit_code == 0
    assert run("replay", "app.py").exit_code == 2, "an app names no rollouts"
    assert run("replay").exit_code == 2
