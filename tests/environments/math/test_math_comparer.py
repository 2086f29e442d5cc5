"""The processes that compare: warm, bounded in time and memory, replaced, and told nothing of the server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from environments.math.comparer import Comparer, ComparisonFailed
from tests.machine import needs_sympy
from tests.waiting import until

pytestmark = [
    needs_sympy,
    pytest.mark.process,
]

SAME = {"kind": "equal", "reference": ["root", "8", "2"], "answer": ["*", "2", ["root", "2", "2"]], "rounded": False}
NINE = ["^", "9", ["^", "9", ["^", "9", ["!", "9"]]]]
TOWER = {**SAME, "answer": ["^", ["+", ["symbol", "x"], "1"], NINE]}  # past the checks that would refuse it


@contextmanager
def comparing(**options: float) -> Iterator[Comparer]:
    comparer = Comparer(**options)  # type: ignore[arg-type]
    try:
        yield comparer
    finally:
        comparer.close()


def children() -> dict[int, psutil.Process]:
    return {
        child.pid: child
        for child in psutil.Process().children()
        if child.is_running() and any("comparing.py" in word for word in child.cmdline())
    }


def test_one_process_serves_many_comparisons_and_has_neither_keys_nor_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", "canary-of-the-server")
    monkeypatch.setenv("TASKAPP_STORE", "sqlite:///canary.db")
    before = set(children())
    with comparing() as comparer:
        assert comparer.started == 0
        assert comparer.ask(SAME) == "equal"
        assert comparer.ask({**SAME, "answer": ["root", "2", "2"]}) == "different"
        assert comparer.ask({**SAME, "answer": ["/", "1"]}) == "unreadable"
        assert comparer.ask({"nothing": "of use"}) == "unreadable"
        assert comparer.started == 1
        (child,) = (process for pid, process in children().items() if pid not in before)
        environ = child.environ()
        assert not [name for name in environ if "KEY" in name or name.startswith("TASKAPP")]
        assert "canary" not in str(environ) + str(child.cmdline())


def test_process_that_takes_too_long_is_replaced() -> None:
    before = set(children())
    with comparing(cpu_seconds=0.5) as comparer:
        comparer.ask(SAME)
        (first,) = set(children()) - before
        assert comparer.ask(TOWER) == "too_costly"
        until(lambda: not psutil.pid_exists(first))
        assert comparer.ask(SAME) == "equal"
        assert comparer.started == 2
    until(lambda: set(children()) <= before)


@pytest.mark.ci
def test_a_costly_comparison_holds_up_no_other() -> None:
    with comparing(cpu_seconds=1.0) as comparer:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(comparer.ask, [SAME, SAME])) == ["equal", "equal"]
        assert comparer.started == 2, "two processes have loaded"
        replies: list[str] = []
        costly = threading.Thread(target=lambda: replies.append(comparer.ask(TOWER)))
        costly.start()
        done = 0
        while costly.is_alive():
            assert comparer.ask(SAME) == "equal"
            done += 1
        costly.join()
        assert replies == ["too_costly"]
        assert done >= 5


@pytest.mark.ci
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells how much memory a process had")
def test_memory_is_bounded() -> None:
    with comparing(memory_bytes=256 << 20, cpu_seconds=30.0) as comparer:
        before = set(children())
        comparer.ask(SAME)
        (pid,) = set(children()) - before
        assert comparer.ask({**SAME, "answer": ["^", "2", "9999999999"]}) != "equal"  # 1.2 GB, if it could
        peak = re.search(r"VmPeak:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert peak is not None
        assert int(peak[1]) < 260 << 10
        assert comparer.ask(SAME) == "equal"


def test_one_that_is_killed_from_outside_is_replaced() -> None:
    with comparing() as comparer:
        before = set(children())
        comparer.ask(SAME)
        (pid,) = set(children()) - before
        os.kill(pid, signal.SIGKILL)
        assert comparer.ask(SAME) == "equal"
        assert comparer.started == 2


def test_a_machine_at_fault_is_a_failure_and_no_verdict() -> None:
    with comparing(wall_seconds=0.0) as comparer, pytest.raises(ComparisonFailed, match=r"taskapp-kit\[math\]"):
        comparer.ask(TOWER)


def test_processes_are_replaced_after_many_uses() -> None:
    with comparing(uses=2) as comparer:
        assert [comparer.ask(SAME) for _ in range(4)] == ["equal"] * 4
        assert comparer.started == 3


def test_it_ends_with_the_server() -> None:
    program = (
        "import os, signal\n"
        "from environments.math.comparer import Comparer\n"
        "comparer = Comparer(); comparer.ask({'kind': 'equal', 'reference': 'x', 'answer': 'x'})\n"
        "(process,) = comparer._all; print(process._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False
    )
    pid = int(done.stdout)
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
