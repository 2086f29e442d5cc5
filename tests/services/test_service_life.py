"""Services: what races with an end, a restart, a cancelled caller; the same on both backends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.declare.discovery import load_file
from taskapp_kit.errors import BadArgument, CallTimeout, EndpointRaised, ServiceError
from tests.services.backends import both, of
from tests.waiting import until_async

actors = load_file(Path(__file__).with_name("actors.py"))
Counter, Steps = actors.Counter, actors.Steps

pytestmark = pytest.mark.anyio


@pytest.mark.ci
@both
async def test_a_synchronous_call_whose_caller_left_keeps_its_place(backend: Any, tmp_path: Path) -> None:
    mark = tmp_path / "done"
    async with of(Counter, backend, 2).as_service() as service:
        pids = set(await service.pid.fanout())
        left = asyncio.create_task(service.block.route(2.0, str(mark)))
        await until_async(lambda: service.stats().calls == 3)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        others = {await service.pid.route() for _ in range(4)}
        assert len(others) == 1  # none waits behind it
        assert sum(each.in_flight for each in service.stats().replicas) == 1
        await until_async(mark.exists)
        await until_async(lambda: not any(each.in_flight for each in service.stats().replicas))
        assert set(await service.pid.fanout()) == pids


@pytest.mark.ci
@both
async def test_a_call_that_takes_too_long_ends_and_so_does_a_process_that_goes_on(backend: Any) -> None:
    async with of(Counter, backend, call_seconds=0.5).as_service() as service:
        first = await service.pid.route()
        with pytest.raises(CallTimeout):
            await service.sleep.route(60.0)  # it can be cancelled, and its replica lives
        assert await service.pid.route() == first
        for method in (service.block, service.stubborn):
            with pytest.raises(TimeoutError):
                await method.route(60.0)
        second = await service.pid.route()
        assert second != first
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(service.block.route(60.0), 0.1)  # its caller left
        assert await service.pid.route() != second


@both
async def test_odd_exceptions_are_answers(backend: Any) -> None:
    async with of(Counter, backend).as_service() as service:
        pid = await service.pid.route()
        for kind, reported in (
            ("StopIteration", "RuntimeError"),
            ("Cancelled", "CancelledError"),
            ("NoText", "NoTextError"),
        ):
            with pytest.raises(EndpointRaised) as raised:
                await service.raise_odd.route(kind)
            assert raised.value.error_type == reported
        assert await service.pid.route() == pid


@both
async def test_a_fanout_of_state_that_all_refuse_is_taken_back(backend: Any) -> None:
    async with of(Counter, backend, 2).as_service() as service:
        assert await service.update.fanout(1) == [1, 1]
        pids = await service.pid.fanout()
        with pytest.raises(EndpointRaised):
            await service.update.fanout(-1)
        assert await service.pid.fanout() == pids
        os.kill(pids[0], signal.SIGKILL)
        await until_async(lambda: service.stats().ready == 2 and sum(r.restarts for r in service.stats().replicas) == 1)
        assert await service.current.fanout() == [1, 1]


@pytest.mark.ci
@both
async def test_a_replica_that_dies_while_it_gets_its_state_is_started_once_more(backend: Any, tmp_path: Path) -> None:
    mark = tmp_path / "dies"
    async with of(Counter, backend, 1).as_service() as service:
        assert await service.update.fanout(3, dies_once=str(mark)) == [3]
        mark.touch()
        os.kill(await service.pid.route(), signal.SIGKILL)
        await until_async(lambda: not mark.exists())
        assert await service.current.route() == 3
        assert [each.restarts for each in service.stats().replicas] == [1]


@both
async def test_a_session_whose_opening_is_cancelled_is_closed(backend: Any, tmp_path: Path) -> None:
    mark = tmp_path / "closed"
    async with of(Steps, backend).as_service(str(mark), seconds=0.5) as service:

        async def use() -> None:
            async with service.session():
                pass

        opening = asyncio.create_task(use())
        await until_async(lambda: service.stats().calls == 1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await until_async(mark.exists)
        await until_async(lambda: service.stats().replicas[0].sessions == 0)
        async with service.session() as session:
            assert await session.step.route() == 1


@both
async def test_those_that_wait_for_the_start_of_a_service_get_an_error_when_it_is_closed(backend: Any) -> None:
    service = of(Counter, backend).as_service()
    waiting = [asyncio.create_task(service.pid.route()) for _ in range(3)]
    await asyncio.sleep(0)  # they begin
    await service.aclose()
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, ServiceError), outcome


@pytest.mark.process
async def test_too_large_file_is_rejected_with_its_name() -> None:
    async with of(Counter, "local").as_service() as service:
        with pytest.raises(EndpointRaised, match="bytes"):
            await service.echo_bytes.route(200 * 1024 * 1024)  # a third more in base64
        with pytest.raises(BadArgument, match="cannot be sent"):
            await service.block.route(bytes(200 * 1024 * 1024))
        assert await service.echo_bytes.route(3) == bytes(3)
