"""The estimate of what Modal bills."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.deploy.modal.costs import CORE_SECOND_USD, GIB_SECOND_USD, PRICES_DATE, Cost, estimate


def cost(**changed: object) -> Cost:
    settings = {
        "cpu": 1.0,
        "memory_mib": 1024,
        "min_containers": 0,
        "max_containers": 4,
        "scaledown_window_seconds": 100,
    }
    return estimate(**{**settings, **changed})  # type: ignore[arg-type]


def test_one_core_and_one_gib_for_an_hour() -> None:
    assert cost().container_hour == pytest.approx(3600 * (CORE_SECOND_USD + GIB_SECOND_USD))
    assert cost().full_hour == pytest.approx(4 * cost().container_hour)
    assert cost().burst_tail == pytest.approx(cost().container_hour / 36)


def test_nobody_asks_and_nothing_is_kept_warm_costs_nothing() -> None:
    assert cost().idle_month == 0
    assert cost(min_containers=2).idle_month == pytest.approx(2 * 720 * cost().container_hour)


def test_nothing_reserved_is_billed_as_the_least_that_there_is() -> None:
    assert cost(cpu=None, memory_mib=None).container_hour == pytest.approx(
        3600 * (0.125 * CORE_SECOND_USD + 0.125 * GIB_SECOND_USD)
    )


@pytest.mark.parametrize(
    ("region", "times"), [((), 1.0), (("us",), 1.5), (("us-east",), 1.75), (("us", "us-east"), 1.75)]
)
def test_a_chosen_region_is_dearer(region: tuple[str, ...], times: float) -> None:
    assert cost(region=region).container_hour == pytest.approx(times * cost().container_hour)


@given(cpu=st.floats(0.1, 64), memory=st.integers(128, 10**5))
def test_more_is_never_cheaper(cpu: float, memory: int) -> None:
    assert cost(cpu=cpu, memory_mib=memory).container_hour <= cost(cpu=cpu * 2, memory_mib=memory * 2).container_hour
    assert cost(cpu=cpu, memory_mib=memory).busy_hour >= cost(cpu=cpu, memory_mib=memory).container_hour * 0.999


def test_the_prices_say_of_when_they_are() -> None:
    assert len(PRICES_DATE.split("-")) == 3
