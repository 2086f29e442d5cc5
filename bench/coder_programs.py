"""`SandboxedPythonCoder` under load: programs of which some hang, crash, flood or bomb; verdicts, calls/s, what is left."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.processes import _family
from bench.tables import Table

REPLICAS = 16
PROGRAMS = 2000
BAD_SHARE = 0.05
WALL_SECONDS = 2.0
STARTS = 40
MB = 2**20


@dataclass(frozen=True)
class Kind:
    """A kind of program. right: whether (stdout, stderr) is the verdict that it should have."""

    name: str
    code: str
    right: Callable[[str, str], bool]


def _killed(_: str, stderr: str) -> bool:
    return "killed: " in stderr


BAD = [
    Kind("hangs", "import time\ntime.sleep(60)", _killed),
    Kind("endless", "while True:\n    pass", _killed),
    Kind("crashes", "import os\nos.abort()", lambda out, err: "SIGABRT" in err),
    Kind("raises", "raise ValueError('no')", lambda out, err: "ValueError: no" in err),
    Kind("floods", "while True:\n    print('x' * 65536)", _killed),
    Kind(
        "memory bomb",
        "held = []\nwhile True:\n    held.append(bytearray(2**24))",
        lambda out, err: "MemoryError" in err or "killed: " in err,
    ),
    Kind(
        "fork bomb",
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        lambda out, err: "killed: " in err,
    ),
]


def programs(count: int) -> list[tuple[str, str, Callable[[str, str], bool]]]:
    """(kind, source, verdict), the same each time."""
    rng = random.Random("coder")
    found = []
    for number in range(count):
        if rng.random() < BAD_SHARE:
            kind = rng.choice(BAD)
            found.append((kind.name, kind.code, kind.right))
        else:
            expected = f"{number * number}\n"
            found.append(
                ("good", f"print({number} ** 2)", lambda out, err, expected=expected: (out, err) == (expected, ""))
            )
    return found


def start_ms(warm: bool) -> list[float]:
    """Milliseconds of a program that prints a word, in an idle box."""
    from taskapp_kit.sandbox import Sandbox

    took = []
    with Sandbox(warm=warm) as box:
        for _ in range(STARTS):
            time.sleep(0.1)
            begun = time.perf_counter()
            box.run_sync("print('here')")
            took.append((time.perf_counter() - begun) * 1000)
    return took


async def played(backend: str) -> tuple[list[str], float, list[float]]:
    """Rows of verdicts, calls per second, latencies in ms."""
    from taskapp_kit.sandbox import SandboxLimits
    from taskapp_kit.services import SandboxedPythonCoder

    limits = SandboxLimits(
        wall_seconds=WALL_SECONDS, cpu_seconds=1, memory_bytes=128 * MB, processes=16, file_bytes=MB, flood_bytes=MB
    )
    made = programs(PROGRAMS)
    latencies: list[float] = []
    right: Counter[str] = Counter()
    coder = SandboxedPythonCoder.options(procs=1, with_gpus=False, num_replicas=REPLICAS, backend=backend).as_service(
        limits=limits
    )
    places = asyncio.Semaphore(REPLICAS)
    async with coder:
        begun = time.perf_counter()

        async def one(kind: str, code: str, verdict: Callable[[str, str], bool]) -> None:
            async with places:
                started = time.perf_counter()
                stdout, stderr = await coder.execute.route(code)
                latencies.append((time.perf_counter() - started) * 1000)
            right[kind] += verdict(stdout, stderr)

        await asyncio.gather(*(one(*each) for each in made))
        seconds = time.perf_counter() - begun
    total = Counter(kind for kind, _, _ in made)
    rows = [f"{right[kind]} of {total[kind]} {kind}" for kind in sorted(total)]
    return rows, len(made) / seconds, latencies


def measure(repetitions: int, _scratch: Path) -> Table:
    """Measures starts cold and warm, then the service on each backend that is installed."""
    loads = [os.getloadavg()[0]]
    cold: list[float] = []
    warm: list[float] = []
    for _ in range(repetitions):
        cold += start_ms(warm=False)
        warm += start_ms(warm=True)
    rows = []
    backends = ["local", *(["ray"] if importlib.util.find_spec("ray") else [])]
    for backend in backends:
        verdicts, per_second, latencies = asyncio.run(played(backend))
        ordered = sorted(latencies)
        rows.append(
            [
                backend,
                f"{per_second:.0f}",
                f"{median(ordered):.0f}",
                f"{ordered[len(ordered) * 99 // 100]:.0f}",
                "; ".join(verdicts),
            ]
        )
    left = [pid for pid in _family(os.getpid()) if pid != os.getpid()] if backends == ["local"] else []
    folders = list(Path(tempfile.gettempdir()).glob("taskapp-box-*"))
    loads.append(os.getloadavg()[0])
    return Table(
        title="Programs in SandboxedPythonCoder",
        header=["backend", "programs/s", "median ms", "p99 ms", "right verdicts"],
        rows=rows,
        notes=[
            (
                f"{PROGRAMS} programs on {REPLICAS} replicas, {REPLICAS} at once, of which {BAD_SHARE:.0%} hang, crash, raise, "
                f"flood or bomb (limits: {WALL_SECONDS:g} s, 1 CPU second, 128 MB, 16 processes). Left at the end: "
                f"{len(left)} processes, {len(folders)} folders of boxes. A program that prints a word, in an idle box: "
                f"{median(cold):.1f} ms cold, {median(warm):.1f} ms where its interpreter waited for it (lowest "
                f"{min(cold):.1f} and {min(warm):.1f}). Highest load average at the run's begin and end: {max(loads):.1f}."
            )
        ],
    )
