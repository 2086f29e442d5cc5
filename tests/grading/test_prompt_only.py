"""Answers by someone who had seen only the prompts: no wrong one is paid, and at most one right one is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.cli.author.init import find_template, instantiate
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.testing import Call, MockModel, Reply, play
from tests.grading.prompt_only import calls, functions, problems, texts
from tests.grading.prompt_only.answers import Answers
from tests.machine import skip_if_it_cannot_play

TABLES = {
    f"{module.__name__.rpartition('.')[2]}.{name}": table
    for module in (texts, calls, problems, functions)
    for name, table in vars(module).items()
    if isinstance(table, Answers)
}

REFUSED = {
    "texts.QUESTIONS": "Let me see.\nAnswer: 1000 g",  # the row has one spelling of its unit, "grams"
    "texts.PACKAGE_QUESTIONS": "1000 g",
    "texts.WORDS": "<think>ear comes first</think>ear",  # the example reads the raw reply; tiny models do not think
    "texts.LISTS": ("<think>first</think>ear", "<think>second</think>fence", "<think>last</think>barn"),
    "texts.CLICKS": "2",  # "6" may be a button's number or the end of its name; "[2]" is accepted
}
"""Right answers that earn less than full reward."""

WITHOUT_RIGHT = {"texts.KEYS", "texts.ROOMS"}
"""Tables without right answers, because a prompt such as "The lamp is big." does not determine the right key."""

SLOW = [pytest.mark.ci, pytest.mark.process]
MARKS = {"functions.PYTHON_SANDBOX": SLOW, "functions.FIX_THE_FUNCTION": SLOW, "texts.CLICKS": [pytest.mark.browser]}

EXCLUDED = {
    "environments/crafter": "a game without a written answer",
    "environments/web": "many actions in a browser, without a written answer",
    "examples/adder.py": "a game of several additions, without a written answer",
    "examples/gallery/balance.py": "a game without a written answer",
    "examples/gallery/mastermind.py": "a game: its first observation does not determine the answer",
    "examples/gallery/kind_refusal.py": "a judge's model decides what is right",
    "examples/rl/task_app.py": "the environment of examples/adder.py",
    "templates/customer-service": "a conversation and changes of a database, without a written answer",
    "templates/gymnasium": "a game without a written answer",
    "templates/multi-turn-game": "a game: its first observation does not determine the answer",
}


@pytest.mark.parametrize("name", [name for name in TABLES if name not in WITHOUT_RIGHT])
def test_a_table_has_at_least_20_right_answers(name: str) -> None:
    assert sum(map(len, TABLES[name].right.values())) >= 20


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_at_least_20_wrong_answers(name: str) -> None:
    assert sum(map(len, TABLES[name].wrong.values())) >= 20


def test_every_bundled_app_is_played_or_excluded_with_a_reason() -> None:
    bundled = {f"environments/{path.parent.name}" for path in Path("environments").glob("*/app.py")}
    bundled |= {f"templates/{path.name}" for path in Path("templates").iterdir() if path.is_dir()}
    examples = Path("examples").rglob("*.py")
    bundled |= {path.as_posix() for path in examples if " TaskApp(" in path.read_text(encoding="utf-8")}
    played = {app if "/" in app else f"environments/{app}" for app in (table.app for table in TABLES.values())}
    assert played | set(EXCLUDED) == bundled
    assert not played & set(EXCLUDED)
    assert Path("examples/capitals.py").read_text(encoding="utf-8") in Path("README.md").read_text(encoding="utf-8")


def test_the_page_states_the_counts() -> None:
    right, wrong = (
        sum(len(list(each(getattr(table, side)))) for table in TABLES.values()) for side in ("right", "wrong")
    )
    page = Path("docs/environments/graders.md").read_text(encoding="utf-8")
    assert f"| all | {right} | 48 | {len(REFUSED)} | {wrong} | 0 | 0 |" in page


@pytest.mark.server
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, [])) for name in TABLES])
def test_no_wrong_answer_is_paid_and_at_most_one_right_answer_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TABLES[name]
    skip_if_it_cannot_play(Path(table.app).stem)
    if name == "texts.CLICKS":
        pytest.importorskip("playwright", reason="needs taskapp-kit[web]")
    monkeypatch.syspath_prepend(tmp_path / "project")
    app = app_of(table.app, tmp_path / "project")
    paid = [reply for seed, reply in each(table.wrong) if reward(app, table, seed, reply) >= 0.5]
    refused = [reply for seed, reply in each(table.right) if reward(app, table, seed, reply) < 1.0]
    assert paid == []
    assert refused == [reply for reply in [REFUSED.get(name)] if reply is not None]


def app_of(reference: str, project: Path) -> TaskApp:
    """Return the app. A template becomes a project first."""
    if not reference.startswith("templates/"):
        return find_app(reference)
    template = reference.removeprefix("templates/")
    instantiate(find_template(template), project, f"asked_{template}")
    if template == "package":
        return find_app("asked_package.questions:app")
    return find_app(str(project / f"asked_{template}.py"))


def each(answers: Any) -> Iterator[tuple[int, Any]]:
    """Yield the seed and the reply of every answer."""
    for seed, replies in answers.items():
        for reply in replies:
            yield seed, reply


def reward(app: TaskApp, table: Answers, seed: int, reply: Any) -> float:
    """Return what a model earns that gives this reply, or these replies in turn."""
    turns = list(reply) if isinstance(reply, tuple) else [reply]
    left = iter([said(turn) for turn in turns])
    with MockModel(lambda request: next(left)) as model:
        rollout = play(
            app, seed=seed, environment=table.environment, config=table.config, policy=model, ops=len(turns)
        )  # fmt: skip
    assert rollout.reward is not None
    return rollout.reward


def said(turn: Any) -> str | Reply:
    """Return the reply of a mock model: a text, or a call whose arguments may be numbers of any size."""
    if isinstance(turn, str):
        return turn
    return Reply(calls=[Call(tool, json.dumps(arguments)) for tool, arguments in turn.items()])
