"""The decorators: bare and called, changing nothing; both files of the design run as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import DeclarationError, Step, TaskApp, Trajectory, action
from tests.rollouts import app_from, play

CAPITALS = '''"""Capitals: a single-turn question set."""
from pydantic import BaseModel
from taskapp_kit import Private, TaskApp

app = TaskApp("capitals", version="1.0.0")

class Row(BaseModel):
    question: str
    answer: Private[str]

app.tasks("capitals", row=Row, prompt="{question} Answer with one word.", train=[    # or a path: train="train.jsonl"
    Row(question="What is the capital of France?", answer="Paris"),
    Row(question="What is the capital of Japan?", answer="Tokyo"),
])

@app.rubric
def correct(answer_text: str, task: Row) -> float:
    """The capital is named."""
    return float(task.answer.lower() in answer_text.lower())
'''

ADDER = '''"""Reach a target by adding 1, 2 or 3."""
import random
from typing import Literal

from taskapp_kit import Step, TaskApp, Trajectory, action

app = TaskApp("adder", version="1.0.0", description="Reach a target by adding small numbers.")


@app.environment("adder", splits={"train": range(0, 100), "test": range(100, 120)}, max_steps=20)
class Adder:
    """Reach the target exactly; overshooting ends the episode."""

    def __init__(self, low: int = 5, high: int = 15):     # env.config: validated, in /task_info as JSON Schema
        self.low, self.high = low, high

    def reset(self, seed: int) -> str:                     # the first observation
        self.target, self.total = random.Random(seed).randint(self.low, self.high), 0
        return f"target {self.target}, total 0"

    @action
    def add(self, amount: Literal[1, 2, 3]) -> Step:
        """Add `amount` to the total."""                   # the tool description that the model reads
        self.total += amount
        return Step(
            observation=f"target {self.target}, total {self.total}",
            reward=1.0 if self.total == self.target else 0.0,
            terminated=self.total >= self.target,
        )


@app.rubric(weight=3)
def reached(trajectory: Trajectory) -> float:
    """The target was hit exactly."""
    return 1.0 if trajectory.total_reward == 1.0 else 0.0


@app.rubric(weight=1)
def brief(trajectory: Trajectory) -> float:
    """The target was hit in few steps."""
    return 1.0 - trajectory.length / 20 if trajectory.total_reward == 1.0 else 0.0


@app.policy("gold")
def threes(observation: str, rng: random.Random) -> dict:
    """Adds 3 while it fits, then the rest."""
    target, total = (int(word.split()[1]) for word in observation.split(", "))
    return {"add": {"amount": min(3, target - total)}}
'''


def test_first_file_of_the_design_runs_unchanged(tmp_path: Path) -> None:
    app = app_from(tmp_path, CAPITALS, header="")
    right = play(app, "constant", action="Paris", seed=0)
    assert (right.scorecard.reward, right.trajectory.status) == (1.0, "terminated")
    assert right.trajectory.initial == "What is the capital of France? Answer with one word."
    assert play(app, "constant", action="Paris", seed=1).scorecard.reward == 0.0
    assert app.freeze().description == "Capitals: a single-turn question set."


def test_second_file_of_the_design_runs_unchanged(tmp_path: Path) -> None:
    app = app_from(tmp_path, ADDER, header="")
    gold = play(app, "gold", seed=3)
    assert gold.trajectory.total_reward == 1.0
    assert gold.scorecard.outcome_score == pytest.approx((3 + 1 - gold.trajectory.length / 20) / 4)
    assert gold.scorecard.reward == gold.scorecard.outcome_score
    assert gold.scorecard.formula == "reward = 1 · outcome_score"
    assert play(app, "random", seed=119).trajectory.split == "test"


def test_decorators_return_what_they_were_given() -> None:
    app = TaskApp("a")

    def given(trajectory: Trajectory) -> float:
        return 1.0

    bare: list[Any] = [app.rubric, app.policy, app.metric, app.aggregate, app.rollout, app.environment("x")]
    called = [app.rubric(name="r2", weight=0), app.judge(name="j", weight=0), app.policy("named")]
    for decorator in (*bare, *called, app.metric(name="m2"), app.aggregate(name="a2")):
        assert decorator(given) is given


def test_every_decorator_works_bare_and_called(tmp_path: Path) -> None:
    spec = app_from(
        tmp_path,
        """
    app = TaskApp("a")
    @app.environment
    class WordGame:
        '''W.'''
        def reset(self): return ""
        @action
        def go(self) -> Step:
            '''Go.'''
            return Step("", 1.0, True)
    @app.environment(max_steps=3)
    class Other(WordGame):
        '''O.'''
    @app.rubric
    def r1(trajectory): return 1
    @app.rubric()
    def r2(trajectory): return 1
    @app.judge(weight=0)
    def j(trajectory): '''Well?'''
    @app.policy
    def p1(observation): return {"go": {}}
    @app.policy()
    def p2(observation): return {"go": {}}
    @app.metric
    def m1(trajectory): return 2
    @app.metric()
    def m2(trajectory): return {"x": 1, "y": None}
    @app.aggregate
    def g1(rollouts): return 1
    @app.aggregate()
    def g2(rollouts): return 1
    """,
    ).freeze()
    assert list(spec.environments) == ["word_game", "other"]
    assert spec.default_environment.max_steps is None
    declared = (*spec.criteria, *spec.policies, *spec.metrics, *spec.aggregates)
    assert [item.name for item in declared] == ["r1", "r2", "p1", "p2", "m1", "m2", "g1", "g2"]


def test_misplaced_name_raises_immediately() -> None:
    app = TaskApp("a")
    with pytest.raises(DeclarationError, match=r"@app.rubric\(name='reached'\)") as caught:
        app.rubric("reached")  # type: ignore[call-overload]
    assert "test_app.py:" in caught.value.problems[0].place


def test_one_class_can_serve_several_apps_and_an_app_fills_no_global() -> None:
    one, two = TaskApp("one"), TaskApp("two")

    class Shared:
        """Shared."""

        def reset(self, seed: int) -> str:
            return ""

        @action
        def go(self) -> Step:
            """Go."""
            return Step("", 1.0, True)

    one.environment("a", max_steps=1)(Shared)
    two.environment("b", max_steps=2)(Shared)
    assert list(one.freeze().environments) == ["a"]
    assert list(two.freeze().environments) == ["b"]
    assert {key for key in vars(Shared) if "taskapp" in key} == set()


def test_paths_are_relative_to_the_authors_file(tmp_path: Path) -> None:
    app = app_from(tmp_path, 'app = TaskApp("a")\nrows = app.path("data/rows.jsonl")\n')
    assert app.file == tmp_path / "app.py"
    assert app.path("x.txt") == tmp_path / "x.txt"
    assert [declared.name for declared in app.declared if declared.kind == "path"] == ["data/rows.jsonl", "x.txt"]


def test_the_places_are_of_the_authors_lines(tmp_path: Path) -> None:
    app = app_from(
        tmp_path,
        "app = TaskApp('a')\n\napp.tasks('t', prompt='x', train=[{}])\n",
        header="from taskapp_kit import TaskApp\n",
    )
    assert app.place == f"{tmp_path}/app.py:2"
    assert app.declared[0].place == f"{tmp_path}/app.py:4"
    assert repr(app) == "TaskApp('a', version='1.0.0')"
