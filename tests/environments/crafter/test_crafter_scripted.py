"""The scripted player is good on worlds that it has not seen."""

import random
from statistics import mean

import pytest

from environments.crafter.names import ACTIONS
from environments.crafter.rules import CrafterGame
from environments.crafter.scripted import scripted


def play(seed: int, length: int = 10_000) -> CrafterGame:
    game, rng = CrafterGame(seed, length=length), random.Random(seed)
    while not game.over:
        actions = scripted(game.observe(), rng)["interact"]["actions"]
        assert 1 <= len(actions) <= 8
        assert set(actions) <= set(ACTIONS)
        game.interact(actions)
    return game


@pytest.mark.parametrize("worlds", [8, pytest.param(25, marks=pytest.mark.exhaustive)])
def test_six_achievements_on_average_on_unseen_worlds(worlds: int) -> None:
    assert mean(len(play(5000 + number, 500).unlocked) for number in range(worlds)) >= 6
