"""Work on the loop of services from other loops and threads."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskapp_kit.services.loop import on_services_loop, services_loop
from tests.waiting import until

variable = contextvars.ContextVar("variable", default=0)


async def double(value: int) -> int:
    assert asyncio.get_running_loop() is services_loop()
    await asyncio.sleep(0)
    return 2 * value


def test_each_caller_of_each_loop_gets_its_own_result() -> None:
    async def caller(number: int) -> None:
        for each in range(number, number + 50):
            assert await on_services_loop(double(each)) == 2 * each

    async def callers(number: int) -> None:
        await asyncio.gather(*(caller(number + 100 * each) for each in range(8)))

    with ThreadPoolExecutor(4) as threads:
        for ended in [threads.submit(asyncio.run, callers(1000 * each)) for each in range(4)]:
            ended.result()


def test_exception_reaches_only_its_caller() -> None:
    async def failing() -> int:
        raise ValueError("its own")

    async def both() -> tuple[int | BaseException, int | BaseException]:
        return await asyncio.gather(on_services_loop(failing()), on_services_loop(double(1)), return_exceptions=True)

    failed, done = asyncio.run(both())
    assert isinstance(failed, ValueError) and str(failed) == "its own"
    assert done == 2


def test_work_sees_its_callers_context() -> None:
    async def seen() -> int:
        return variable.get()

    async def caller(number: int) -> None:
        variable.set(number)
        assert await on_services_loop(seen()) == number

    async def callers() -> None:
        await asyncio.gather(*(caller(number) for number in range(20)))

    asyncio.run(callers())


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_cancelling_the_caller_cancels_the_work(begun: bool) -> None:
    entered, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def caller() -> None:
        running = asyncio.ensure_future(on_services_loop(work()))
        await asyncio.sleep(0)
        if begun:
            assert await asyncio.to_thread(entered.wait, 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(caller())
    asyncio.run(on_services_loop(double(1)))  # the loop has got there
    assert not entered.is_set() or cancelled.wait(10)


def collected(loop: weakref.ref[asyncio.AbstractEventLoop]) -> None:
    def is_gone() -> bool:
        gc.collect()
        return loop() is None

    until(is_gone, what="the loop is collected")


def test_work_that_ends_after_its_callers_loop_is_forgotten() -> None:
    go, entered = threading.Event(), threading.Event()

    async def late() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(go.wait, 10)

    async def caller() -> weakref.ref[asyncio.AbstractEventLoop]:
        running = asyncio.ensure_future(on_services_loop(late()))
        assert await asyncio.to_thread(entered.wait, 10)
        running.cancel()
        return weakref.ref(asyncio.get_running_loop())

    ended = asyncio.run(caller())
    go.set()
    assert asyncio.run(on_services_loop(double(3))) == 6
    collected(ended)


def test_a_loop_that_has_ended_is_not_kept_alive() -> None:
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(on_services_loop(double(1))) == 2
    loop.close()
    ended = weakref.ref(loop)
    del loop
    collected(ended)
