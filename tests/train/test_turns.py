"""Recorded turns and training rows refuse what could not be trained on correctly."""

from __future__ import annotations

import dataclasses
import math

import pytest

from taskapp_kit.train.turns import NOT_SAMPLED, RecordedTurn, TrainingRow

TURN = RecordedTurn((1, 2), (3, 4), (-0.5, -1.0), 7, "stop", 0.1, delivered=True)
ROW = TrainingRow(
    ids=(1, 2, 3),
    mask=(False, False, True),
    log_probs=(0.0, 0.0, -1.0),
    versions=(NOT_SAMPLED, NOT_SAMPLED, 7),
    advantages=(0.0, 0.0, 0.5),
    group="g",
    rollout="r",
)


def test_a_turn_says_why_it_is_never_trained_on() -> None:
    assert TURN.exclusion is None
    assert TURN.ids == (1, 2, 3, 4)
    wrong = {
        "not_delivered": {"delivered": False},
        "length_mismatch": {"log_probs": (-0.5,)},
        "no_tokens": {"token_ids": (), "log_probs": ()},
        "no_prompt": {"prompt_ids": ()},
        "invalid_log_prob": {"log_probs": (-0.5, math.nan)},
    }
    for reason, changes in wrong.items():
        assert dataclasses.replace(TURN, **changes).exclusion == reason


@pytest.mark.parametrize("field", ["ids", "mask", "log_probs", "versions", "advantages"])
def test_a_row_has_one_entry_for_each_token(field: str) -> None:
    with pytest.raises(ValueError, match="3"):
        dataclasses.replace(ROW, **{field: getattr(ROW, field)[1:]})


def test_a_row_never_trains_on_its_first_token() -> None:
    with pytest.raises(ValueError, match="first"):
        dataclasses.replace(ROW, mask=(True, False, True))
    assert ROW.trained == 1
