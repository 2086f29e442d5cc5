"""Environments that were not written for the doctor: Gymnasium's own, and questions whose answers Python's library gives.

Each app is a global of this module, so that a second process finds it as `apps.py:NAME`.
"""

from __future__ import annotations

import base64
import bisect
import calendar
import datetime
import fractions
import math
import random
import shlex
import statistics
import string
import textwrap
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

try:
    from taskapp_kit.interop.gymnasium import from_gymnasium

    GYMNASIUM = (
        "Acrobot-v1", "Blackjack-v1", "CartPole-v0", "CartPole-v1", "CliffWalking-v1", "CliffWalkingSlippery-v1",
        "FrozenLake-v1", "FrozenLake8x8-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Taxi-v4",
    )  # fmt: skip
    """Every id of `gymnasium.envs.toy_text` and `gymnasium.envs.classic_control` in Gymnasium 1.4.0."""
    import gymnasium  # noqa: F401
except ImportError:
    GYMNASIUM = ()


class Question(BaseModel):
    """What a function is called with, and what it returns."""

    call: str
    answer: Private[str]


def _question(function: Callable[..., Any], draw: Callable[[random.Random], tuple[Any, ...]], number: int) -> Question:
    arguments = draw(random.Random(f"{function.__name__} {number}"))
    name = getattr(function, "__qualname__", function.__name__)
    return Question(call=f"{name}({', '.join(map(repr, arguments))})", answer=str(function(*arguments)))


def _asking(name: str, function: Callable[..., Any], draw: Callable[[random.Random], tuple[Any, ...]]) -> TaskApp:
    """An app that asks what the function returns."""
    app = TaskApp(name)
    unique = {question.call: question for question in (_question(function, draw, number) for number in range(80))}
    rows = list(unique.values())
    app.tasks(
        name,
        row=Question,
        prompt="What does Python's {call} return? Write str() of it, alone.",
        train=rows[:20],
        test=rows[20:40],
    )

    @app.rubric
    def correct(answer_text: str, task: Question) -> float:
        """The text is what Python prints."""
        return float(answer_text.strip() == task.answer)

    @app.policy("gold")
    def gold(task: Question) -> str:
        """Writes it."""
        return task.answer

    return app


def _numbers(rng: random.Random) -> list[int]:
    return [rng.randrange(1000) for _ in range(rng.randint(3, 7))]


WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "hazel")


def _words(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(3, 8)))


def _weekday(year: int, month: int, day: int) -> str:
    return datetime.date(year, month, day).strftime("%A")


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


CALLABLES: dict[str, tuple[Callable[..., Any], Callable[[random.Random], tuple[Any, ...]]]] = {
    "gcd": (math.gcd, lambda rng: (rng.randrange(10, 999) * 6, rng.randrange(10, 999) * 6)),
    "median": (statistics.median, lambda rng: (_numbers(rng),)),
    "fraction": (fractions.Fraction, lambda rng: (rng.randrange(1, 99), rng.randrange(1, 99))),
    "monthrange": (calendar.monthrange, lambda rng: (rng.randrange(1900, 2100), rng.randint(1, 12))),
    "weekday": (_weekday, lambda rng: (rng.randrange(1900, 2100), rng.randint(1, 12), rng.randint(1, 28))),
    "shlex": (shlex.split, lambda rng: (f"{_words(rng)} '{_words(rng)}'",)),
    "base64": (_b64, lambda rng: (_words(rng),)),
    "capwords": (string.capwords, lambda rng: (_words(rng),)),
    "shorten": (textwrap.shorten, lambda rng: (_words(rng), rng.randrange(12, 24))),
    "bisect": (bisect.bisect, lambda rng: (sorted(_numbers(rng)), rng.randrange(1000))),
}

APPS: dict[str, TaskApp] = {}
for _id in GYMNASIUM:
    _app = TaskApp(_id)
    _app.environment(_id.lower().replace("-", "_"), splits={"train": range(1000), "test": range(1000, 1100)})(
        from_gymnasium(_id)
    )
    APPS[_id] = globals()[_id.replace("-", "_")] = _app
for _name, (_function, _draw) in CALLABLES.items():
    APPS[_name] = globals()[f"ask_{_name}"] = _asking(_name, _function, _draw)
