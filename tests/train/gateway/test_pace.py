"""The measured speed of a sampler, and the deadlines that follow from it."""

from __future__ import annotations

import pytest

from taskapp_kit.train.gateway.pace import LEAST_SECONDS, MOST_SECONDS, SLACK, UNMEASURED_SECONDS, Pace


class HandClock:
    """A clock that a test sets."""

    time = 0.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


def test_a_deadline_follows_from_the_speed_and_all_that_runs() -> None:
    clock = HandClock()
    pace = Pace(clock)
    assert pace.started("a", 100) == UNMEASURED_SECONDS
    assert pace.tokens_per_second is None
    clock.time = 2.0
    pace.ended("a", 20)
    assert pace.tokens_per_second == pytest.approx(10)
    assert pace.started("b", 100) == pytest.approx(LEAST_SECONDS + SLACK * 10)
    assert pace.started("c", 50) == pytest.approx(LEAST_SECONDS + SLACK * 15)
    assert pace.started("d", 10**9) == MOST_SECONDS


def test_idle_time_and_what_failed_do_not_count() -> None:
    clock = HandClock()
    pace = Pace(clock)
    pace.started("a", 100)
    clock.time = 1.0
    pace.ended("a", 10)
    clock.time = 100.0
    pace.started("b", 100)
    clock.time = 150.0
    pace.ended("b", None)
    pace.started("c", 100)
    clock.time = 151.0
    pace.ended("c", 10)
    assert pace.tokens_per_second == pytest.approx(10)


def test_those_of_one_batch_count_together_and_the_old_less() -> None:
    clock = HandClock()
    pace = Pace(clock)
    for name in "ab":
        pace.started(name, 100)
    clock.time = 1.0
    for name in "ab":
        pace.ended(name, 10)
    assert pace.tokens_per_second == pytest.approx(20)
    pace.started("c", 100)
    clock.time = 121.0  # two half-lives
    pace.ended("c", 120)
    assert pace.tokens_per_second == pytest.approx((20 / 4 + 120) / (1 / 4 + 120))
