"""The measured speed of a sampler, and the deadlines that follow from it."""

from __future__ import annotations

import pytest

from taskapp_kit.train.gateway.pace import LEAST_SECONDS, MOST_SECONDS, SLACK, UNMEASURED_SECONDS, Pace


class HandClock:
    time = 0.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


def generated(pace: Pace, clock: HandClock, end: float, tokens: int | None, names: str = "a") -> None:
    """Generations of these names begin now and end at a time with so many tokens each, None if they failed."""
    for name in names:
        pace.started(name, 100)
    clock.time = end
    for name in names:
        pace.ended(name, tokens)


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
    generated(pace, clock, 1.0, 10)
    clock.time = 100.0
    generated(pace, clock, 150.0, None)
    generated(pace, clock, 151.0, 10)
    assert pace.tokens_per_second == pytest.approx(10)


def test_those_of_one_batch_count_together_and_the_old_less() -> None:
    clock = HandClock()
    pace = Pace(clock)
    generated(pace, clock, 1.0, 10, "ab")
    assert pace.tokens_per_second == pytest.approx(20)
    generated(pace, clock, 121.0, 120)  # two half-lives later
    assert pace.tokens_per_second == pytest.approx((20 / 4 + 120) / (1 / 4 + 120))
