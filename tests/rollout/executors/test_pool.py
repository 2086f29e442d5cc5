"""Real child processes: they work, hang, crash, flood and refuse; each costs what it may cost and no more."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.rollout.executors import protocol as frames
from taskapp_kit.rollout.executors.pool import JobHung, JobRaised, NeverBegan, ProcessPool, StartFailed, WorkerDied
from tests.waiting import alive, until_async

pytestmark = [pytest.mark.anyio, pytest.mark.process]
HERE = Path(__file__).parent
ENVIRONMENT = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


def argv(mode: str = "serve") -> list[str]:
    return [sys.executable, str(HERE / "job_program.py"), frames.__file__, mode]


@contextlib.asynccontextmanager
async def pool(
    *, shared: int = 1, exclusive: int = 0, mode: str = "serve", threads: int = 16, **more: Any
) -> AsyncIterator[ProcessPool]:
    made = ProcessPool(
        argv(mode),
        environment={**ENVIRONMENT, "THREADS": str(threads)},
        shared=shared,
        exclusive=exclusive,
        stop_grace_seconds=0.3,
        retry_seconds=(0.3,),
        **more,
    )
    await made.start()
    try:
        yield made
    finally:
        await made.close(0)
        assert made.counters()["alive"] == 0


def opened(**options: Any) -> Any:
    """A fixture of such a pool."""

    @pytest.fixture
    async def of_options() -> AsyncIterator[ProcessPool]:
        async with pool(**options) as made:
            yield made

    return of_options


made, both, lone = opened(), opened(exclusive=1), opened(shared=0, exclusive=1)


class Frames:
    """An `on_frame` that stores the frames."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.first = asyncio.Event()

    def __call__(self, frame: dict[str, Any], blob: bytes) -> None:
        self.frames.append(frame)
        self.first.set()


def nothing(frame: dict[str, Any], blob: bytes) -> None:
    """An `on_frame` for jobs that report nothing."""


async def run(pool: ProcessPool, do: str, *, exclusive: bool = False, seconds: float = 10.0, **more: Any) -> Any:
    options = {"on_frame": nothing}
    options.update((name, more.pop(name)) for name in ("blob", "step_seconds", "on_frame") if name in more)
    return await pool.run({"do": do, **more}, exclusive=exclusive, seconds=seconds, **options)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def children() -> list[str]:
    """Child processes that this test started, zombies too; those that others left are not this test's business."""
    return [pid for pid in all_children() if pid not in BEFORE]


def all_children() -> list[str]:
    return [pid for task in Path("/proc/self/task").iterdir() for pid in _children_of(task)]


def _children_of(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:  # the thread has ended
        return []


BEFORE: set[str] = set()


@pytest.fixture(autouse=True)
def _only_its_own_children() -> None:
    BEFORE.clear()
    BEFORE.update(all_children())


# -- jobs that go well --------------------------------------------------------------------------------------------


async def test_a_job_and_its_blob_come_back(made: ProcessPool) -> None:
    blob = os.urandom(3_000_000)
    frame, back = await run(made, "echo", what={"ä": [1, None, 2.5]}, blob=blob)
    assert frame["echo"] == {"ä": [1, None, 2.5]}
    assert back == blob


async def test_many_jobs_at_once_each_get_their_own_answer_and_both_children_work() -> None:
    async with pool(shared=2) as made:
        answers = await asyncio.gather(*(run(made, "echo", what=n, blob=b"%d" % n) for n in range(300)))
        assert [(frame["echo"], blob) for frame, blob in answers] == [(n, b"%d" % n) for n in range(300)]
        assert len({frame["pid"] for frame, _ in answers}) == 2


async def test_frames_arrive_in_order_and_before_the_result(made: ProcessPool) -> None:
    told = Frames()
    assert (await run(made, "count", to=5000, on_frame=told))[0] == {"counted": 5000}
    assert [frame["number"] for frame in told.frames] == list(range(5000))


async def test_slow_listener_delays_only_its_job_and_misses_nothing(made: ProcessPool) -> None:
    seen = 0
    may_go = asyncio.Event()

    async def slow(frame: dict[str, Any], blob: bytes) -> None:
        nonlocal seen
        await may_go.wait()
        seen += 1

    job = asyncio.create_task(run(made, "flood", on_frame=slow, seconds=0.8))
    await until_async(lambda: any(job.held for child in made._shared.children for job in child.jobs.values()))
    (child,) = made._shared.children
    (running,) = child.jobs.values()
    held = len(running.queued)
    assert (await run(made, "echo", what="another job"))[0]["echo"] == "another job"
    assert running.queued_bytes < 16_000_000
    may_go.set()
    frame, _ = await job
    assert frame["sent"] - seen in (0, 1)  # what was being awaited at the deadline was cancelled
    assert seen > held


async def test_a_listener_that_never_ends_makes_no_job_hang_and_the_deadline_holds(both: ProcessPool) -> None:
    async def never(frame: dict[str, Any], blob: bytes) -> None:
        await asyncio.sleep(60)

    for exclusive in (True, False):
        await run(both, "echo", exclusive=exclusive)  # its process is there
        began = time.monotonic()
        frame, _ = await run(both, "count", to=2000, on_frame=never, seconds=0.3, exclusive=exclusive)
        assert frame == {"counted": 2000}
        assert time.monotonic() - began < 5
    assert both.counters()["replaced"] == both.counters()["hung"] == 0


async def test_frames_before_a_crash_arrive_before_the_error(lone: ProcessPool) -> None:
    seen = []

    async def slow(frame: dict[str, Any], blob: bytes) -> None:
        await asyncio.sleep(0.1)
        seen.append(frame)

    with pytest.raises(WorkerDied):
        await run(lone, "segfault", exclusive=True, on_frame=slow)
    assert seen == [{"before": "the fall"}]
    assert lone.counters()["in_flight"] == 0


@pytest.mark.parametrize("kind", ["plain", "awaited"])
async def test_a_child_asks_and_hears_the_answer(made: ProcessPool, kind: str) -> None:
    def plain(frame: dict[str, Any], blob: bytes) -> dict[str, Any]:
        return {"answer": frame["question"] * 10}

    async def awaited(frame: dict[str, Any], blob: bytes) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return plain(frame, blob)

    frame, _ = await run(made, "ask", times=20, on_frame=plain if kind == "plain" else awaited)
    assert frame == {"heard": [n * 10 for n in range(20)]}


async def test_exception_of_on_frame_ends_the_job_and_not_the_child(made: ProcessPool) -> None:
    def broken(frame: dict[str, Any], blob: bytes) -> None:
        raise LookupError("no such listener")

    async def broken_later(frame: dict[str, Any], blob: bytes) -> dict[str, Any]:
        raise LookupError("no such listener")

    for on_frame in (broken, broken_later):
        with pytest.raises(LookupError, match="no such listener"):
            await run(made, "ask", times=1, on_frame=on_frame)
    await until_async(lambda: made.counters()["in_flight"] == 0)
    assert (await run(made, "echo"))[0]["exclusive"] is False
    assert made.counters()["replaced"] == 0


async def test_exception_of_a_handler_reaches_the_caller_and_not_the_child(made: ProcessPool) -> None:
    with pytest.raises(JobRaised) as caught:
        await run(made, "raise")
    assert caught.value.frame["error"] == "ValueError"
    assert caught.value.frame["message"] == "the cat \udc00 sat"
    assert "job_program.py" in caught.value.frame["traceback"]
    with pytest.raises(JobRaised, match="BadFrame"):
        await run(made, "too large")
    assert (await run(made, "nan"))[0] == {"value": 2**70, "text": "\udc00"}
    assert made.counters()["replaced"] == 0


async def test_a_job_that_json_cannot_say_is_the_callers_error(both: ProcessPool) -> None:
    for exclusive in (False, True):
        with pytest.raises(TypeError):
            await run(both, "echo", what=object(), exclusive=exclusive)
        assert (await run(both, "echo", exclusive=exclusive))[0]["exclusive"] is exclusive


async def test_prints_and_reads_in_a_child_do_not_disturb_the_parent(capfd: pytest.CaptureFixture[str]) -> None:
    async with pool() as made:
        assert (await run(made, "print"))[0] == {"read": ""}
    out, err = capfd.readouterr()
    assert out == ""
    assert "x" * 10_000 in err
    assert "from a grandchild" in err


async def test_a_child_has_the_environment_that_was_given_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_KEY", "must not get there")
    async with pool() as made:
        seen, _ = await run(made, "environment")
    assert seen.items() >= ENVIRONMENT.items()
    assert "SENTINEL_KEY" not in seen


# -- stops --------------------------------------------------------------------------------------------------------


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize("exclusive", [False, True])
async def test_job_that_stops_at_its_deadline_returns_its_result(both: ProcessPool, exclusive: bool) -> None:
    began, seconds = time.monotonic(), 2.0  # enough for a process to start beside others
    assert (await run(both, "wait", exclusive=exclusive, seconds=seconds))[0] == {"stopped": "timeout"}
    assert time.monotonic() - began >= seconds
    assert both.counters()["replaced"] == 0


@pytest.mark.parametrize("exclusive", [False, True])
async def test_cancelled_caller_returns_immediately_and_its_job_ends(both: ProcessPool, exclusive: bool) -> None:
    told = Frames()
    job = asyncio.create_task(run(both, "wait", exclusive=exclusive, on_frame=told))
    await told.first.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    await until_async(lambda: both.counters()["in_flight"] == 0)
    assert both.counters()["replaced"] == 0


async def test_a_job_that_asks_is_stopped_while_its_answer_is_awaited(made: ProcessPool) -> None:
    cancelled = asyncio.Event()

    async def never(frame: dict[str, Any], blob: bytes) -> dict[str, Any]:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return {}

    with pytest.raises(JobRaised) as caught:
        await run(made, "ask", times=1, seconds=0.2, on_frame=never)
    assert caught.value.frame["error"] == "Stopped"
    assert cancelled.is_set()


async def test_a_job_that_hangs_alone_is_killed_after_its_deadline_and_replaced(lone: ProcessPool) -> None:
    told = Frames()
    began = time.monotonic()
    with pytest.raises(WorkerDied, match=r"0\.3 s .*0\.2 s$") as caught:
        await run(lone, "hang", exclusive=True, seconds=0.2, on_frame=told)
    assert 0.5 <= time.monotonic() - began < 5
    assert (caught.value.killed_for, caught.value.signal_name) == ("deadline", "SIGKILL")
    assert (await run(lone, "echo", exclusive=True))[0]["pid"] != told.frames[0]["pid"]
    await until_async(lambda: not alive(told.frames[0]["pid"]))
    assert lone.counters()["killed"] == lone.counters()["hung"] == 1


async def test_a_job_cancelled_while_it_hangs_in_c_is_killed_and_frees_its_place(lone: ProcessPool) -> None:
    told = Frames()
    job = asyncio.create_task(run(lone, "hang in C", exclusive=True, on_frame=told))
    await told.first.wait()
    job.cancel()
    frame, _ = await run(lone, "echo", exclusive=True, what="next in line")
    assert frame["echo"] == "next in line"
    assert lone.counters()["killed"] == 1


@pytest.mark.parametrize("how", ["hang", "hang in C"])
async def test_a_step_that_takes_too_long_is_killed_at_that_time(lone: ProcessPool, how: str) -> None:
    await run(lone, "echo", exclusive=True)
    began = time.monotonic()
    with pytest.raises(WorkerDied, match=r"^killed: a step .*0\.3 s$") as caught:
        await run(lone, how, exclusive=True, step_seconds=0.3)
    assert 0.3 <= time.monotonic() - began < 5
    assert caught.value.killed_for == "step"


async def test_step_limit_applies_to_each_step_only(both: ProcessPool) -> None:
    for exclusive in (True, False):
        frame, _ = await run(both, "steps", exclusive=exclusive, times=10, each=0.04, step_seconds=0.3)
        assert frame == {"stepped": 10}


@pytest.mark.ci
async def test_a_hung_job_in_a_shared_child_is_given_up_and_the_others_end_well(made: ProcessPool) -> None:
    good = asyncio.create_task(run(made, "wait", seconds=1))
    with pytest.raises(JobHung, match=r"step .*0\.2 s") as caught:
        await run(made, "hang", step_seconds=0.2)
    assert caught.value.hung_in == "step"
    hung = made.counters()
    assert (hung["hung"], hung["in_flight"], hung["alive"]) == (1, 1, 1)
    assert (await run(made, "echo"))[0]["echo"] is None  # in the replacement
    (old,) = [child.pid for child in made._all_children() if child.retiring]
    assert (await good)[0] == {"stopped": "timeout"}
    await until_async(lambda: not alive(old))
    assert (made.counters()["alive"], made.counters()["replaced"]) == (1, 1)
    with pytest.raises(JobHung, match=r"0\.3 s .*deadline"):
        await run(made, "hang", seconds=0.1)
    assert (await run(made, "echo"))[0]["echo"] is None


async def test_exclusive_jobs_wait_in_line_and_the_time_in_line_counts(lone: ProcessPool) -> None:
    told = Frames()
    first = asyncio.create_task(run(lone, "wait", exclusive=True, seconds=0.8, on_frame=told))
    await told.first.wait()
    order: list[int] = []

    async def later(number: int) -> None:
        await run(lone, "echo", exclusive=True)
        order.append(number)

    waiting = [asyncio.create_task(later(number)) for number in range(3)]
    with pytest.raises(NeverBegan, match=r"0\.2 s"):
        await run(lone, "echo", exclusive=True, seconds=0.2)
    waiting[0].cancel()
    await until_async(lambda: lone.counters()["waiting"] == 2)
    await first
    await asyncio.wait(waiting)
    assert order == [1, 2]


async def test_shared_jobs_beyond_the_childs_threads_wait_in_line() -> None:
    async with pool(threads=2) as made:
        waits = [asyncio.create_task(run(made, "wait", seconds=0.3)) for _ in range(2)]
        await until_async(lambda: made.counters()["in_flight"] == 2)
        began = time.monotonic()
        assert (await run(made, "echo"))[0]["echo"] is None
        assert time.monotonic() - began > 0.2
        await asyncio.gather(*waits)


# -- deaths -------------------------------------------------------------------------------------------------------


async def test_segmentation_fault_fails_one_job_and_keeps_its_frames() -> None:
    told = Frames()
    async with pool(exclusive=2) as made:
        others = [asyncio.create_task(run(made, "wait", exclusive=alone, seconds=0.6)) for alone in (True, False)]
        with pytest.raises(WorkerDied, match=r"\(SIGSEGV\)$") as caught:
            await run(made, "segfault", exclusive=True, on_frame=told)
        assert (caught.value.exit_code, caught.value.signal_name) == (-11, "SIGSEGV")
        assert caught.value.killed_for is None
        assert told.frames == [{"before": "the fall"}]
        assert [frame for frame, _ in await asyncio.gather(*others)] == [{"stopped": "timeout"}] * 2
        assert made.counters()["replaced"] == 1


async def test_a_shared_child_that_dies_fails_exactly_its_jobs() -> None:
    async with pool(shared=2) as made:
        waits = [asyncio.create_task(run(made, "wait", seconds=0.6)) for _ in range(6)]
        await until_async(lambda: made.counters()["in_flight"] == 6)
        with pytest.raises(WorkerDied, match=r"^exited 3$"):
            await run(made, "exit", code=3)
        outcomes = await asyncio.gather(*waits, return_exceptions=True)
        assert sum(isinstance(outcome, WorkerDied) for outcome in outcomes) == 3
        assert sum(outcome == ({"stopped": "timeout"}, b"") for outcome in outcomes) == 3
        await until_async(lambda: made.counters()["alive"] == 2)


async def test_error_of_a_killed_child_mentions_memory(made: ProcessPool) -> None:
    told = Frames()
    job = asyncio.create_task(run(made, "hang", on_frame=told))
    await told.first.wait()
    os.kill(told.frames[0]["pid"], signal.SIGKILL)
    with pytest.raises(WorkerDied, match="SIGKILL, which the kernel sends when memory runs out"):
        await job
    assert made.counters()["killed"] == 0
    assert (await run(made, "echo"))[0]["echo"] is None


async def test_dead_idle_child_is_replaced_before_the_next_job() -> None:
    async with pool(shared=1, exclusive=1) as made:
        await until_async(lambda: made.counters()["alive"] == 2)
        for child in made._all_children():
            os.kill(child.pid, signal.SIGKILL)
        await until_async(lambda: made.counters()["replaced"] == 2)
        for exclusive in (True, False):
            assert (await run(made, "echo", exclusive=exclusive))[0]["exclusive"] is exclusive
        assert made.counters()["replaced"] == 2


@pytest.mark.ci
async def test_idle_exclusive_children_end_except_one() -> None:
    async with pool(shared=0, exclusive=3, spare_seconds=0.2) as made:
        await asyncio.gather(*(run(made, "wait", exclusive=True, seconds=2.0) for _ in range(3)))
        await until_async(lambda: len(children()) == 4)
        await until_async(lambda: len(children()) == 1)
        assert (await run(made, "echo", exclusive=True))[0]["exclusive"] is True
        assert (made.counters()["replaced"], made.counters()["killed"]) == (0, 0)


async def test_invalid_frame_kills_the_child_and_not_the_server(both: ProcessPool) -> None:
    with pytest.raises(WorkerDied, match="frame .* bytes") as caught:
        await run(both, "lie", exclusive=True)
    assert caught.value.killed_for == "frame"
    assert (await run(both, "echo", exclusive=True))[0]["exclusive"] is True


async def test_a_flood_neither_grows_the_front_nor_stops_others(both: ProcessPool) -> None:
    tracemalloc.start()
    flood = asyncio.create_task(run(both, "flood", exclusive=True, seconds=0.6))
    slowest = 0.0
    while not flood.done():
        began = time.monotonic()
        await run(both, "echo")
        slowest = max(slowest, time.monotonic() - began)
        await asyncio.sleep(0.02)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (await flood)[0]["sent"] > 300
    assert peak < 5_000_000
    assert slowest < 2


async def test_kill_also_ends_grandchildren(both: ProcessPool) -> None:
    told = Frames()
    job = asyncio.create_task(run(both, "grandchild", exclusive=True, on_frame=told))
    await told.first.wait()
    (child,) = [child for child in both._exclusive.children if child.jobs]
    child.kill("closing", "for the test")
    with pytest.raises(WorkerDied, match="for the test"):
        await job
    await until_async(lambda: not alive(told.frames[0]["pid"]))


@pytest.mark.ci
async def test_forty_replacements_leave_no_descriptor_no_zombie_and_no_task() -> None:
    async with pool(shared=0, exclusive=2) as made:
        await run(made, "echo", exclusive=True)

        async def die(count: int) -> None:
            for _ in range(count):
                with pytest.raises(WorkerDied, match="exited 1"):
                    await run(made, "exit", exclusive=True, code=1)

        await die(4)
        await asyncio.sleep(0.2)
        before, tasks = descriptors(), len(asyncio.all_tasks())
        await asyncio.gather(die(18), die(18))
        await until_async(lambda: descriptors() <= before + 6 and len(asyncio.all_tasks()) <= tasks + 4)
        assert made.counters()["replaced"] == 40
        await until_async(lambda: len(children()) == made.counters()["alive"] <= 3)
    assert children() == []


# -- starts and ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("refuse", "the worker process could not start: the app has two problems"),
        ("die", "the worker process exited 7 before it was ready"),
        ("slow", "the worker process was not ready within 0.5 s"),
    ],
)
async def test_failed_start_reports_the_reason_and_leaves_nothing(mode: str, sentence: str) -> None:
    made = ProcessPool(argv(mode), environment=ENVIRONMENT, shared=2, exclusive=1, start_seconds=0.5)
    with pytest.raises(StartFailed) as caught:
        await made.start()
    assert caught.value.reason == sentence
    assert children() == []


async def test_a_program_that_can_no_longer_start_is_tried_three_times_and_jobs_hear_why(tmp_path: Path) -> None:
    async with pool(mode=f"once:{tmp_path / 'started'}") as made:
        with pytest.raises(WorkerDied, match="exited 1"):
            await run(made, "exit", code=1)
        with pytest.raises(StartFailed, match="started before"):
            await run(made, "echo", seconds=5)  # stood in line until the third failure
        with pytest.raises(StartFailed, match="started before"):
            await run(made, "echo", seconds=60)  # at once: nothing is started a fourth time
        assert made._failures == 3
        assert children() == []


async def test_once_it_starts_again_jobs_run_again(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    async with pool(mode=f"once:{mark}") as made:
        with pytest.raises(WorkerDied):
            await run(made, "exit", code=1)
        with pytest.raises(StartFailed):
            await run(made, "echo")
        mark.unlink()
        await until_async(lambda: made.counters()["alive"] == 1)
        assert (await run(made, "echo"))[0]["echo"] is None
        assert made._failures == 0


async def test_close_lets_running_jobs_end_and_refuses_new_ones(both: ProcessPool) -> None:
    jobs = [asyncio.create_task(run(both, "wait", exclusive=alone, seconds=0.4)) for alone in (True, False)]
    await until_async(lambda: both.counters()["in_flight"] == 2)
    closing = asyncio.create_task(both.close(5))
    await asyncio.sleep(0.05)
    with pytest.raises(NeverBegan, match="closing"):
        await run(both, "echo")
    assert [frame for frame, _ in await asyncio.gather(*jobs)] == [{"stopped": "timeout"}] * 2
    began = time.monotonic()
    await closing
    assert time.monotonic() - began < 5
    assert children() == []


async def test_close_stops_and_then_kills_jobs_after_the_grace_period(both: ProcessPool) -> None:
    stops = asyncio.create_task(run(both, "wait"))
    hangs = asyncio.create_task(run(both, "hang in C", exclusive=True))
    await until_async(lambda: both.counters()["in_flight"] == 2)
    began = time.monotonic()
    await both.close(0.2)
    assert time.monotonic() - began < 10
    assert (await stops)[0] == {"stopped": "cancelled"}
    with pytest.raises(WorkerDied, match="killed"):
        await hangs
    assert children() == []


async def test_sigterm_and_ctrl_c_are_the_fronts_business(made: ProcessPool) -> None:
    told = Frames()
    job = asyncio.create_task(run(made, "wait", seconds=0.5, on_frame=told))
    await told.first.wait()
    (child,) = made._all_children()
    os.kill(child.pid, signal.SIGTERM)
    os.kill(child.pid, signal.SIGINT)
    assert (await job)[0] == {"stopped": "timeout"}
    assert os.getpgid(child.pid) == child.pid


FRONT = """
import asyncio, sys
from taskapp_kit.rollout.executors.pool import ProcessPool

async def main():
    pool = ProcessPool(sys.argv[1:], environment={}, shared=2, exclusive=2)
    await pool.start()
    on_frame = lambda frame, blob: print("pid", frame.get("pid"), flush=True)
    jobs = [asyncio.ensure_future(pool.run({"do": do}, exclusive=alone, seconds=60, on_frame=on_frame))
            for do, alone in (("hang in C", True), ("hang", True), ("hang", False))]
    while len(pool._all_children()) < 5:  # two shared, two that hang alone, and a spare one
        await asyncio.sleep(0.05)
    print("all", *(child.pid for child in pool._all_children()), flush=True)
    await asyncio.wait(jobs)

asyncio.run(main())
"""


async def test_a_front_that_is_killed_leaves_no_orphan() -> None:
    front = subprocess.Popen([sys.executable, "-c", FRONT, *argv()], stdout=subprocess.PIPE, text=True)
    assert front.stdout is not None
    for line in front.stdout:
        if line.startswith("all"):
            break
    pids = [int(word) for word in line.split()[1:]]
    assert len(pids) == 5
    assert all(alive(pid) for pid in pids)
    front.kill()
    front.wait()
    front.stdout.close()
    await until_async(lambda: not any(alive(pid) for pid in pids))


async def test_a_child_whose_front_dies_while_it_starts_ends_by_itself() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen([*argv(), str(theirs.fileno())], pass_fds=(theirs.fileno(),))
    ours.close()
    assert child.wait(timeout=20) == 1


async def test_the_pool_works_on_uvloop_too() -> None:
    uvloop = pytest.importorskip("uvloop", reason="needs uvloop, of uvicorn[standard]")

    async def everything() -> None:
        async with pool(exclusive=1) as made:
            answers = await asyncio.gather(*(run(made, "echo", what=n) for n in range(50)))
            assert [frame["echo"] for frame, _ in answers] == list(range(50))
            assert len((await run(made, "echo", blob=bytes(2_000_000)))[1]) == 2_000_000
            with pytest.raises(WorkerDied, match="SIGSEGV"):
                await run(made, "segfault", exclusive=True)
            with pytest.raises(WorkerDied, match=r"step .*0\.2 s"):
                await run(made, "hang in C", exclusive=True, step_seconds=0.2)
            assert (await run(made, "echo", exclusive=True))[0]["exclusive"] is True

    def on_uvloop(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

    await asyncio.to_thread(on_uvloop, everything())
