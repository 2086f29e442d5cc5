"""The limit grows while a host keeps up and shrinks when it does not; places are given in order and never lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from taskapp_kit.rollout.models.attempts import (
    LEAST_HANG_TIMEOUT_SECONDS,
    MOST_HOSTS,
    ConcurrencyLimiter,
    HostLimiter,
)
from tests.waiting import until_async


async def turn(gate: HostLimiter, answers: int, congested_share: float, rng: random.Random) -> None:
    """So many answers, always as many at once as there is room for."""
    for _ in range(answers // max(1, int(gate.limit)) + 1):
        tickets = [await gate.enter(1.0) for _ in range(int(gate.limit) - gate.in_flight)]
        for ticket in tickets:
            gate.leave(ticket, congested=rng.random() < congested_share)


def grown(answers: int, congested_share: float, *, first: float = 16) -> HostLimiter:
    async def main() -> HostLimiter:
        gate = HostLimiter(first)
        await turn(gate, answers, congested_share, random.Random(0))
        return gate

    return asyncio.run(main())


def test_it_doubles_while_the_host_keeps_up() -> None:
    assert grown(16 + 32 + 64, 0.0).limit >= 128


def test_faults_at_random_do_not_close_it() -> None:
    assert grown(2000, 0.03).limit >= 512


def test_congestion_halves_it_at_most_and_one_place_stays() -> None:
    assert grown(15, 1.0).limit == 8
    assert grown(500, 1.0).limit == 1


def test_after_congestion_it_grows_by_steps() -> None:
    async def main() -> list[float]:
        gate, limits = HostLimiter(64), []
        await turn(gate, 32, 1.0, random.Random(0))
        for _ in range(3):
            limits.append(gate.limit)
            before = gate.limit
            while gate.limit == before:
                await turn(gate, 1, 0.0, random.Random(0))
        return limits

    first, second, third = asyncio.run(main())
    assert (second - first, third - second) == (4, 4)


def test_it_settles_near_what_the_host_takes() -> None:
    """A host that takes 40 calls at once and refuses the others."""

    async def main() -> float:
        gate, limits = HostLimiter(256), []
        for _ in range(400):
            tickets = [await gate.enter(1.0) for _ in range(int(gate.limit))]
            for index, ticket in enumerate(tickets):
                gate.leave(ticket, congested=index >= 40)
            limits.append(gate.limit)
        return sum(limits[200:]) / 200

    assert 32 <= asyncio.run(main()) <= 52


def test_it_does_not_grow_when_nobody_needs_it() -> None:
    async def main() -> float:
        gate = HostLimiter(16)
        for _ in range(500):
            gate.leave(await gate.enter(1.0))
        return gate.limit

    assert asyncio.run(main()) == 16


def test_a_place_is_waited_for_in_order_and_within_the_time() -> None:
    async def main() -> None:
        gate, order = HostLimiter(1), []
        ticket = await gate.enter(1.0)

        async def wait(name: str, seconds: float) -> None:
            try:
                mine = await gate.enter(seconds)
            except TimeoutError:
                order.append(f"{name} late")
                return
            order.append(name)
            await asyncio.sleep(0)
            gate.leave(mine)

        tasks = [asyncio.create_task(wait(name, 5.0 if name != "b" else 0.01)) for name in "abc"]
        await until_async(lambda: order == ["b late"])
        gate.leave(ticket)
        await asyncio.gather(*tasks)
        assert order == ["b late", "a", "c"]
        assert gate.in_flight == 0 and gate.idle

    asyncio.run(main())


def test_a_place_is_never_lost_to_who_is_cancelled() -> None:
    async def main() -> None:
        rng = random.Random(3)
        gate = HostLimiter(4)

        async def call() -> None:
            ticket = await gate.enter(rng.choice((0.001, 0.01, 1.0)))
            try:
                await asyncio.sleep(rng.random() / 200)
            finally:
                gate.leave(ticket)
                assert gate.in_flight >= 0

        tasks = [asyncio.create_task(call()) for _ in range(300)]
        for task in tasks:
            if rng.random() < 0.3:
                await asyncio.sleep(0.0005)
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert gate.idle

    asyncio.run(main())


def test_a_place_given_to_a_caller_that_is_cancelled_at_the_same_moment_goes_to_the_next() -> None:
    async def main() -> None:
        gate = HostLimiter(1)
        ticket = await gate.enter(1.0)
        cancelled, following = (asyncio.create_task(gate.enter(5.0)) for _ in range(2))
        await asyncio.sleep(0)  # both wait
        gate.leave(ticket)  # the first one has the place now, and has not run since
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        gate.leave(await following)
        assert gate.in_flight == 0 and gate.idle

    asyncio.run(main())


def test_signs_of_before_a_reduction_count_once() -> None:
    async def main() -> float:
        gate = HostLimiter(64)
        tickets = [await gate.enter(1.0) for _ in range(64)]
        late = tickets[:32]
        fresh = tickets[32:]
        for ticket in fresh:
            gate.leave(ticket, congested=True)
        for _ in range(32):
            late.append(await gate.enter(1.0))
        for ticket in late:
            gate.leave(ticket, congested=True)
        return gate.limit

    assert asyncio.run(main()) == 32


def test_patience_is_known_after_many_answers_and_lies_far_beyond_them() -> None:
    async def main() -> list[float | None]:
        gate, found = HostLimiter(), []
        for seconds in (0.2, 30.0):
            found.append(gate.hang_timeout())
            for _ in range(128):
                gate.leave(await gate.enter(1.0), seconds=seconds)
        return [*found, gate.hang_timeout()]

    assert asyncio.run(main()) == [None, LEAST_HANG_TIMEOUT_SECONDS, 240.0]


def test_hosts_have_gates_of_their_own_and_idle_ones_are_forgotten() -> None:
    async def main() -> None:
        throttle = ConcurrencyLimiter(2)
        gate = throttle.host("a")
        assert throttle.host("a") is gate is not throttle.host("b")
        await gate.enter(1.0)
        for index in range(3 * MOST_HOSTS):
            throttle.host(f"host{index}")
        assert throttle.host("a") is gate

    asyncio.run(main())


@pytest.mark.parametrize("limit", [1, 3])
def test_never_more_than_the_limit_at_once(limit: int) -> None:
    async def main() -> int:
        gate, most = HostLimiter(limit), 0

        async def call() -> None:
            nonlocal most
            ticket = await gate.enter(5.0)
            most = max(most, gate.in_flight)
            await asyncio.sleep(0)
            gate.leave(ticket, congested=True)

        await asyncio.gather(*(call() for _ in range(50)))
        return most

    assert asyncio.run(main()) == limit
