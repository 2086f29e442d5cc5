from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.evaluate.run import FIRST_AT_ONCE, MOST_AT_ONCE, AutoConcurrency, Concurrency


def settled(seconds: Callable[[int], float], limited: Callable[[int], bool] = lambda at_once: False) -> list[int]:
    """The limits that it takes, one after the other, when answers take so long at so many at once."""
    at_once, limits = AutoConcurrency(), [8]
    for _ in range(20_000):
        at_once.see(seconds(at_once.limit), congested=limited(at_once.limit))
        if at_once.limit != limits[-1]:
            limits.append(at_once.limit)
    return limits


def test_it_doubles_up_to_the_most_while_answers_come_as_fast() -> None:
    assert settled(lambda at_once: 0.5) == [8, 16, 32, 64, 128, 256]


def test_it_returns_to_the_number_before_answers_took_twice_as_long() -> None:
    assert settled(lambda at_once: max(1.0, at_once / 40)) == [8, 16, 32, 64, 128, 64]
    assert settled(float) == [8, 16, 8]


def test_a_429_ends_the_growth_at_the_number_before() -> None:
    assert settled(lambda at_once: 1.0, lambda at_once: at_once > 40) == [8, 16, 32, 64, 32]
    assert settled(lambda at_once: 1.0, lambda at_once: True) == [8]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), max_size=2000))
def test_whatever_comes_the_number_stays_within_its_bounds(answers: list[tuple[float, bool]]) -> None:
    at_once = AutoConcurrency()
    for seconds, limited in answers:
        at_once.see(seconds, congested=limited)
        assert FIRST_AT_ONCE <= at_once.limit <= MOST_AT_ONCE


def test_a_fixed_number_stays() -> None:
    fixed = Concurrency(5)
    fixed.see(100.0, congested=True)
    assert fixed.limit == 5
