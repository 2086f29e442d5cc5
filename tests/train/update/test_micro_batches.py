"""How rows are divided into minibatches and micro-batches."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import BadArgument
from taskapp_kit.train.turns import NOT_SAMPLED, TrainingRow
from taskapp_kit.train.update.memory import ModelShape, has_gradient, plan_minibatches, predicted_positions
from taskapp_kit.train.update.update_settings import UpdateSettings

SHAPE = ModelShape(layers=2, hidden=8, intermediate=16, query=8, key_value=4, vocabulary=32)


@st.composite
def batches(draw: st.DrawFn) -> list[TrainingRow]:
    rows = []
    for episode in range(draw(st.integers(1, 6))):
        advantage = draw(st.sampled_from([0.0, 1.0, -0.5]))
        for branch in range(draw(st.integers(1, 3))):
            mask = (False, *draw(st.lists(st.booleans(), min_size=1, max_size=12)))
            rows.append(
                TrainingRow(
                    ids=tuple(range(branch, branch + len(mask))),
                    mask=mask,
                    log_probs=(0.0,) * len(mask),
                    versions=tuple(0 if on else NOT_SAMPLED for on in mask),
                    advantages=tuple(advantage if on else 0.0 for on in mask),
                    group=f"g{episode % 2}",
                    rollout=f"e{episode}",
                )
            )
    return rows


@given(batches(), st.integers(1, 4), st.sampled_from([0.0, 0.1]), st.integers(1, 60_000), st.randoms())
def test_every_row_with_a_gradient_is_in_one_micro_batch(
    rows: list[TrainingRow], minibatches: int, beta: float, budget: int, shuffle: Random
) -> None:
    plan = plan_minibatches(rows, minibatches, beta, SHAPE, budget, Random(3))
    planned = [row for each in plan for micro_batch in each.micro_batches for row in micro_batch]
    assert Counter(planned) == Counter(row for row in rows if has_gradient(row, beta))

    # an episode stays in one minibatch, and those without a gradient are counted, too
    owners = [{row.rollout for micro_batch in each.micro_batches for row in micro_batch} for each in plan]
    assert sum(map(len, owners)) == len(set().union(*owners))
    episodes = len({row.rollout for row in rows})
    assert sum(each.episodes for each in plan) == episodes
    assert len(plan) == min(minibatches, episodes)
    assert max(each.episodes for each in plan) - min(each.episodes for each in plan) <= 1

    for micro_batch in [micro_batch for each in plan for micro_batch in each.micro_batches]:
        longest, predicted = max(len(row.ids) for row in micro_batch), len(predicted_positions(micro_batch))
        assert len(micro_batch) == 1 or SHAPE.backward_bytes(len(micro_batch), longest, predicted) <= budget

    shuffled = list(rows)
    shuffle.shuffle(shuffled)
    assert plan_minibatches(shuffled, minibatches, beta, SHAPE, budget, Random(3)) == plan


def test_rows_of_enough_memory_are_one_micro_batch() -> None:
    row = TrainingRow((1, 2), (False, True), (0.0, -1.0), (NOT_SAMPLED, 0), (0.0, 1.0), "g", "a")
    other = TrainingRow((1, 2, 3), (False, True, True), (0.0,) * 3, (NOT_SAMPLED, 0, 0), (0.0, 1.0, 1.0), "g", "b")
    (minibatch,) = plan_minibatches([row, other], 1, 0.0, SHAPE, 2**30, Random(0))
    assert minibatch.micro_batches == ((other, row),)


@pytest.mark.parametrize(
    "wrong", [{"temperature": 0.0}, {"minibatches": 0}, {"loss": "reinforce", "minibatches": 2}, {"beta": -0.1}]
)
def test_settings_that_train_wrongly_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadArgument):
        UpdateSettings(learning_rate=1e-5, **wrong)  # type: ignore[arg-type]


def test_a_narrow_clip_range_needs_a_closer_sampler() -> None:
    assert UpdateSettings(learning_rate=1e-5, loss="grpo").largest_mismatch == 1e-3
    assert UpdateSettings(learning_rate=1e-5, loss="reinforce").largest_mismatch == 1e-3
    assert UpdateSettings(learning_rate=1e-5, loss="gspo").largest_mismatch == pytest.approx(3e-5)
    assert UpdateSettings(learning_rate=1e-5, loss="gspo", clip=(0.05, 0.06)).largest_mismatch == 1e-3
