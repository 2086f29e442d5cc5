"""The tasks: disjoint, well told, and decided as they should be, here and in boxes."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from environments.python_sandbox.boxes import Boxes
from environments.python_sandbox.checkers import CHECKERS
from environments.python_sandbox.rows import CodeTask
from environments.python_sandbox.verdict import judge
from taskapp_kit.grading.code import RIGHT, read_answers, same
from taskapp_kit.grading.code_inside import called
from tests.environments.python_sandbox.episodes import SPLITS, TASKS, app_at, body, play, shares

EMPTY = ("", "pass\n")
IDS = [task.id for _, _, task in TASKS]


def cases(task: CodeTask) -> list[tuple[list[Any], Any]]:
    return [(case.args, case.expected) for case in task.hidden_tests]


def here(task: CodeTask, code: str) -> list[str]:
    """The verdict on code of ours, called in this process."""
    copies = json.loads(json.dumps([arguments for arguments, _ in cases(task)]))
    lines = b"".join(b"%d %s\n" % (n, called(code, task.entry, args)) for n, args in enumerate(copies))
    return judge(cases(task), read_answers(lines, cut=False, count=len(copies)), task.checker)


def test_there_are_enough_and_the_splits_share_none() -> None:
    assert len(TASKS) >= 40
    assert len(set(IDS)) == len({task.entry for _, _, task in TASKS}) == len(TASKS)
    assert len({task.statement for _, _, task in TASKS}) == len(TASKS)
    for rows in SPLITS.values():
        assert {task.difficulty for task in rows} == {"easy", "medium", "hard"}
    assert {task.checker for _, _, task in TASKS} - {None} == set(CHECKERS)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("task", [task for _, _, task in TASKS], ids=IDS)
def test_each_is_decided_as_it_should_be(task: CodeTask) -> None:
    assert re.match(rf"def {task.entry}\(.*\) -> .+", task.signature)
    assert set(here(task, task.reference)) == {RIGHT}
    for code in task.also_right:
        assert set(here(task, code)) == {RIGHT}
    for code in (*EMPTY, *task.wrong, f"def {task.entry}(*arguments):\n    return None\n"):
        assert set(here(task, code)) != {RIGHT}
    for code in EMPTY:
        assert set(here(task, code)) == {"absent"}


@pytest.mark.parametrize("task", [task for _, _, task in TASKS], ids=IDS)
def test_the_shown_examples_are_true_and_are_no_hidden_test(task: CodeTask) -> None:
    for example in task.examples:
        arguments = json.loads(json.dumps(example.args))
        given = json.loads(called(task.reference, task.entry, arguments))
        assert same(given, ["value", example.result])
        assert not any(same(case.args, example.args) for case in task.hidden_tests)
    assert len({json.dumps(case.args) for case in task.hidden_tests}) == len(task.hidden_tests)


@pytest.mark.process
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_every_reference_pays_one_and_nothing_pays_nothing(level: int, every: int) -> None:
    """Every fourth task, or all of them."""
    for rollout in play(app_at(level), *(body(seed=seed, split=split) for split, seed, _ in TASKS[::every])):
        assert rollout.scorecard.reward == 1.0
        assert shares(rollout) == 1.0
        assert rollout.trajectory.metrics["steps"] == 1


@pytest.mark.process
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_in_boxes_too_solutions_are_decided_as_here(level: int) -> None:
    """Some of them; all were tried when the tasks were written."""
    boxes = Boxes(level)

    def boxed(asked: tuple[CodeTask, str]) -> list[str]:
        task, code = asked
        answers = boxes.answers(code, task.entry, [arguments for arguments, _ in cases(task)])
        return judge(cases(task), answers, task.checker)

    every = [(task, code) for _, _, task in TASKS for code in (*EMPTY, *task.wrong, *task.also_right)]
    some = every[level % 3 :: 17]
    with ThreadPoolExecutor(4) as pool:
        for (task, code), found in zip(some, pool.map(boxed, some), strict=True):
            assert found == here(task, code), f"{task.id}: {code}"
