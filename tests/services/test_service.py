"""Services: calls, fanout, sessions, failures, restarts; the same on both backends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import Counter as Counts
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.declare.discovery import load_file
from taskapp_kit.errors import BadArgument, EndpointRaised, ReplicaDied, ReplicaStartFailed, Saturated, ServiceError
from taskapp_kit.services import ServiceHandle
from tests.services.backends import both, of
from tests.waiting import alive, until_async

ROOT = Path(__file__).resolve().parents[2]
ACTORS = Path(__file__).with_name("actors.py")

actors = load_file(ACTORS)  # in an environment with opensimplex, no other process can import a module of `tests`
Counter, Heavy, NoEndpoint, Point, Reserved, Steps, Vanishing = (
    actors.Counter, actors.Heavy, actors.NoEndpoint, actors.Point, actors.Reserved, actors.Steps, actors.Vanishing,
)  # fmt: skip

pytestmark = pytest.mark.anyio


async def all_ready(service: ServiceHandle) -> None:
    await until_async(lambda: service.stats().ready == len(service.stats().replicas), what="all replicas are ready")


@both
async def test_calls_go_to_instances_made_with_the_given_arguments(backend: Any) -> None:
    async with of(Counter, backend, 2).as_service(start=3) as counter:
        assert await counter.add.route(2) == 5
        assert await counter.add.fanout(0) in ([5, 3], [3, 5])
        values, named = await counter.echo.route(Point((1.0, 2.0), "a"), b"\0", key=(None, 2**70))
        assert values == (Point((1.0, 2.0), "a"), b"\0")
        assert named == {"key": (None, 2**70)}


@pytest.mark.ci
@both
async def test_the_least_loaded_replica_gets_the_call(backend: Any) -> None:
    async with of(Counter, backend, 3).as_service() as counter:
        pids = await asyncio.gather(*(counter.sleep.route(0.3) for _ in range(6)))
        assert sorted(Counts(pids).values()) == [2, 2, 2]
        stats = counter.stats()
        assert [each.calls for each in stats.replicas] == [2, 2, 2]
        assert stats.latency_ms_median is not None and stats.latency_ms_p99 is not None


@pytest.mark.ci
@both
async def test_an_instance_does_as_many_calls_at_once_as_allowed(backend: Any) -> None:
    async with (
        of(Counter, backend, 1).as_service() as one,
        of(Counter, backend, 1, concurrent_calls=3).as_service() as many,
    ):
        for service, most in ((one, 1), (many, 3)):
            await asyncio.gather(*(service.sleep.route(0.05) for _ in range(6)))
            assert await service.most_at_once.route() == most
        blocked = await asyncio.gather(*(many.block.route(0.02) for _ in range(3)))
        assert max(blocked) == 3  # the asynchronous ones before; synchronous ones never meet:
        threads = await asyncio.gather(*(many.thread.route() for _ in range(5)))
        assert len(set(threads)) == 1


@both
async def test_exception_of_a_method_is_raised_with_type_and_message(backend: Any) -> None:
    async with of(Counter, backend, 1).as_service() as counter:
        with pytest.raises(EndpointRaised) as raised:
            await counter.fail.route("no such row")
        assert raised.value.error_type == "KeyError"
        assert "no such row" in raised.value.error_text
        assert "in fail" in raised.value.traceback
        with pytest.raises(EndpointRaised):
            await counter.leave.route()
        with pytest.raises(EndpointRaised) as unsendable:
            await counter.unsendable.route()
        assert unsendable.value.error_type == "BadArgument"
        with pytest.raises(EndpointRaised) as missing:
            await counter.add.route()
        assert missing.value.error_type == "TypeError"
        assert await counter.add.route(1) == 1  # the replica goes on
        assert counter.stats().replicas[0].restarts == 0


@both
async def test_a_replica_that_dies_is_made_again_and_its_call_fails_by_name(backend: Any) -> None:
    async with of(Counter, backend, 2).as_service() as counter:
        with pytest.raises(ReplicaDied):
            await counter.die.route()
        await all_ready(counter)
        assert sum(each.restarts for each in counter.stats().replicas) == 1
        assert len(set(await counter.pid.fanout())) == 2


@both
async def test_a_call_that_may_be_repeated_is_done_by_another_replica(backend: Any, tmp_path: Path) -> None:
    async with of(Counter, backend, 2).as_service() as counter:
        assert await counter.die_once.route(str(tmp_path / "died")) > 0
        assert counter.stats().retried == 1
    async with of(Counter, backend, 1).as_service() as alone:  # by the same one, once it is made again
        assert await alone.die_once.route(str(tmp_path / "alone")) > 0


@pytest.mark.ci
@both
async def test_no_call_that_may_be_repeated_is_lost_when_replicas_are_killed(backend: Any) -> None:
    async with of(Counter, backend, 3, concurrent_calls=4).as_service() as counter:
        calls = [asyncio.create_task(counter.sleep.route(0.02)) for _ in range(200)]
        pid = await counter.pid.route()
        os.kill(pid, signal.SIGKILL)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [each for each in outcomes if isinstance(each, BaseException)] == []
        await all_ready(counter)
        assert pid not in await counter.pid.fanout()


@both
async def test_fanout_returns_results_in_order_with_none_for_failures(backend: Any) -> None:
    async with of(Counter, backend, 3).as_service() as counter:
        pids = await counter.pid.fanout()
        assert pids == await counter.pid.fanout()
        os.kill(pids[1], signal.SIGKILL)
        await until_async(lambda: counter.stats().replicas[1].state != "ready", what="its end is noticed")
        found = await counter.pid.fanout()
        assert (found[0], found[2]) == (pids[0], pids[2])
        assert found[1] != pids[1]
        with pytest.raises(EndpointRaised):  # no replica has done it
            await counter.fail.fanout("no")


@both
async def test_a_new_replica_has_the_last_state_before_it_serves(backend: Any) -> None:
    async with of(Counter, backend, 2).as_service() as counter:
        assert await counter.update.fanout(1) == [1, 1]
        assert await counter.update.fanout(2) == [2, 2]
        for pid in await counter.pid.fanout():
            os.kill(pid, signal.SIGKILL)
        later = asyncio.create_task(counter.update.fanout(3))  # one may reach a replica that is being made
        with_state = [await counter.current.route() for _ in range(4)]
        assert set(with_state) <= {2, 3}
        with contextlib.suppress(ReplicaDied):  # both were being made, and get it when they are
            await later
        await all_ready(counter)
        assert await counter.current.fanout() == [3, 3]


@pytest.mark.ci
@both
async def test_a_replica_that_cannot_have_the_state_does_not_serve_without_it(backend: Any) -> None:
    async with of(Counter, backend, 2).as_service() as counter:
        await counter.update.fanout(1)
        first, second = await counter.pid.fanout()
        assert await counter.update.fanout(2, fails_in=second) == [2, None]
        await all_ready(counter)
        assert await counter.current.fanout() == [2, 2]
        assert (await counter.pid.fanout())[0] == first


@pytest.mark.ci
@both
async def test_a_caller_that_gives_up_cancels_what_can_be_cancelled(backend: Any) -> None:
    async with of(Counter, backend, 1, concurrent_calls=2).as_service() as counter:
        pid = await counter.pid.route()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(counter.sleep.route(60), 0.3)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(counter.block.route(0.6), 0.3)
        assert await counter.pid.route() == pid
        assert await counter.add.route(1) == 1
        await until_async(lambda: counter.stats().replicas[0].in_flight == 0, what="no call is under way")


@pytest.mark.ci
@both
async def test_more_calls_than_may_wait_are_refused(backend: Any) -> None:
    async with of(Counter, backend, 1, max_waiting=2, queue_seconds=0.4).as_service() as counter:
        calls = [asyncio.create_task(counter.sleep.route(1.0)) for _ in range(4)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        refused = [each for each in outcomes if isinstance(each, Saturated)]
        assert len(refused) == 3  # one for the length of the line, two for their time in it
        assert counter.stats().waiting == 0


@both
async def test_each_session_has_its_own_instance(backend: Any, tmp_path: Path) -> None:
    mark = tmp_path / "closed"
    async with of(Steps, backend, 2).as_service(mark=str(mark)) as steps:
        async with steps.session() as one, steps.session() as other:
            assert [await one.step.route(), await one.step.route(), await other.step.route()] == [1, 2, 1]
            assert await one.pid.route() != await other.pid.route()
        assert mark.exists()
        async with steps.session() as third:
            assert await third.step.route() == 1
        with pytest.raises(ServiceError):
            await third.step.route()
        with pytest.raises(ServiceError):
            await steps.step.route()
        with pytest.raises(ServiceError):
            await steps.step.fanout()
        with pytest.raises(ServiceError):
            _ = steps.session().step


@both
async def test_a_session_waits_for_a_place(backend: Any) -> None:
    async with of(Steps, backend, 1, sessions_per_replica=2, queue_seconds=0.3).as_service() as steps:
        async with steps.session(), steps.session() as second:
            with pytest.raises(Saturated):
                async with steps.session():
                    pass
            assert await second.step.route() == 1
        async with steps.session() as free:
            assert await free.step.route() == 1
        assert [each.sessions for each in steps.stats().replicas] == [0]


@both
async def test_a_session_ends_with_its_replica(backend: Any) -> None:
    async with of(Steps, backend, 2).as_service() as steps:
        async with steps.session() as session, steps.session() as other:
            await session.step.route()
            with pytest.raises(ReplicaDied):
                await session.die.route()
            with pytest.raises(ReplicaDied):
                await session.step.route()
            assert await other.step.route() == 1
        async with steps.session() as again:
            assert await again.step.route() == 1


@both
async def test_a_session_whose_instance_cannot_be_made_is_not_opened(backend: Any) -> None:
    async with of(Steps, backend, 1).as_service(refuse="no such file") as steps:
        for _ in range(2):
            with pytest.raises(EndpointRaised) as raised:
                async with steps.session():
                    pass
            assert "no such file" in raised.value.message
        assert steps.stats().replicas[0].sessions == 0


@both
async def test_a_session_without_state_stays_with_a_replica_and_moves_when_that_ends(backend: Any) -> None:
    async with of(Counter, backend, 2).as_service() as counter, counter.session() as session:
        pids = {await session.pid.route() for _ in range(5)}
        assert len(pids) == 1
        os.kill(pids.pop(), signal.SIGKILL)
        await until_async(lambda: counter.stats().ready == 1, what="its end is noticed")
        assert await session.pid.route() in await counter.pid.fanout()


@both
async def test_a_service_whose_class_cannot_be_made_does_not_start(backend: Any) -> None:
    service = of(Counter, backend, 2).as_service(refuse="no such model")
    with pytest.raises(ReplicaStartFailed) as raised:
        await service.start()
    assert "no such model" in raised.value.message
    with pytest.raises(ReplicaStartFailed):
        await service.add.route(1)
    await service.aclose()
    with pytest.raises(ServiceError):
        await service.add.route(1)


@both
async def test_a_replica_has_its_variables_and_is_set_up_before_instances(backend: Any) -> None:
    async with of(Heavy, backend, 1, environment={"GIVEN": "yes"}).as_service() as heavy:
        assert await heavy.was.route() is True
        assert await heavy.variable.route("GIVEN") == "yes"


@both
async def test_blocking_call_needs_a_separate_thread(backend: Any) -> None:
    async with of(Counter, backend, 1).as_service() as counter:
        assert await asyncio.to_thread(counter.add.route_sync, 4) == 4
        with pytest.raises(ServiceError):
            counter.add.route_sync(1)


@pytest.mark.process
def test_a_service_is_used_from_several_event_loops_and_threads() -> None:
    with of(Counter, "local", 1).as_service() as counter:
        assert asyncio.run(counter.add.route(1)) == 1
        assert asyncio.run(counter.add.route(1)) == 2
        found: list[int] = []
        threads = [threading.Thread(target=lambda: found.append(counter.add.route_sync(1))) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == [3, 4, 5, 6, 7]


@pytest.mark.process
async def test_replicas_have_no_key_of_a_server(tmp_path: Path) -> None:
    script = _script(
        tmp_path,
        "async with Counter.as_service() as counter:",
        "    print(await counter.variable.route('ENVIRONMENT_API_KEY'))",
    )
    assert _ran(script, ENVIRONMENT_API_KEY="sk_secret_of_the_server").strip() == "None"


@pytest.mark.process
@pytest.mark.parametrize("backend", ["local", "nothing"])
def test_a_script_has_its_class_in_itself(tmp_path: Path, backend: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio\nfrom dataclasses import dataclass\nfrom taskapp_kit.services import Actor, endpoint\n"
        "@dataclass\nclass Answer:\n    text: str\n"
        "class Greeter(Actor):\n    @endpoint\n    async def greet(self, name):\n        return Answer('hello ' + name.text)\n"
        "async def main():\n    greeter = Greeter.options(num_replicas=2).as_service()\n"
        "    print(await greeter.greet.route(Answer('you')), await greeter.greet.fanout(Answer('all')))\n"
        "if __name__ == '__main__':\n    asyncio.run(main())\n"
    )
    if backend == "nothing":
        assert "TASKAPP_SERVICES_BACKEND" in _ran(script, status=1, TASKAPP_SERVICES_BACKEND="nothing")
    else:
        written = _ran(script)
        assert "Answer(text='hello you') [Answer(text='hello all'), Answer(text='hello all')]" in written
        assert "Traceback" not in written
        assert "was never" not in written


@pytest.mark.process
async def test_replicas_end_with_their_program(tmp_path: Path) -> None:
    script = _script(
        tmp_path,
        "counter = await Counter.options(num_replicas=3).as_service().start()",
        "print(await counter.pid.fanout(), flush=True)",
        "await asyncio.sleep(600)",
    )
    process = subprocess.Popen([sys.executable, str(script)], env=_environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().strip("[]\n").split(", ")]
    finally:
        process.kill()
        process.communicate()
    await until_async(lambda: not any(alive(pid) for pid in pids), what="all replicas have ended")


@pytest.mark.process
async def test_a_closed_service_leaves_no_process(caplog: pytest.LogCaptureFixture) -> None:
    service = of(Counter, "local", 3).as_service()
    pids = await service.pid.fanout()
    waiting = [asyncio.create_task(service.sleep.route(30)) for _ in range(5)]
    await until_async(lambda: service.stats().waiting == 2, what="three calls are under way, two wait")
    with caplog.at_level(logging.WARNING, logger="asyncio"):
        await service.aclose()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, ServiceError) for each in outcomes)
    assert not any(alive(pid) for pid in pids)
    assert caplog.records == []
    await service.aclose()


@pytest.mark.process
async def test_a_replica_loads_no_server_and_no_model() -> None:
    async with of(Counter, "local", 1).as_service() as counter:
        assert not {"fastapi", "starlette", "pydantic", "torch", "numpy", "aiohttp"} & set(await counter.loaded.route())


@pytest.mark.ci
@pytest.mark.process
async def test_a_call_is_refused_when_no_replica_can_be_made_again(tmp_path: Path) -> None:
    async with of(Vanishing, "local", 1).as_service(str(tmp_path / "mark")) as service:
        with pytest.raises(ReplicaDied):
            await service.die.route()
        with pytest.raises(ReplicaStartFailed) as raised:
            await service.pid.route()
        assert "FileExistsError" in raised.value.message


def test_wrong_declarations_and_options_are_refused() -> None:
    class Inner(Counter):
        pass

    for make in (
        NoEndpoint.as_service,
        Reserved.as_service,
        Inner.as_service,
        lambda: Counter.options(procs=2),
        lambda: Counter.options(num_replicas=0),
        lambda: Counter.options(num_replicas=True),
        lambda: Counter.options(call_seconds=0),
        lambda: Counter.options(backend="slurm"),
        lambda: Counter.as_service(start=object()),
    ):
        with pytest.raises(BadArgument):
            make()
    with pytest.raises(BadArgument) as raised:
        Counter.options(num_replica=2)
    assert "num_replicas" in str(raised.value)
    with pytest.raises(AttributeError) as unknown:
        _ = Counter.as_service().ad
    assert "'add'" in str(unknown.value)


def _script(folder: Path, *lines: str) -> Path:
    path = folder / "script.py"
    body = "".join(f"    {line}\n" for line in lines)
    path.write_text(
        "import asyncio, pathlib\nfrom taskapp_kit.declare.discovery import load_file\n"
        f"Counter = load_file(pathlib.Path({str(ACTORS)!r})).Counter\nasync def main():\n{body}"
        "if __name__ == '__main__':\n    asyncio.run(main())\n"
    )
    return path


def _ran(script: Path, status: int = 0, **variables: str) -> str:
    ran = subprocess.run(
        [sys.executable, str(script)],
        env=_environment(**variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == status, ran.stderr
    return ran.stdout + ran.stderr


def _environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **variables}
