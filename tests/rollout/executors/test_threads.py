"""Threads for environments: one thread for the calls of one rollout, hung ones given up and counted, nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import decimal
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from taskapp_kit.rollout.executors.threads import NoFreeThread, PinnedThreads, ThreadHung
from tests.waiting import until_async

pytestmark = pytest.mark.anyio
MakePool = Callable[..., PinnedThreads]


def nothing(reason: str) -> None: ...


@pytest.fixture
def pool_of() -> Iterator[MakePool]:
    """Makes pools of threads, which are closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(count: int, **options: float) -> PinnedThreads:
            pool = PinnedThreads(count, **options)
            stack.callback(pool.close)
            return pool

        yield make


async def test_a_job_runs_in_a_thread_and_the_thread_is_used_again(pool_of: MakePool) -> None:
    threads = pool_of(2)
    names = [await threads.run(lambda: threading.current_thread().name, seconds=5, stop=nothing) for _ in range(3)]
    assert len(set(names)) == 1
    assert names[0] != threading.current_thread().name


async def test_all_calls_of_a_pinned_thread_come_from_one_thread(pool_of: MakePool) -> None:
    threads = pool_of(4)
    one, two = await threads.open(), await threads.open()
    idents: list[list[int]] = [[], []]
    for _ in range(5):
        for which, thread in enumerate((one, two)):
            idents[which].append(await thread.call(threading.get_ident, seconds=5, stop=nothing))
    assert len(set(idents[0])) == len(set(idents[1])) == 1
    assert idents[0] != idents[1]
    one.close()
    one.close()
    two.close()


async def test_no_more_threads_than_the_pool_has_run_at_once(pool_of: MakePool) -> None:
    threads, lock, running, most = pool_of(3), threading.Lock(), [0], [0]

    def job() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.01)
        with lock:
            running[0] -= 1

    await asyncio.gather(*(threads.run(job, seconds=5, stop=nothing) for _ in range(12)))
    assert most[0] == 3


@pytest.mark.parametrize(
    ("raised", "seen"), [(KeyError("x"), KeyError), (StopIteration(), RuntimeError), (SystemExit(3), RuntimeError)]
)
async def test_exception_of_a_job_reaches_the_caller_and_not_the_loop(
    raised: BaseException, seen: type[BaseException], pool_of: MakePool
) -> None:
    threads = pool_of(1)

    def job() -> None:
        raise raised

    with pytest.raises(seen):
        await threads.run(job, seconds=5, stop=nothing)
    assert await threads.run(lambda: 7, seconds=5, stop=nothing) == 7


async def test_job_that_obeys_stop_returns_after_its_deadline(pool_of: MakePool) -> None:
    threads, stopped = pool_of(1, grace_seconds=2), threading.Event()
    assert await threads.run(lambda: stopped.wait(5), seconds=0.02, stop=lambda _: stopped.set()) is True
    assert threads.hung == 0


async def test_a_job_that_does_not_is_given_up_counted_and_taken_back_when_it_ends(pool_of: MakePool) -> None:
    threads, release = pool_of(2, grace_seconds=0.02), threading.Event()
    with pytest.raises(ThreadHung):
        await threads.run(lambda: release.wait(10), seconds=0.02, stop=nothing)
    assert threads.hung == 1
    assert await threads.run(lambda: 7, seconds=5, stop=nothing) == 7, "the others go on"
    release.set()
    await until_async(lambda: threads.hung == 0)
    again = [threads.run(lambda: 1, seconds=5, stop=nothing) for _ in range(4)]
    assert await asyncio.gather(*again) == [1] * 4


@pytest.mark.parametrize("obeys", [True, False])
async def test_cancelled_callers_job_is_stopped_or_leaves_a_hung_thread(pool_of: MakePool, obeys: bool) -> None:
    threads, release, started = pool_of(1, grace_seconds=1 if obeys else 0.02), threading.Event(), threading.Event()

    def job() -> None:
        started.set()
        release.wait(10)

    stop = (lambda _: release.set()) if obeys else nothing
    task = asyncio.create_task(threads.run(job, seconds=60, stop=stop))
    await until_async(started.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert release.is_set() is obeys
    if not obeys:
        await until_async(lambda: threads.hung == 1)
        release.set()
        await until_async(lambda: threads.hung == 0)
    assert threads.hung == 0
    assert await threads.run(lambda: 7, seconds=5, stop=nothing) == 7


async def test_queued_job_fails_at_its_deadline(pool_of: MakePool) -> None:
    threads, release = pool_of(1, grace_seconds=0.02), threading.Event()
    began = threading.Event()
    first = asyncio.create_task(threads.run(lambda: began.set() or release.wait(10), seconds=60, stop=nothing))
    await until_async(began.is_set)
    with pytest.raises(NoFreeThread, match="1 threads"):
        await threads.run(lambda: 7, seconds=0.05, stop=nothing)
    waiting = asyncio.create_task(threads.run(lambda: 7, seconds=5, stop=nothing))
    release.set()
    assert await first is True
    assert await waiting == 7


async def test_an_idle_thread_keeps_nothing_of_its_last_job(pool_of: MakePool) -> None:
    class Big:
        pass

    threads = pool_of(1)
    gc.disable()  # what is left in a cycle stays until the collector comes
    try:
        kept = weakref.ref(await threads.run(Big, seconds=5, stop=nothing))
        await until_async(lambda: kept() is None)
    finally:
        gc.enable()


async def test_threads_end_with_the_pool() -> None:
    threads = PinnedThreads(3)
    thread = await threads.run(threading.current_thread, seconds=5, stop=nothing)
    threads.close()
    await until_async(lambda: not thread.is_alive())


async def test_the_wait_for_a_thread_counts_against_the_deadline(pool_of: MakePool) -> None:
    """The waiting job is stopped 1 s after it was asked for, not 1 s after it began: before the mark between the two."""

    loop, threads = asyncio.get_running_loop(), pool_of(1, grace_seconds=20)
    release, stopped, happened = threading.Event(), threading.Event(), list[str]()

    def stop(reason: str) -> None:
        happened.append(reason)
        stopped.set()

    first = asyncio.create_task(threads.run(lambda: release.wait(20), seconds=30, stop=nothing))
    await asyncio.sleep(0)
    loop.call_later(0.8, release.set)
    loop.call_later(1.4, happened.append, "mark")
    assert await threads.run(lambda: stopped.wait(20), seconds=1, stop=stop) is True
    await first
    await until_async(lambda: "mark" in happened)
    assert happened == ["timeout", "mark"]


async def test_uses_of_one_thread_do_not_see_each_others_context(pool_of: MakePool) -> None:
    threads = pool_of(1)

    def digits() -> tuple[int, int]:
        before = decimal.getcontext().prec
        decimal.getcontext().prec = 5
        return threading.get_ident(), before

    (one, before), (two, after) = [await threads.run(digits, seconds=5, stop=nothing) for _ in range(2)]
    assert one == two
    assert before == after != 5
