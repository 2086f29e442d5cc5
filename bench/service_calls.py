"""Calls of a service, on this machine and on Ray, beside a bare process pool; and replicas that are killed under load."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from bench.processes import cpu_ticks_of_family
from bench.service_counter import SHORT_SECONDS, Measured, short, trivial
from bench.tables import Table, middle
from taskapp_kit.errors import ServiceError
from taskapp_kit.services.service import ServiceHandle

WORKERS = (1, 4, 16)
CALLS = {"trivial": 400, "short": 200}
KILLED_REPLICAS, KILLED_CALLS, KILLS, CALLERS = 4, 600, 5, 12
POOL, LOCAL, RAY = "bare process pool", "service, local", "service, Ray"

Call = Callable[[str, int], Awaitable[int]]


@dataclass(frozen=True)
class Seen:
    """One repetition: calls a second, and the latencies in milliseconds, in order."""

    rate: float
    latencies: Sequence[float]

    def quantile(self, share: float) -> float:
        return self.latencies[min(len(self.latencies) - 1, int(len(self.latencies) * share))]


def contenders() -> list[str]:
    return [POOL, LOCAL, *([RAY] if find_spec("ray") else [])]


def measure(repetitions: int, scratch: Path) -> Table:  # noqa: ARG001 (as every part)
    """Raises ServiceError, and AssertionError where a call that is safe to repeat was lost."""
    seen: dict[tuple[str, int, str], list[Seen]] = {}
    idle = asyncio.run(_idle())  # before Ray has processes here, which end when they like
    for _ in range(repetitions):
        for workers in WORKERS:
            for contender in contenders():
                asyncio.run(_repetition(contender, workers, seen))
    rows = []
    for workers in WORKERS:
        for contender in contenders():
            cells = [f"{contender}, {workers}"]
            for method in CALLS:
                ours, pool = seen[contender, workers, method], seen[POOL, workers, method]
                cells += [
                    middle([each.rate for each in ours], 0),
                    middle([each.rate / other.rate for each, other in zip(ours, pool, strict=True)]),
                    f"{median(each.quantile(0.5) for each in ours):.1f}",
                    f"{median(each.quantile(0.99) for each in ours):.1f}",
                ]
            rows.append(cells)
    notes = [
        f"As many callers at once as workers; {CALLS['trivial']} calls of a method that does nothing (asynchronous) and "
        f"{CALLS['short']} of one that waits for {1000 * SHORT_SECONDS:g} ms (synchronous), {repetitions} repetitions, taking "
        "turns: median (lowest to highest). The pool is a `concurrent.futures.ProcessPoolExecutor` with `spawn`, called from "
        f"an event loop. Load average at the end {os.getloadavg()[0]:.1f}."
        + ("" if RAY in contenders() else " Ray was not measured: it is not installed here."),
        idle,
        *(asyncio.run(_killed(backend)) for backend in ("local", "ray") if backend == "local" or find_spec("ray")),
    ]
    return Table(
        "Calls of a service, beside a bare process pool",
        (
            "contender, workers",
            "nothing: calls/s",
            "× the pool",
            "p50, ms",
            "p99, ms",
            "5 ms: calls/s",
            "× the pool",
            "p50, ms",
            "p99, ms",
        ),  # fmt: skip
        rows,
        notes,
    )


async def _repetition(contender: str, workers: int, seen: dict[tuple[str, int, str], list[Seen]]) -> None:
    opened = _pool(workers) if contender == POOL else _service("ray" if contender == RAY else "local", workers)
    async with opened as call:
        for method, calls in CALLS.items():
            await _load(call, method, workers, 4 * workers)  # every worker has begun
            seen.setdefault((contender, workers, method), []).append(await _load(call, method, workers, calls))


@asynccontextmanager
async def _pool(workers: int) -> AsyncIterator[Call]:
    functions = {"trivial": trivial, "short": short}
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield lambda method, number: loop.run_in_executor(pool, functions[method], number)


@asynccontextmanager
async def _service(backend: str, workers: int) -> AsyncIterator[Call]:
    async with _made(backend, workers) as service:
        yield lambda method, number: getattr(service, method).route(number)


def _made(backend: str, workers: int) -> ServiceHandle:
    return Measured.options(num_replicas=workers, backend=backend).as_service()


async def _load(call: Call, method: str, callers: int, calls: int) -> Seen:
    numbers = iter(range(calls))
    latencies: list[float] = []

    async def caller() -> None:
        for number in numbers:
            begun = time.perf_counter()
            assert await call(method, number) == number
            latencies.append(1000 * (time.perf_counter() - begun))

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return Seen(calls / (time.perf_counter() - begun), sorted(latencies))


async def _idle() -> str:
    """What 16 replicas that do nothing take."""
    before, begun = cpu_ticks_of_family(os.getpid()), time.perf_counter()
    async with _made("local", 16) as service:
        seconds = time.perf_counter() - begun
        ticks = cpu_ticks_of_family(os.getpid()) - before
        own = [_private_megabytes(pid) for pid in await service.pid.fanout()]
    cpu = ticks / os.sysconf("SC_CLK_TCK")
    return (
        f"16 local replicas of that class started in {seconds:.1f} s ({cpu / 16:.2f} CPU-seconds each), and hold "
        f"{median(own):.0f} MB of memory of their own each when idle."
    )


def _private_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / 1e6


async def _killed(backend: str) -> str:
    """Replicas killed with SIGKILL while all are busy: what became of the calls."""
    outcomes: dict[str, Counter[str]] = {"short": Counter(), "once": Counter()}
    async with _made(backend, KILLED_REPLICAS) as service:
        numbers = iter(range(KILLED_CALLS))

        async def caller() -> None:
            for number in numbers:
                method = "once" if number % 2 else "short"
                try:
                    assert await getattr(service, method).route(number) == number
                    outcomes[method]["done"] += 1
                except ServiceError as error:
                    outcomes[method][type(error).__name__] += 1

        async def killer() -> None:
            for _ in range(KILLS):
                await asyncio.sleep(0.1)
                os.kill(await service.pid.route(), signal.SIGKILL)

        await asyncio.gather(killer(), *(caller() for _ in range(CALLERS)))
        stats = service.stats()
    safe, others = outcomes["short"], outcomes["once"]
    assert safe == Counter(done=KILLED_CALLS // 2), f"calls that are safe to repeat were lost: {safe}"
    failed = ", ".join(f"{count} {name}" for name, count in sorted(others.items()) if name != "done") or "none"
    return (
        f"{KILLS} kills (SIGKILL) under load, {backend}, {KILLED_REPLICAS} replicas, {CALLERS} callers: of "
        f"{KILLED_CALLS // 2} calls that are safe to repeat all were done, {stats.retried} of them sent twice; of "
        f"{KILLED_CALLS // 2} others {others['done']} were done and failed: {failed}. Replicas were made anew "
        f"{sum(each.restarts for each in stats.replicas)} times by the end."
    )
