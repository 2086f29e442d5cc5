"""The arithmetic of scores: undefined stays undefined, a failure is never a number."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from taskapp_kit import Blend, DeclarationError, RolloutFailed, Step, TaskApp, Trajectory, action
from taskapp_kit.grading import Grade
from taskapp_kit.records.protocols import RolloutRow
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


def graded(*rubrics: tuple[Callable[..., Any], dict[str, Any]], **options: Any) -> TaskApp:
    """An app with these rubrics and their options."""
    app = app_with(**options)
    for number, (function, of_rubric) in enumerate(rubrics):
        app.rubric(**{"name": f"r{number}", **of_rubric})(function)
    return app


def card_of(app: TaskApp, **given: Any) -> Scorecard:
    return play(app, "noop", **given).scorecard


def constant(value: Any) -> Callable[[Trajectory], Any]:
    return lambda trajectory: value


def of_steps(value: Any) -> Callable[[Any], Any]:
    return lambda step: value


def odd(step: Any, trajectory: Trajectory) -> float | None:
    assert trajectory.length == 3
    return step.reward if step.index != 1 else None


async def later(trajectory: Trajectory) -> float:
    await asyncio.sleep(0)
    return 0.0


EVENTS = {"of": "events"}
REWARDS: list[tuple[list[tuple[Callable[..., Any], dict[str, Any]]], Blend | None, tuple[Any, Any, Any], list[Any]]] = [
    # rubrics, blend, (reward, outcome score, events score), scores
    ([], None, (6.0, None, None), []),
    ([(constant(17.0), {"weight": 0})], None, (6.0, None, None), [17.0]),
    ([(constant(17.0), {"weight": 0}), (constant(0.5), {"weight": 2})], None, (0.5, 0.5, None), [17.0, 0.5]),
    ([], Blend(env=2), (12.0, None, None), []),
    ([(odd, {**EVENTS, "weight": 2}), (of_steps(-1), {**EVENTS, "weight": 0.5}), (of_steps(100), {**EVENTS, "weight": 0})],
     Blend(event=1), (6.5, None, 6.5), [4.0, -3.0, 300.0]),
    ([(of_steps(None), EVENTS)], Blend(event=1), (None, None, None), [None]),
    ([(constant(None), {})], None, (None, None, None), [None]),
    ([(constant(np.float32(0.5)), {}), (lambda trajectory: trajectory.length == 3, {}), (later, {})], None,
     (0.5, 0.5, None), [0.5, 1.0, 0.0]),
]  # fmt: skip


@pytest.mark.parametrize(("rubrics", "blend", "figures", "scores"), REWARDS)
def test_what_criteria_give_becomes_a_reward(rubrics: Any, blend: Blend | None, figures: Any, scores: Any) -> None:
    card = card_of(graded(*rubrics, reward=blend))
    assert (card.reward, card.outcome_score, card.events_score) == figures
    assert [item.score for item in card.criteria] == scores
    assert [item.reason for item in card.criteria if item.score is None] == ["not_applicable"] * scores.count(None)


def test_the_request_may_bring_its_own_blend() -> None:
    app = app_with(reward=Blend(env=2))
    card = card_of(app, reward={"env": 0.5})
    assert (card.reward, card.formula) == (3.0, "reward = 0.5 · return")
    assert card_of(app, reward={"outcome": 1}).reward is None


def test_an_episode_without_steps_has_no_events_and_a_score_of_zero() -> None:
    app = graded((of_steps(None), EVENTS), reward=Blend(event=1))
    assert card_of(app, ops=["env"]).events_score == 0.0


BAD: dict[str, Callable[[Trajectory], Any]] = {
    "raises": lambda trajectory: 1 / 0,
    "exits": lambda trajectory: sys.exit(2),
    "stops": lambda trajectory: next(iter(())),
    "nan": constant(math.nan),
    "inf": constant(math.inf),
    "numpy nan": constant(np.float32("nan")),
    "words": constant("good"),
    "list": constant([1]),
    "huge": constant(10**400),
    "outside the scale": constant(1.5),
    "below the scale": constant(-0.1),
}


@pytest.mark.parametrize("name", BAD)
def test_a_criterion_that_weighs_something_and_fails_fails_the_rollout(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(RolloutFailed) as caught:
        card_of(graded((BAD[name], {"weight": 0.1, "name": "broken"})))
    failure = caught.value.failure
    assert (failure.boundary, failure.code) == ("scoring", "criterion_failed")
    assert "criterion 'broken' (test_scoring.py:" in failure.message, "the file and line, and no folder"
    assert failure.error_id in caplog.text


@pytest.mark.parametrize("name", [name for name in BAD if "scale" not in name])
def test_one_that_weighs_nothing_has_an_error_and_no_score(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        card = card_of(graded((BAD[name], {"weight": 0, "name": "broken"}), (constant(0.25), {})))
    assert card.reward == 0.25
    assert card.criteria[0].score is None
    assert card.criteria[0].error
    assert "broken" in caplog.text


def test_a_criterion_may_have_a_scale_and_a_metric_has_none() -> None:
    card = card_of(graded((constant(-5), {"scale": (-5, 5)}), (constant(1e9), {"weight": 0})))
    assert (card.reward, card.outcome_score) == (0.0, 0.0)
    assert [(item.score, item.normalised) for item in card.criteria] == [(-5.0, 0.0), (1e9, None)]
    assert Scorecard.from_json(card.to_json()).criteria == card.criteria


def test_a_scorecard_of_before_is_read_as_it_was_stored() -> None:
    card = Scorecard([item(7.0)], 7.0, None, 7.0).to_json()
    del card["criteria"][0]["normalised"]  # type: ignore[index, union-attr, call-overload]
    old = Scorecard.from_json(card)
    assert (old.outcome_score, old.criteria[0].score, old.criteria[0].normalised) == (7.0, 7.0, None)


def test_the_scale_is_in_the_spec_hash() -> None:
    assert len({graded((constant(0), {"scale": scale})).freeze().hash for scale in ((0, 1), (0, 10))}) == 2


def test_the_scale_of_events_is_refused() -> None:
    with pytest.raises(DeclarationError, match="scale"):
        graded((of_steps(0), {**EVENTS, "scale": (0, 10)})).freeze()


def test_weights_at_the_ends_of_the_range() -> None:
    assert weighted([item(0.5, 5e-324)]) == 0.5
    assert weighted([item(1.0, 1.7e308), item(0.5, 1.7e308)]) == 0.75


def test_what_is_beyond_all_numbers_is_no_reward() -> None:
    for app in (graded((of_steps(10.0), {**EVENTS, "weight": 1e308})), app_with(reward=Blend(env=1e308))):
        with pytest.raises(RolloutFailed, match=r"\binf\b") as caught:
            card_of(app)
        assert caught.value.boundary == "scoring"


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
    both, only = {"environment": ["e", "f"], "weight": 0}, {"environment": "f"}
    app = graded((constant(0.5), only), (constant(0.5), both))
    app.environment("f")(Steps)
    one, two = card_of(app), card_of(app, env_name="f")
    assert [item.name for item in one.criteria] == ["r1"]
    assert [item.name for item in two.criteria] == ["r0", "r1"]
    assert (one.reward, two.reward) == (6.0, 0.5)


def test_metrics_are_numbers_outside_every_score() -> None:
    app = app_with()
    app.metric(name="one")(constant(2))
    app.metric(name="several")(constant({"a": True, "b": None}))
    app.metric(name="broken")(BAD["raises"])
    card = card_of(app)
    assert card.metrics == {"one": 2.0, "a": 1.0}
    assert card.reward == 6.0
    assert [(item.name, item.of, bool(item.error)) for item in card.criteria] == [("broken", "metric", True)]


def test_an_unasked_judge_is_null_and_says_so() -> None:
    app = app_with()

    @app.judge(weight=0)
    def style(trajectory: Trajectory) -> str:
        """Is it elegant?"""
        return trajectory.transcript()

    card = card_of(app)
    assert [(c.name, c.of, c.score, c.reason) for c in card.criteria] == [("style", "judge", None, "not_configured")]
    assert card.reward == 6.0


def summary(total_reward: float = 1.0) -> RolloutRow:
    return RolloutRow("terminated", "r", total_reward=total_reward)


def test_aggregates() -> None:
    app = app_with()

    @app.aggregate
    def mean(rollouts: Any) -> float | None:
        return sum(item.total_reward for item in rollouts) / len(rollouts) if rollouts else None

    @app.aggregate(name="parts")
    def split(rollouts: Any) -> dict[str, float]:
        return {"n": len(rollouts)}

    spec = app.freeze()
    assert aggregates(spec, [summary(), summary(3.0)]) == {"mean": 2.0, "parts": {"n": 2.0}}
    assert aggregates(spec, []) == {"mean": None, "parts": {"n": 0.0}}


def test_an_aggregate_that_breaks_names_itself() -> None:
    app = app_with()
    app.aggregate(name="broken")(lambda rollouts: math.nan)
    with pytest.raises(ScoringFailed, match=r"'broken' \(test_scoring\.py:\d+\) .*\bnan\b"):
        aggregates(app.freeze(), [summary()])


def test_the_summary_of_a_rollout() -> None:
    row = play(app_with(), "noop").row()
    assert (row.environment, row.length, row.total_reward, row.reward, row.status) == ("e", 3, 6.0, 6.0, "terminated")
    assert row.metrics["steps"] == 3.0


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
    [item] = card_of(graded((constant(Grade(0.5, reason)), {}))).criteria
    assert item.score == 0.5
    assert item.reason is not None and len(item.reason.encode()) < 2_100 and "\x1b" not in item.reason


@pytest.mark.parametrize("score", [1, True, np.float32(1.0)])
def test_the_score_of_a_grade_is_any_number(score: Any) -> None:
    assert card_of(graded((constant(Grade(score, "right")), {}))).reward == 1.0


def test_a_grade_counts_as_its_score_and_its_reason_hides_private_values(tmp_path: Path) -> None:
    card = play(app_from(tmp_path, GRADED), "constant", seed=0, action="canary-4711").scorecard
    assert [(item.name, item.score, item.reason) for item in card.criteria] == [
        ("some", 0.25, "a part of [private: word]"),
        ("none", 0.0, "nothing"),
    ]
    assert card.reward == pytest.approx(0.1875)
