"""The arithmetic of scores: undefined stays undefined, a failure is never a number."""

from __future__ import annotations

import logging
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from taskapp_kit import Blend, DeclarationError, RolloutFailed, Step, TaskApp, Trajectory, action
from taskapp_kit.grading import Grade
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.scorecard import CriterionScore, Scorecard, normalised
from taskapp_kit.rollout.score.scoring import ScoringFailed, aggregates, blended, weighted
from tests.rollouts import app_from, play


def item(
    score: float | None, weight: float = 1.0, *, required: bool = False, scale: tuple[float, float] = (0, 1)
) -> CriterionScore:
    return CriterionScore("c", "outcome", score, weight, required, normalised=normalised(score, scale))


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([], None),
        ([item(0.5)], 0.5),
        ([item(1.0, 3), item(0.0, 1)], 0.75),
        ([item(1.0, 3), item(None, 100)], 1.0),
        ([item(None)], None),
        ([item(0.5, 0)], None),
        ([item(0.5, 0), item(1.0, 2)], 1.0),
        ([item(1.0), item(0.0, required=True)], 0.0),
        ([item(1.0), item(0.1, required=True)], 0.55),
        ([item(1.0), item(None, required=True)], 1.0),
        ([item(10.0, 0.1, scale=(0, 10)), item(0.0)], 0.1 / 1.1),
        ([item(0.0, scale=(-5, 5)), item(1.0, 3)], 0.875),
        ([item(1.0), item(-5.0, required=True, scale=(-5, 5))], 0.0),
        ([item(1.0), item(0.0, required=True, scale=(-5, 5))], 0.75),
    ],
)
def test_the_weighted_mean(scores: list[CriterionScore], expected: float | None) -> None:
    assert weighted(scores) == expected


def test_sum_and_custom() -> None:
    scores = [item(0.5, 3), item(0.25, 1), item(None, 1), item(9, 0)]
    assert weighted(scores, "sum") == 0.75
    assert weighted(scores, "custom") is None
    assert weighted([*scores, item(0.0, required=True)], "sum") == 0.0
    assert weighted([item(7, scale=(0, 10)), item(0.5)], "sum") == 1.2


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False), st.data())
def test_a_normalised_score_lies_between_0_and_1(one: float, other: float, data: st.DataObject) -> None:
    assume(one != other)
    low, high = sorted((one, other))
    assert (normalised(low, (low, high)), normalised(high, (low, high))) == (0.0, 1.0)
    share = normalised(data.draw(st.floats(low, high)), (low, high))
    assert share is not None
    assert 0 <= share <= 1


def test_what_has_no_place_in_a_scale() -> None:
    assert normalised(None, (0, 1)) is normalised(1.5, (0, 1)) is normalised(-1, (0, 1)) is None
    assert normalised(0.1, (0, 1)) == 0.1


@given(st.lists(st.tuples(st.none() | st.floats(0, 1), st.floats(0, 1e3)), max_size=6))
def test_the_mean_lies_between_the_scores_that_count(pairs: list[tuple[float | None, float]]) -> None:
    counted = [score for score, weight in pairs if score is not None and weight > 0]
    got = weighted([item(score, weight) for score, weight in pairs])
    assert (got is None) == (not counted)
    if got is not None:
        assert min(counted) - 1e-9 <= got <= max(counted) + 1e-9


@pytest.mark.parametrize(
    ("blend", "events", "outcome", "expected"),
    [
        (Blend(env=1), None, None, 4.0),
        (Blend(outcome=1), None, 0.5, 0.5),
        (Blend(outcome=1), None, None, None),
        (Blend(env=1, outcome=2), None, 0.5, 5.0),
        (Blend(env=1, event=1, outcome=1), None, 0.5, None),
        (Blend(event=0.5), 3.0, None, 1.5),
        (Blend(env=0.5, event=1, outcome=1), 1.0, 1.0, 4.0),
        (Blend(event=1), 0.0, None, 0.0),
    ],
)
def test_the_blend_is_undefined_when_a_part_of_it_is(
    blend: Blend, events: float | None, outcome: float | None, expected: float | None
) -> None:
    assert blended(blend, 4.0, events, outcome) == expected


def test_the_formula_in_words() -> None:
    assert Blend(env=1.0, outcome=0.5).words() == "reward = 1 · return + 0.5 · outcome_score"
    assert Blend(event=2).words() == "reward = 2 · events_score"


class Steps:
    """Rewards 1, 2, 3."""

    def reset(self, seed: int) -> str:
        self.n = 0
        return ""

    @action(noop={})
    def go(self) -> Step:
        """Go."""
        self.n += 1
        return Step(str(self.n), float(self.n), self.n == 3)


def app_with(**options: Any) -> TaskApp:
    app = TaskApp("a", **options)
    app.environment("e")(Steps)
    return app


def scored(app: TaskApp, **given: Any) -> Rollout:
    return play(app, "noop", **given)


def test_without_a_rubric_the_reward_is_the_return() -> None:
    card = scored(app_with()).scorecard
    assert (card.reward, card.outcome_score, card.events_score, card.formula) == (
        6.0,
        None,
        None,
        "reward = 1 · return",
    )


def test_with_an_outcome_rubric_it_is_the_outcome_and_a_metric_does_not_count() -> None:
    app = app_with()

    @app.rubric(weight=0)
    def measured(trajectory: Trajectory) -> float:
        return 17.0

    assert scored(app).scorecard.reward == 6.0
    app = app_with()
    app.rubric(weight=0)(measured)

    @app.rubric(weight=2)
    def half(trajectory: Trajectory) -> float:
        return 0.5

    card = scored(app).scorecard
    assert (card.reward, card.outcome_score) == (0.5, 0.5)
    assert {c.name: c.score for c in card.criteria} == {"measured": 17.0, "half": 0.5}


def test_the_request_may_bring_its_own_blend() -> None:
    app = app_with(reward=Blend(env=2))
    assert scored(app).scorecard.reward == 12.0
    card = scored(app, reward={"env": 0.5}).scorecard
    assert (card.reward, card.formula) == (3.0, "reward = 0.5 · return")
    assert scored(app, reward={"outcome": 1}).scorecard.reward is None


def test_events_accumulate_over_steps_and_criteria() -> None:
    app = app_with(reward=Blend(event=1))

    @app.rubric(of="events", weight=2)
    def odd(step: Any, trajectory: Trajectory) -> float | None:
        assert trajectory.length == 3
        return step.reward if step.index != 1 else None

    @app.rubric(of="events", weight=0.5)
    def each(step: Any) -> int:
        return -1

    @app.rubric(of="events", weight=0)
    def metric(step: Any) -> int:
        return 100

    card = scored(app).scorecard
    assert card.events_score == 2 * (1 + 3) + 0.5 * -3
    assert card.reward == 6.5
    assert {c.name: c.score for c in card.criteria} == {"odd": 4.0, "each": -3.0, "metric": 300.0}


def test_events_that_never_apply_are_undefined_and_an_episode_without_steps_is_zero() -> None:
    app = app_with(reward=Blend(event=1))

    @app.rubric(of="events")
    def never(step: Any) -> None:
        return None

    assert scored(app).scorecard.reward is None
    assert scored(app, ops=["env"]).scorecard.events_score == 0.0


def test_none_is_not_applicable() -> None:
    app = app_with()

    @app.rubric
    def maybe(trajectory: Trajectory) -> None:
        return None

    card = scored(app).scorecard
    assert (card.reward, card.outcome_score) == (None, None)
    assert (card.criteria[0].score, card.criteria[0].reason, card.criteria[0].error) == (None, "not_applicable", None)


BAD: dict[str, tuple[Any, str]] = {
    "raises": (lambda: 1 / 0, "raised ZeroDivisionError"),
    "exits": (lambda: sys.exit(2), "raised SystemExit"),
    "stops": (lambda: next(iter(())), "raised StopIteration"),
    "nan": (lambda: math.nan, "returned nan, expected a finite number or None"),
    "inf": (lambda: math.inf, "returned inf"),
    "numpy nan": (lambda: np.float32("nan"), "returned nan"),
    "words": (lambda: "good", "returned a str, expected a number or None"),
    "list": (lambda: [1], "returned a list, expected a number"),
    "huge": (lambda: 10**400, "returned a int, expected a number"),
    "outside the scale": (lambda: 1.5, "returned 1.5, outside its scale 0 to 1"),
    "below the scale": (lambda: -0.1, "returned -0.1, outside its scale 0 to 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_criterion_that_weighs_something_and_fails_fails_the_rollout(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    value, words = BAD[name]
    app = app_with()

    @app.rubric(weight=0.1)
    def broken(trajectory: Trajectory) -> Any:
        return value()

    with caplog.at_level(logging.ERROR), pytest.raises(RolloutFailed) as caught:
        scored(app)
    failure = caught.value.failure
    assert (failure.boundary, failure.code) == ("scoring", "criterion_failed")
    assert words in failure.message
    assert "criterion 'broken' (test_scoring.py:" in failure.message, "the file and line, and no folder"
    assert "has no reward" in failure.message
    assert failure.error_id in caplog.text


@pytest.mark.parametrize("name", [name for name in BAD if "scale" not in name])
def test_one_that_weighs_nothing_is_recorded_beside_a_null(name: str, caplog: pytest.LogCaptureFixture) -> None:
    value, words = BAD[name]
    app = app_with()

    @app.rubric(weight=0)
    def broken(trajectory: Trajectory) -> Any:
        return value()

    @app.rubric
    def fine(trajectory: Trajectory) -> float:
        return 0.25

    with caplog.at_level(logging.WARNING):
        card = scored(app).scorecard
    assert card.reward == 0.25
    assert card.criteria[0].score is None
    assert words in str(card.criteria[0].error)
    assert "broken" in caplog.text


def test_a_scale_of_ones_own_and_none_for_metrics() -> None:
    app = app_with()

    @app.rubric(scale=(-5, 5))
    def signed(trajectory: Trajectory) -> float:
        return -5

    @app.rubric(weight=0)
    def free(trajectory: Trajectory) -> float:
        return 1e9

    card = scored(app).scorecard
    assert (card.reward, card.outcome_score) == (0.0, 0.0)
    assert [(item.score, item.normalised) for item in card.criteria] == [(-5.0, 0.0), (1e9, None)]
    assert Scorecard.from_json(card.to_json()).criteria == card.criteria


def test_a_scorecard_of_before_is_read_as_it_was_stored() -> None:
    card = Scorecard([item(7.0)], 7.0, None, 7.0).to_json()
    del card["criteria"][0]["normalised"]  # type: ignore[index, union-attr, call-overload]
    old = Scorecard.from_json(card)
    assert (old.outcome_score, old.criteria[0].score, old.criteria[0].normalised) == (7.0, 7.0, None)


def test_the_scale_and_the_arithmetic_are_in_the_spec_hash() -> None:
    hashes = set()
    for scale in ((0, 1), (0, 10)):
        app = app_with()
        app.rubric(scale=scale)(lambda trajectory: 0)
        hashes.add(app.freeze().hash)
    assert len(hashes) == 2


def test_the_scale_of_events_is_refused() -> None:
    app = app_with()
    app.rubric(of="events", scale=(0, 10))(lambda step: 0)
    with pytest.raises(DeclarationError, match="scale"):
        app.freeze()


def test_weights_at_the_ends_of_the_range() -> None:
    assert weighted([item(0.5, 5e-324)]) == 0.5
    assert weighted([item(1.0, 1.7e308), item(0.5, 1.7e308)]) == 0.75


def test_events_beyond_all_numbers_are_no_score() -> None:
    app = app_with()

    @app.rubric(of="events", weight=1e308)
    def huge(step: Any) -> float:
        return 10.0

    with pytest.raises(RolloutFailed, match=r"events_score .*\binf\b") as caught:
        scored(app)
    assert caught.value.boundary == "scoring"


def test_a_reward_beyond_all_numbers_is_no_reward() -> None:
    app = app_with(reward=Blend(env=1e308))
    with pytest.raises(RolloutFailed, match=r"1e\+308 .*\binf\b"):
        scored(app)


def test_numpy_bools_and_async_criteria() -> None:
    app = app_with()

    @app.rubric
    def numpys(trajectory: Trajectory) -> Any:
        return np.float32(0.5)

    @app.rubric
    def boolean(trajectory: Trajectory) -> bool:
        return trajectory.length == 3

    @app.rubric
    async def later(trajectory: Trajectory) -> float:
        import asyncio

        await asyncio.sleep(0)
        return 0.0

    assert scored(app).scorecard.reward == 0.5


def test_a_criterion_reads_what_it_names(tmp_path: Path) -> None:
    app = app_from(
        tmp_path,
        """
    app = TaskApp("a")
    app.tasks("t", prompt="{q}", train=[{"q": "x", "a": "y"}])
    @app.rubric
    def r(answer_text, task, config, trajectory): return (answer_text, task["a"], config, trajectory.length) == ("y", "y", {}, 1)
    """,
    )
    assert play(app, "constant", action="y").scorecard.reward == 1.0


def test_criteria_are_for_their_environments() -> None:
    app = app_with()
    app.environment("f")(Steps)

    @app.rubric(environment="f")
    def only(trajectory: Trajectory) -> float:
        return 0.5

    @app.rubric(environment=["e", "f"], weight=0)
    def both(trajectory: Trajectory) -> float:
        return 0.5

    one, two = scored(app).scorecard, scored(app, env_name="f").scorecard
    assert [c.name for c in one.criteria] == ["both"]
    assert [c.name for c in two.criteria] == ["only", "both"]
    assert (one.reward, two.reward) == (6.0, 0.5)


def test_metrics_are_numbers_outside_every_score(caplog: pytest.LogCaptureFixture) -> None:
    app = app_with()

    @app.metric
    def one(trajectory: Trajectory) -> float:
        return 2

    @app.metric
    def several(trajectory: Trajectory) -> dict[str, Any]:
        return {"a": True, "b": None}

    @app.metric
    def broken(trajectory: Trajectory) -> float:
        raise KeyError("x")

    with caplog.at_level(logging.WARNING):
        card = scored(app).scorecard
    assert card.metrics == {"one": 2.0, "a": 1.0}
    assert card.reward == 6.0
    assert [(c.name, c.of, c.error) for c in card.criteria] == [("broken", "metric", "raised KeyError")]


def test_an_unasked_judge_is_null_and_says_so() -> None:
    app = app_with()

    @app.judge(weight=0)
    def style(trajectory: Trajectory) -> str:
        """Is it elegant?"""
        return trajectory.transcript()

    card = scored(app).scorecard
    assert [(c.name, c.of, c.score, c.reason) for c in card.criteria] == [("style", "judge", None, "not_configured")]
    assert card.reward == 6.0


def summary(**given: Any) -> RolloutRow:
    values = {
        "environment": "e",
        "split": "s",
        "seed": 0,
        "rollout_id": "r",
        "status": "terminated",
        "length": 1,
        "total_reward": 1.0,
        "reward": 1.0,
        "outcome_score": None,
        "events_score": None,
        "metrics": {},
    }
    return RolloutRow(**{**values, **given})


def test_aggregates() -> None:
    app = app_with()

    @app.aggregate
    def mean(rollouts: Any) -> float | None:
        return sum(item.total_reward for item in rollouts) / len(rollouts) if rollouts else None

    @app.aggregate(name="parts")
    def split(rollouts: Any) -> dict[str, float]:
        return {"n": len(rollouts)}

    spec = app.freeze()
    assert aggregates(spec, [summary(), summary(total_reward=3.0)]) == {"mean": 2.0, "parts": {"n": 2.0}}
    assert aggregates(spec, []) == {"mean": None, "parts": {"n": 0.0}}


def test_an_aggregate_that_breaks_names_itself() -> None:
    app = app_with()

    @app.aggregate
    def broken(rollouts: Any) -> float:
        return math.nan

    with pytest.raises(ScoringFailed, match=r"'broken' \(test_scoring\.py:\d+\) .*\bnan\b"):
        aggregates(app.freeze(), [summary()])


def test_the_summary_of_a_rollout() -> None:
    told = scored(app_with()).row()
    assert (told.environment, told.length, told.total_reward, told.reward, told.status) == (
        "e",
        3,
        6.0,
        6.0,
        "terminated",
    )
    assert told.metrics["steps"] == 3.0


GRADED = """
from pydantic import BaseModel
from taskapp_kit import Private
from taskapp_kit.grading import Grade

class Row(BaseModel):
    word: Private[str]

app = TaskApp("graded", version="1.0.0")
app.tasks("graded", row=Row, prompt="Say it.", train=[Row(word="canary-4711")])

@app.rubric(weight=3)
def some(task: Row) -> Grade:
    '''Some of it.'''
    return Grade(0.25, f"a part of {task.word}")

@app.rubric
def none() -> Grade:
    '''Nothing of it.'''
    return Grade(0.0, "nothing")
"""


@pytest.mark.parametrize("reason", ["half a pair: \ud800", "\x1b[31mred\x07", "x" * 3_000_000, None, 5])
def test_any_reason_of_a_grade_can_be_sent_and_stored(reason: Any) -> None:
    app = app_with()

    @app.rubric
    def half(trajectory: Trajectory) -> Grade:
        return Grade(0.5, reason)

    [item] = scored(app).scorecard.criteria
    assert item.score == 0.5
    assert item.reason is not None and len(item.reason.encode()) < 2_100 and "\x1b" not in item.reason


@pytest.mark.parametrize("score", [1, True, np.float32(1.0)])
def test_the_score_of_a_grade_is_any_number(score: Any) -> None:
    app = app_with()

    @app.rubric
    def right(trajectory: Trajectory) -> Grade:
        return Grade(score, "right")

    assert scored(app).scorecard.reward == 1.0


def test_a_grade_counts_as_its_score_and_its_reason_hides_private_values(tmp_path: Path) -> None:
    card = play(app_from(tmp_path, GRADED), "constant", seed=0, action="canary-4711").scorecard
    assert [(item.name, item.score, item.reason) for item in card.criteria] == [
        ("some", 0.25, "a part of [private: word]"),
        ("none", 0.0, "nothing"),
    ]
    assert card.reward == pytest.approx(0.1875)
