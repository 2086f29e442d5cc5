"""What a task app on Modal may cost: an estimate, from prices that were public on one day.

Modal bills the higher of reservation and usage, by the second. The usage is not known here, so a figure is the minimum cost
of a running container; the maximum is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

PRICES_DATE = "2026-06-27"
PRICES_SOURCE = "modal.com/pricing and modal.com/docs/guide/region-selection, as quoted on that day"
CORE_SECOND_USD = 0.0000131
"""One physical core for one second."""
GIB_SECOND_USD = 0.00000222
"""One GiB of memory for one second."""
LEAST_CORES, LEAST_MIB = 0.125, 128
"""A container's memory without a reservation, which is also the minimum that is billed."""
BROAD_REGIONS = frozenset({"us", "eu", "ap", "uk", "ca", "me", "sa", "af", "mx"})
BROAD, NARROW = 1.5, 1.75
"""The price multipliers of a chosen region: of a continent, and of a part of one."""

HOUR, MONTH = 3600.0, 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Cost:
    """US dollars.

    container_hour: one running container. busy_hour: one that uses a core and 512 MiB. idle_month: when nobody asks, by
    `min_containers`. burst_tail: the idle wait of one container before it goes. full_hour: all of `max_containers`.
    multiplier: of the region.
    """

    container_hour: float
    busy_hour: float
    idle_month: float
    burst_tail: float
    full_hour: float
    multiplier: float


def estimate(
    *,
    cpu: float | None,
    memory_mib: int | None,
    min_containers: int,
    max_containers: int,
    scaledown_window_seconds: int,
    region: tuple[str, ...] = (),
) -> Cost:
    """The minimum cost of these settings. cpu: reserved cores, None for none; memory_mib likewise."""
    cores = max(cpu or 0.0, LEAST_CORES)
    gib = max(memory_mib or 0, LEAST_MIB) / 1024
    multiplier = 1.0 if not region else BROAD if all(name in BROAD_REGIONS for name in region) else NARROW
    second = (cores * CORE_SECOND_USD + gib * GIB_SECOND_USD) * multiplier
    return Cost(
        container_hour=second * HOUR,
        busy_hour=(max(cores, 1.0) * CORE_SECOND_USD + max(gib, 0.5) * GIB_SECOND_USD) * multiplier * HOUR,
        idle_month=second * MONTH * min_containers,
        burst_tail=second * scaledown_window_seconds,
        full_hour=second * HOUR * max_containers,
        multiplier=multiplier,
    )
