"""Comparisons of rows: breakdowns by fields of every kind."""

from __future__ import annotations

from typing import Any

import pytest

from taskapp_kit.evaluate.compare import ComparisonSettings, PairKey, Side, compare
from taskapp_kit.records.protocols import RolloutRow


def side(name: str, fields: list[Any]) -> Side:
    """A policy that played a seed for each field."""
    rows: dict[PairKey, RolloutRow] = {}
    for seed, value in enumerate(fields):
        rows["e", "train", seed, 0] = RolloutRow(
            rollout_id=f"{name}{seed}", environment="e", split="train", seed=seed, sample=0, policy=name, model=None,
            status="terminated", stop_reason="environment", boundary=None, code=None, message=None, reward=float(seed % 2),
            criteria={}, length=1, turns=1, tokens=None, cost=None, seconds=1.0, metrics={}, created_at=float(seed),
            run_id="r", row={} if value is None else {"field": value},
        )  # fmt: skip
    return Side("here", name, name, rows)


@pytest.mark.parametrize(
    ("fields", "groups"),
    [
        ([True, False, True, False], ["False", "True"]),
        ([10, 9, 9.5, 10], ["9", "9.5", "10"]),
        ([10, 9, None, 9], ["9", "10", "none"]),
        (["b", "a", None, "b"], ["a", "b", "none"]),
    ],
    ids=["yes or no", "numbers", "numbers and none", "texts"],
)
def test_groups_are_in_the_order_of_their_values(fields: list[Any], groups: list[str]) -> None:
    (one,) = compare([side("one", fields), side("two", fields)], ComparisonSettings(by=("field",)))
    assert [group.name for group in one.breakdowns["field"]] == groups
