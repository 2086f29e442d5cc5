"""The limit grows while a host keeps up and shrinks when it does not; places are given in order and never lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from taskapp_kit.rollout.models.attempts import (
    LEAST_HANG_TIMEOUT_SECONDS,
    MOST_HOSTS,
    MOST_LIMIT,
    ConcurrencyLimiter,
    HostLimiter,
)
from tests.waiting import until_async

pytestmark = pytest.mark.anyio


async def turn(limiter: HostLimiter, answers: int, congested_share: float, rng: random.Random) -> None:
    """So many answers, always as many at once as there is room for."""
    for _ in range(answers // max(1, int(limiter.limit)) + 1):
        tickets = [await limiter.enter(1.0) for _ in range(int(limiter.limit) - limiter.in_flight)]
        for ticket in tickets:
            limiter.leave(ticket, congested=rng.random() < congested_share)


@pytest.mark.parametrize(
    ("answers", "congested_share", "low", "high"),
    [(112, 0.0, 128, MOST_LIMIT), (2000, 0.03, 512, MOST_LIMIT), (15, 1.0, 8, 8), (500, 1.0, 1, 1)],
    ids=["it doubles", "random faults", "congestion halves it at most", "one place stays"],
)
async def test_the_limit_follows_the_answers(answers: int, congested_share: float, low: int, high: int) -> None:
    limiter = HostLimiter(16)
    await turn(limiter, answers, congested_share, random.Random(0))
    assert low <= limiter.limit <= high


async def test_after_congestion_it_grows_by_steps() -> None:
    limiter, limits = HostLimiter(64), []
    await turn(limiter, 32, 1.0, random.Random(0))
    for _ in range(3):
        limits.append(limiter.limit)
        before = limiter.limit
        while limiter.limit == before:
            await turn(limiter, 1, 0.0, random.Random(0))
    first, second, third = limits
    assert (second - first, third - second) == (4, 4)


async def test_limit_settles_near_the_hosts_capacity() -> None:
    """A host that takes 40 calls at once and refuses the others."""
    limiter, limits = HostLimiter(256), []
    for _ in range(400):
        tickets = [await limiter.enter(1.0) for _ in range(int(limiter.limit))]
        for index, ticket in enumerate(tickets):
            limiter.leave(ticket, congested=index >= 40)
        limits.append(limiter.limit)
    assert 32 <= sum(limits[200:]) / 200 <= 52


async def test_limit_does_not_grow_without_demand() -> None:
    limiter = HostLimiter(16)
    for _ in range(500):
        limiter.leave(await limiter.enter(1.0))
    assert limiter.limit == 16


async def test_a_place_is_waited_for_in_order_and_within_the_time() -> None:
    limiter, order = HostLimiter(1), []
    ticket = await limiter.enter(1.0)

    async def wait(name: str, seconds: float) -> None:
        try:
            mine = await limiter.enter(seconds)
        except TimeoutError:
            order.append(f"{name} late")
            return
        order.append(name)
        await asyncio.sleep(0)
        limiter.leave(mine)

    tasks = [asyncio.create_task(wait(name, 5.0 if name != "b" else 0.01)) for name in "abc"]
    await until_async(lambda: order == ["b late"])
    limiter.leave(ticket)
    await asyncio.gather(*tasks)
    assert order == ["b late", "a", "c"]
    assert limiter.in_flight == 0 and limiter.idle


async def test_cancelled_waiter_does_not_lose_a_slot() -> None:
    rng = random.Random(3)
    limiter = HostLimiter(4)

    async def call() -> None:
        ticket = await limiter.enter(rng.choice((0.001, 0.01, 1.0)))
        try:
            await asyncio.sleep(rng.random() / 200)
        finally:
            limiter.leave(ticket)
            assert limiter.in_flight >= 0

    tasks = [asyncio.create_task(call()) for _ in range(300)]
    for task in tasks:
        if rng.random() < 0.3:
            await asyncio.sleep(0.0005)
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert limiter.idle


async def test_slot_of_a_simultaneously_cancelled_waiter_goes_to_the_next() -> None:
    limiter = HostLimiter(1)
    ticket = await limiter.enter(1.0)
    cancelled, following = (asyncio.create_task(limiter.enter(5.0)) for _ in range(2))
    await asyncio.sleep(0)  # both wait
    limiter.leave(ticket)  # the first one has the place now, and has not run since
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    limiter.leave(await following)
    assert limiter.in_flight == 0 and limiter.idle


async def test_signs_of_before_a_reduction_count_once() -> None:
    limiter = HostLimiter(64)
    tickets = [await limiter.enter(1.0) for _ in range(64)]
    late = tickets[:32]
    fresh = tickets[32:]
    for ticket in fresh:
        limiter.leave(ticket, congested=True)
    for _ in range(32):
        late.append(await limiter.enter(1.0))
    for ticket in late:
        limiter.leave(ticket, congested=True)
    assert limiter.limit == 32


async def test_patience_is_known_after_many_answers_and_lies_far_beyond_them() -> None:
    limiter, found = HostLimiter(), []
    for seconds in (0.2, 30.0):
        found.append(limiter.hang_timeout())
        for _ in range(128):
            limiter.leave(await limiter.enter(1.0), seconds=seconds)
    assert [*found, limiter.hang_timeout()] == [None, LEAST_HANG_TIMEOUT_SECONDS, 240.0]


async def test_hosts_have_gates_of_their_own_and_idle_ones_are_forgotten() -> None:
    limiters = ConcurrencyLimiter(2)
    limiter = limiters.host("a")
    assert limiters.host("a") is limiter is not limiters.host("b")
    await limiter.enter(1.0)
    for index in range(3 * MOST_HOSTS):
        limiters.host(f"host{index}")
    assert limiters.host("a") is limiter


@pytest.mark.parametrize("limit", [1, 3])
async def test_never_more_than_the_limit_at_once(limit: int) -> None:
    limiter, most = HostLimiter(limit), 0

    async def call() -> None:
        nonlocal most
        ticket = await limiter.enter(5.0)
        most = max(most, limiter.in_flight)
        await asyncio.sleep(0)
        limiter.leave(ticket, congested=True)

    await asyncio.gather(*(call() for _ in range(50)))
    assert most == limit
