"""Environments of reasoning-gym and TextArena for the doctor, as their adapters make them.

Each app is a global of this module, so that a second process finds it as `library_apps.py:NAME`.
"""

from __future__ import annotations

import importlib.util
import random
import re
from collections.abc import Callable
from typing import Any

from taskapp_kit import TaskApp
from taskapp_kit.interop.reasoning_gym import from_reasoning_gym
from taskapp_kit.interop.textarena import from_textarena

GENERATORS = (
    "binary_matrix", "chain_sum", "complex_arithmetic", "countdown", "fraction_simplification", "game_of_life_halting",
    "gsm_symbolic", "knights_knaves", "lcm", "letter_counting", "maze", "mini_sudoku", "number_sorting",
    "polynomial_equations", "prime_factorization", "shortest_path", "simple_equations", "spell_backward", "syllogism",
    "word_sorting",
)  # fmt: skip
"""Of each of reasoning-gym's categories that has one that draws within a second, and those with known oddities."""


def _offered(observation: str, rng: random.Random) -> str:
    """One of the moves that the last message offers."""
    return str(rng.choice(re.findall(r"'(\[\w+\])'", observation) or ["[0]"]))


def _one_of(*moves: str) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(moves)


def _numbers(count: int, low: int, high: int) -> Callable[[random.Random], str]:
    return lambda rng: f"[{' '.join(str(rng.randint(low, high)) for _ in range(count))}]"


GAMES: dict[str, dict[str, Any]] = {
    "Blackjack-v0": {"sample": _one_of("[hit]", "[stand]")},
    "FrozenLake-v0": {"sample": _one_of("[up]", "[down]", "[left]", "[right]")},
    "GuessTheNumber-v0": {"sample": _numbers(1, 1, 20)},
    "KuhnPoker-v0": {"players": 2, "opponent": _offered, "sample": _one_of("[check]", "[bet]", "[call]", "[fold]")},
    "LightsOut-v0": {"sample": _numbers(2, 0, 4)},
    "Mastermind-v0": {"sample": _numbers(4, 1, 6)},
    "Minesweeper-v0-small": {"sample": _numbers(2, 0, 4)},
    "Secretary-v0": {"sample": _one_of("[accept]", "[continue]")},
    "TicTacToe-v0": {"players": 2, "opponent": _offered, "sample": _numbers(1, 0, 8)},
    "TowerOfHanoi-v0": {"sample": _one_of("[A B]", "[A C]", "[B A]", "[B C]", "[C A]", "[C B]")},
}


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


if importlib.util.find_spec("reasoning_gym") is not None:
    for _name in GENERATORS:
        _app, _made = TaskApp(_name), from_reasoning_gym(_name)
        _app.environment(_name, splits={"train": range(1000), "test": range(1000, 1100)}, max_turns=4)(_made)
        _app.policy("gold", environment=_name)(_made.gold)
        globals()[_identifier(_name)] = _app

if importlib.util.find_spec("textarena") is not None:
    for _name, _options in GAMES.items():
        _app = TaskApp(_name)
        _app.environment(_identifier(_name).lower(), splits={"train": range(1000), "test": range(1000, 1100)})(
            from_textarena(_name, **_options)
        )
        globals()[_identifier(_name)] = _app
