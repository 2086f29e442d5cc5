"""Threads that rollouts share: when they do, one thread for all calls of a rollout, and what a blocked one fails."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial

import pytest

from taskapp_kit.rollout.executors.shared_threads import BUSY_SECONDS, MEASURED_CALLS, SharedThread, SharedThreads
from taskapp_kit.rollout.executors.threads import Job, PinnedThreads, ThreadBlocked, ThreadHung
from tests.waiting import until_async

pytestmark = pytest.mark.anyio


def nothing(reason: str) -> None: ...


GIVEN_UP = pytest.mark.parametrize(
    ("given_up", "blocked_seconds"),
    [(True, 10.0), (False, 0.2)],
    ids=["given up at its deadline", "longer than is allowed"],
)


async def ident(thread: SharedThread) -> int:
    return await thread.call(threading.get_ident, seconds=5, stop=nothing)


async def measured(shared: SharedThreads, environment: str = "quick") -> None:
    """Make enough quick calls for the environment to share threads."""
    thread = await shared.open(environment, seconds=5)
    for _ in range(MEASURED_CALLS):
        await ident(thread)
    thread.close()


@pytest.fixture
def blocked_seconds() -> float:
    return 10.0


@pytest.fixture
def pool() -> Iterator[PinnedThreads]:
    made = PinnedThreads(64, grace_seconds=0.05)
    yield made
    made.close()


@pytest.fixture
def unmeasured(pool: PinnedThreads, blocked_seconds: float) -> SharedThreads:
    return SharedThreads(pool, count=2, blocked_seconds=blocked_seconds)


@pytest.fixture
async def shared(unmeasured: SharedThreads) -> SharedThreads:
    """Two threads that rollouts of the environment `quick` share."""
    await measured(unmeasured)
    return unmeasured


async def test_a_thread_for_each_rollout_until_enough_calls_were_quick(unmeasured: SharedThreads) -> None:
    before = [await unmeasured.open("quick", seconds=5) for _ in range(8)]
    assert len({await ident(thread) for thread in before}) == 8
    assert not any(thread.is_shared for thread in before)
    await measured(unmeasured)
    after = [await unmeasured.open("quick", seconds=5) for _ in range(8)]
    assert all(thread.is_shared for thread in after)
    assert len({await ident(thread) for thread in after}) == 2
    other = await unmeasured.open("other", seconds=5)
    assert not other.is_shared


async def test_all_calls_of_a_rollout_come_from_one_thread_and_see_one_context(shared: SharedThreads) -> None:
    number: ContextVar[int] = ContextVar("number")

    threads = [await shared.open("quick", seconds=5) for _ in range(16)]

    async def rollout(own: int, thread: SharedThread) -> set[int]:
        seen = {await ident(thread)}
        await thread.call(lambda: number.set(own), seconds=5, stop=nothing)
        for _ in range(20):
            assert await thread.call(number.get, seconds=5, stop=nothing) == own
            seen.add(await ident(thread))
        thread.close()
        return seen

    idents = await asyncio.gather(*(rollout(own, thread) for own, thread in enumerate(threads)))
    assert all(len(each) == 1 for each in idents)
    assert len(set.union(*idents)) == 2


async def test_slow_call_ends_sharing_and_busy_thread_gets_no_rollout(shared: SharedThreads) -> None:
    one, two = [await shared.open("quick", seconds=5) for _ in range(2)]
    release = threading.Event()
    slow = asyncio.create_task(one.call(lambda: release.wait(10), seconds=20, stop=nothing))
    busy = await ident(two)
    await asyncio.sleep(BUSY_SECONDS * 2)
    beside = await shared.open("quick", seconds=5)
    assert beside.is_shared
    assert await ident(beside) == busy
    await asyncio.sleep(0.6)
    release.set()
    assert await slow
    alone = await shared.open("quick", seconds=5)
    assert not alone.is_shared


@GIVEN_UP
async def test_a_blocked_thread_fails_the_others_counts_once_and_is_used_again(
    pool: PinnedThreads, shared: SharedThreads, given_up: bool
) -> None:
    threads = [await shared.open("quick", seconds=5) for _ in range(6)]
    release = threading.Event()
    blocker = asyncio.create_task(
        threads[0].call(lambda: release.wait(10), seconds=0.1 if given_up else 60, stop=nothing)
    )
    neighbours = [threads[2], threads[4]]
    waiting = [asyncio.create_task(thread.call(lambda: 7, seconds=30, stop=nothing)) for thread in neighbours]
    if given_up:
        with pytest.raises(ThreadHung):
            await blocker
        threads[0].close()
    for task in waiting:
        with pytest.raises(ThreadBlocked):
            await task
    with pytest.raises(ThreadBlocked):
        await threads[2].call(lambda: 7, seconds=30, stop=nothing)
    closed: list[int] = []
    for thread in neighbours:
        thread.post(lambda: closed.append(threading.get_ident()))
        thread.close()
    assert pool.hung == (1 if given_up else 0), "threads are counted, not rollouts"
    for thread in (threads[1], threads[3], threads[5]):
        assert await thread.call(lambda: 7, seconds=5, stop=nothing) == 7, "the other thread goes on"
    alone = await shared.open("quick", seconds=5)
    assert not alone.is_shared
    release.set()
    if not given_up:
        assert await blocker is True
        assert await threads[0].call(lambda: 7, seconds=5, stop=nothing) == 7, "it goes on alone"
        threads[0].close()
    await until_async(lambda: pool.hung == 0 and len(closed) == 2)
    assert len(set(closed)) == 1
    await measured(shared)
    assert not (await shared.open("quick", seconds=5)).is_shared, "it never shares again"


async def test_cancelled_call_does_not_lose_its_thread(pool: PinnedThreads, shared: SharedThreads) -> None:
    threads = [await shared.open("quick", seconds=5) for _ in range(4)]
    task = asyncio.create_task(threads[0].call(lambda: time.sleep(0.02), seconds=5, stop=nothing))
    await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    threads[0].close()
    assert await threads[2].call(lambda: 7, seconds=5, stop=nothing) == 7
    await asyncio.sleep(0.1)
    assert await threads[2].call(lambda: 7, seconds=5, stop=nothing) == 7
    for thread in threads[1:]:
        thread.close()
    assert pool.hung == 0


async def test_a_posted_job_sees_the_context_of_its_rollout_too(shared: SharedThreads) -> None:
    number: ContextVar[int] = ContextVar("number", default=0)

    threads = [await shared.open("quick", seconds=5) for _ in range(4)]
    seen: dict[int, int] = {}
    for own, thread in enumerate(threads, start=1):
        await thread.call(partial(number.set, own), seconds=5, stop=nothing)
    for own, thread in enumerate(threads, start=1):
        thread.post(lambda own=own: seen.update({own: number.get()}))  # type: ignore[misc]
        thread.close()
        thread.post(lambda: seen.update({0: 0}))
    await until_async(lambda: len(seen) == 4)
    assert seen == {1: 1, 2: 2, 3: 3, 4: 4}


async def test_each_rollout_has_its_own_current_event_loop(shared: SharedThreads) -> None:
    def own_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        return loop

    threads = [await shared.open("quick", seconds=5) for _ in range(4)]
    loops = [await thread.call(own_loop, seconds=5, stop=nothing) for thread in threads]
    for thread, loop in zip(threads, loops, strict=True):
        assert await thread.call(asyncio.get_event_loop, seconds=5, stop=nothing) is loop
        loop.close()
    later = await shared.open("quick", seconds=5)
    with pytest.raises(RuntimeError):
        await later.call(asyncio.get_event_loop, seconds=5, stop=nothing)


@GIVEN_UP
async def test_blocking_call_in_a_dedicated_thread_ends_sharing_for_good(
    unmeasured: SharedThreads, given_up: bool
) -> None:
    alone = await unmeasured.open("quick", seconds=5)
    await measured(unmeasured)
    assert unmeasured.is_quick("quick")
    release = threading.Event()
    blocks = alone.call(lambda: release.wait(0.3 if not given_up else 10), seconds=0.1 if given_up else 9, stop=nothing)
    if given_up:
        with pytest.raises(ThreadHung):
            await blocks
    else:
        await blocks
    alone.close()
    await measured(unmeasured)
    assert not unmeasured.is_quick("quick")
    release.set()


async def test_calls_can_be_measured_apart(unmeasured: SharedThreads) -> None:
    thread = await unmeasured.open("quick", seconds=5)
    for _ in range(MEASURED_CALLS):
        await thread.call(lambda: None, seconds=5, stop=nothing, work="scoring")
    assert unmeasured.is_quick("scoring")
    assert not unmeasured.is_quick("quick")


async def soon(thread: SharedThread, function: Callable[[], object]) -> Job:
    """Run a job with `SharedThread.soon`, and return it at its end."""
    ended: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
    assert thread.soon(function, ended.set_result)
    return await ended


async def test_calls_of_one_tick_run_in_their_rollouts_thread_and_context(
    pool: PinnedThreads, shared: SharedThreads
) -> None:
    number: ContextVar[int] = ContextVar("number")

    threads = [await shared.open("quick", seconds=5) for _ in range(8)]
    homes = [await ident(thread) for thread in threads]
    for own, thread in enumerate(threads):
        await thread.call(partial(number.set, own), seconds=5, stop=nothing)
    jobs = await asyncio.gather(*(soon(thread, lambda: (threading.get_ident(), number.get())) for thread in threads))
    assert [job.result for job in jobs] == [(home, own) for own, home in enumerate(homes)]
    (failed,) = await asyncio.gather(soon(threads[0], lambda: 1 // 0))
    assert isinstance(failed.future.exception(), ZeroDivisionError)
    for thread in threads:
        thread.close()
    assert len(pool._idle) == 2, "the pool has them again"


async def test_the_event_loop_does_not_wait_for_a_call_that_turns_out_long(shared: SharedThreads) -> None:
    thread = await shared.open("quick", seconds=5)
    release = threading.Event()
    long = asyncio.create_task(soon(thread, lambda: release.wait(10)))
    await asyncio.sleep(0.02)  # which the blocked loop could not
    assert not long.done()
    assert not thread.soon(threading.get_ident, lambda _: None), "the next ones go the other way"
    release.set()
    assert (await long).result is True
    assert await ident(thread)
    thread.close()


async def test_a_call_whose_rollout_left_is_not_begun(shared: SharedThreads) -> None:
    one, two = [await shared.open("quick", seconds=5) for _ in range(2)]
    begun: list[str] = []
    left = asyncio.create_task(soon(one, lambda: begun.append("left")))
    stayed = asyncio.create_task(soon(two, lambda: begun.append("stayed")))
    await asyncio.sleep(0)
    one.close()
    assert (await left).future.cancelled()
    assert (await stayed).future.done()
    assert begun == ["stayed"]
    two.close()
