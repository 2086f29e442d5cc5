"""Which level a curriculum plays next."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from taskapp_kit.train.loops.settings import Curriculum, Level

LEVELS = ("easy", "medium", "hard")


def levels(rule: Curriculum, rewards: Sequence[float | None]) -> list[Level | None]:
    """The level of each iteration, and that of the one after the last."""
    known: dict[str, object] = {}
    found = [rule.level(known)]
    for reward in rewards:
        known = rule.after(reward, rule.level(known), known)
        found.append(rule.level(known))
    return found


@pytest.mark.parametrize(
    ("rule", "rewards", "expected"),
    [
        (Curriculum(LEVELS, up=0.8), [0.9, 0.1, 0.8, 1.0], ["easy", "medium", "medium", "hard", "hard"]),
        (Curriculum(LEVELS, up=0.8, down=0.2), [0.1, 0.8, 0.2, 0.9], ["easy", "easy", "medium", "easy", "medium"]),
        (Curriculum(LEVELS, up=0.5, window=2), [1.0, 0.1, 0.2, 0.9], ["easy", "easy", "medium", "medium", "hard"]),
        (Curriculum(LEVELS, up=0.8), [None, 0.8, None], ["easy", "easy", "medium", "medium"]),
        (Curriculum((1, 2), up=0.0), [0.0], [1, 2]),
        (Curriculum(), [1.0], [None, None]),
    ],
)
def test_the_level_follows_the_reward(
    rule: Curriculum, rewards: list[float | None], expected: list[Level | None]
) -> None:
    assert levels(rule, rewards) == expected


def test_an_iteration_of_another_level_changes_nothing() -> None:
    rule = Curriculum(LEVELS, up=0.8, window=2)
    known = rule.after(1.0, "easy", {})
    assert rule.after(1.0, "medium", known) == known
    assert rule.after(1.0, "easy", known) == {"level": 1, "rewards": []}
