"""Which evaluation ends a job."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from taskapp_kit.train.loops.settings import EarlyStopping


def ended_at(rule: EarlyStopping, rewards: Sequence[float | None]) -> tuple[int, str] | None:
    """The index of the evaluation that ends the job, and its reason."""
    known: dict[str, object] = {}
    for index, reward in enumerate(rewards):
        known = rule.after(reward, known)
        if "reason" in known:
            return index, str(known["reason"])
    return None


@pytest.mark.parametrize(
    ("rule", "rewards", "expected"),
    [
        (EarlyStopping(), [0.1, 0.1, 1.0, 0.0], None),
        (EarlyStopping(stop_at=0.9), [0.1, 0.8, 0.9, 1.0], (2, "its reward 0.9 reached 0.9")),
        (EarlyStopping(patience=2), [0.5, 0.4, 0.6, 0.6, 0.5], (4, "2 in a row were no better than 0.6")),
        (EarlyStopping(patience=2), [0.5, 0.4, 0.6, 0.5, 0.7, 0.6], None),
        (EarlyStopping(patience=2), [None, 0.5, None, 0.4, None, 0.3], (5, "2 in a row were no better than 0.5")),
        (EarlyStopping(stop_at=0.0, patience=9), [-1.0, 0.0], (1, "its reward 0 reached 0")),
    ],
)
def test_the_evaluation_that_ends_a_job(
    rule: EarlyStopping, rewards: list[float | None], expected: tuple[int, str] | None
) -> None:
    assert ended_at(rule, rewards) == expected
