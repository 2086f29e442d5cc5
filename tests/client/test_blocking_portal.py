"""The blocking face: outside and inside a running loop, and how Ctrl-C ends it."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taskapp_kit.client.blocking_portal import iterate, run

ROOT = Path(__file__).parents[2]


async def told(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def raised(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


def test_a_result_and_an_error_outside_and_inside_a_loop() -> None:
    async def inside() -> None:
        assert run(told(4)) == 4
        for error in (ValueError("mine"), TimeoutError("mine")):
            with pytest.raises(type(error), match="mine"):
                run(raised(error))

    threads = threading.active_count()
    assert run(told(3)) == 3
    with pytest.raises(TimeoutError, match="mine"):
        run(raised(TimeoutError("mine")))
    asyncio.run(inside())
    assert threading.active_count() == threads


def test_the_callers_context_goes_along() -> None:
    variable = contextvars.ContextVar("variable", default=0)

    async def look() -> int:
        return variable.get()

    async def inside() -> int:
        variable.set(5)
        return run(look())

    assert asyncio.run(inside()) == 5


def test_a_cancelled_caller_cancels_what_it_waits_for() -> None:
    """As a first Ctrl-C under asyncio.run does it: the loop stands still, and the task is cancelled from outside."""
    ended: list[str] = []
    started = threading.Event()

    async def hang() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    async def inside() -> None:
        task = asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            started.wait(30)
            task.cancel()

        threading.Thread(target=cancel).start()
        run(hang())

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(inside())
    assert ended == ["cancelled"]


def test_an_iteration_outside_and_inside_a_loop_and_left_early() -> None:
    closed: list[int] = []

    async def count() -> AsyncIterator[int]:
        try:
            for number in range(200):
                yield number
        finally:
            closed.append(1)

    async def breaks() -> AsyncIterator[int]:
        yield 1
        raise ValueError("mine")

    async def inside() -> None:
        assert list(iterate(count)) == list(range(200))

    assert list(iterate(count)) == list(range(200))
    asyncio.run(inside())
    for number in iterate(count):
        if number == 3:
            break
    got = []
    with pytest.raises(ValueError, match="mine"):
        for number in iterate(breaks):
            got.append(number)
    assert got == [1]
    assert len(closed) == 3


PROGRAM = """
import asyncio, sys
from taskapp_kit.client.blocking_portal import iterate, run

async def hang():
    print("waiting", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        print("cancelled", flush=True)

async def stream():
    yield await hang()

def plain(): run(hang())
def listed(): list(iterate(stream))
async def inside(): plain()
async def inside_listed(): listed()
how = {"plain": plain, "listed": listed, "inside": lambda: asyncio.run(inside()),
       "inside_listed": lambda: asyncio.run(inside_listed())}[sys.argv[1]]
try:
    how()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize("how", ["plain", "listed", "inside", "inside_listed"])
def test_one_ctrl_c_is_enough(how: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,  # noqa: PLW1509
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert rest.splitlines() == ["cancelled", "interrupted"]
