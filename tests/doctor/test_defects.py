"""Every planted defect is real: the example reply earns what the index states, and nothing undeserved in the sound twin."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from taskapp_kit import RolloutFailed
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.sandbox import capabilities
from taskapp_kit.testing import Rollout, play
from tests.doctor.defects.index import CODE_AND_SQL, DEFECTS, DIRECTORY, Action, Defect

SEEDS = 6
RUN_CODE = {defect.file for defect in CODE_AND_SQL if "queries" not in defect.file}
EVERY = [pytest.param(defect, id=defect.file) for defect in DEFECTS]
TWINS = [pytest.param(defect, id=defect.file) for defect in DEFECTS if defect.twin]


@pytest.fixture(autouse=True)
def _sandbox(request: pytest.FixtureRequest) -> None:
    call = getattr(request.node, "callspec", None)
    if call and call.params["defect"].file in RUN_CODE and not capabilities().safe:
        pytest.skip("This machine cannot confine code.")


def played(app: TaskApp, defect: Defect, reply: str | Sequence[Action], seed: int = 0) -> Rollout:
    if isinstance(reply, str):
        return play(app, seed=seed, environment=defect.environment, action=reply, judges=defect.judge)
    ops = [{"type": "env", "tool": tool, "args": args} for action in reply for tool, args in action.items()]
    return play(app, seed=seed, environment=defect.environment, ops=ops, judges=defect.judge)


def good_play(app: TaskApp, defect: Defect, seed: int) -> Rollout:
    """Play the policy `gold`, or the answer in the row's private field."""
    if defect.field is None:
        return play(app, seed=seed, environment=defect.environment, policy="gold", judges=defect.judge)
    tasks = app.freeze().environments[defect.environment].tasks
    assert tasks is not None
    return played(app, defect, str(getattr(tasks.rows("train")[seed], defect.field)), seed)


def shown(rollout: Rollout, leak: str | None) -> str:
    if leak == "prompt":
        return str(rollout.trajectory.initial)
    return str([step.info if leak == "info" else step.observation for step in rollout.trajectory.steps[:1]])


def lines_of(file: Path, function: str) -> range:
    """Return the numbers of a function's lines, with its decorators."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return range(first, (node.end_lineno or 0) + 1)
    raise AssertionError(f"{file} has no function {function}")


@pytest.mark.parametrize("defect", EVERY)
def test_the_reply_earns_what_the_index_states(defect: Defect) -> None:
    app = find_app(str(defect.path))
    if defect.earns is None:
        with pytest.raises(RolloutFailed) as failed:
            played(app, defect, defect.reply)
        assert failed.value.boundary == "scoring"
        return
    rollout = played(app, defect, defect.reply)
    assert rollout.reward == pytest.approx(defect.earns, abs=1e-5)
    if defect.leak:
        assert defect.secret in shown(rollout, defect.leak)


@pytest.mark.parametrize("defect", EVERY)
def test_good_play_earns_full_reward(defect: Defect) -> None:
    app = find_app(str(defect.path))
    if defect.gold is None:
        return
    assert good_play(app, defect, 0).reward == pytest.approx(defect.gold, abs=1e-5)
    if defect.gold == 1.0:
        assert [good_play(app, defect, seed).reward for seed in range(1, SEEDS)] == [1.0] * (SEEDS - 1)


@pytest.mark.parametrize("defect", TWINS)
def test_the_sound_twin_does_not_pay_for_the_same_reply(defect: Defect) -> None:
    app = find_app(str(defect.twin_path))
    rollout = played(app, defect, defect.reply)
    assert rollout.reward == pytest.approx(defect.twin_earns, abs=1e-5)
    if defect.leak:
        assert defect.secret not in shown(rollout, defect.leak)
    if defect.gold is not None:
        for seed in range(SEEDS):
            assert (good_play(app, defect, seed).reward or 0.0) > 0.6


@pytest.mark.parametrize("defect", EVERY)
def test_the_line_at_fault_is_in_the_criterion(defect: Defect) -> None:
    assert sum(defect.line in line for line in defect.path.read_text("utf-8").splitlines()) == 1
    if defect.criterion != "app.tasks":
        assert defect.line_number in lines_of(defect.path, defect.criterion)


def test_the_index_lists_every_app() -> None:
    assert sorted(defect.file for defect in DEFECTS) == sorted(
        path.stem for path in DIRECTORY.glob("*.py") if path.stem != "index"
    )
    assert sorted(defect.file for defect in DEFECTS if defect.twin) == sorted(
        path.stem for path in (DIRECTORY / "sound").glob("*.py")
    )


def test_a_reply_is_worth_more_than_it_deserves() -> None:
    """At least a third of good play, or nothing for a right answer."""
    for defect in DEFECTS:
        if defect.verdict == "right refused":
            assert defect.earns == 0.0
        elif defect.gold is not None and defect.earns is not None:
            assert defect.earns >= (defect.gold / 3 if defect.gold > 0 else defect.gold), defect.file
