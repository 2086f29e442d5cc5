"""Processes that compare expressions. A process that takes too long is killed and replaced.

The first process is started at first use and keeps running. While several comparisons are pending, up to `processes`
run, so that a slow comparison does not delay the others. Several threads can use the same `Comparer`.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from taskapp_kit.system.child_python import python_command

from .equality import Reply

PROGRAM = Path(__file__).with_name("comparing.py")
PASSED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
START_SECONDS = 120.0
CRASHES = frozenset({signal.SIGPROF, signal.SIGXCPU, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS})
"""Signals that end a process when an answer makes it exceed its time limit or its stack."""


class ComparisonFailed(RuntimeError):
    """A comparison failed for a reason other than the answer: the rollout has no reward."""


class Comparer:
    """A pool of comparing processes.

    processes: how many at most. cpu_seconds: processor time of one comparison; an answer that takes more is not
    accepted. wall_seconds: wall time after which the machine, not the answer, is at fault. memory_bytes: of one
    process. uses: comparisons after which a process is replaced.
    """

    def __init__(
        self, *, processes: int = 4, cpu_seconds: float = 2.0, wall_seconds: float = 60.0,
        memory_bytes: int = 1 << 30, uses: int = 5000,
    ) -> None:  # fmt: skip
        self.cpu_seconds = cpu_seconds
        self.wall_seconds = wall_seconds
        self.memory_bytes = memory_bytes
        self.uses = uses
        self.started = 0
        """How many processes have been started so far."""
        self._slots = threading.BoundedSemaphore(processes)
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        atexit.register(self.close)

    def warm_up(self) -> None:
        """Start a process if none is running, without waiting until it has loaded."""
        with self._lock:
            if not self._all:
                self._idle.append(self._start())

    def ask(self, job: Mapping[str, Any]) -> Reply:
        """Return a process's reply to a comparison; "too_costly" if it had to be killed. Raises ComparisonFailed."""
        with self._slots:
            for _ in range(2):
                process = self._take()
                try:
                    reply = process.ask(job, self.wall_seconds)
                except _Ended as ended:
                    self._replace(process)
                    if ended.signal in CRASHES:
                        return "too_costly"
                    continue  # killed from outside, perhaps because memory ran out: try once more
                if process.used >= self.uses:
                    self._replace(process)
                else:
                    with self._lock:
                        self._idle.append(process)
                return reply
        raise ComparisonFailed(
            "the process that compares answers ended twice without a reply. See that 'sympy' is installed (the "
            "extra taskapp-kit[math]) and that the machine has memory and processor time to spare."
        )

    def close(self) -> None:
        """Kill all processes. The next comparison starts one."""
        with self._lock:
            ending, self._all = list(self._all), set()
            self._idle.clear()
        for process in ending:
            process.kill()

    def _take(self) -> _Process:
        with self._lock:
            return self._idle.pop() if self._idle else self._start()

    def _replace(self, process: _Process) -> None:
        """Kill a process and starts another one, so that the next comparison does not wait for long."""
        process.kill()
        with self._lock:
            self._all.discard(process)
            if not self._idle:
                self._idle.append(self._start())

    def _start(self) -> _Process:
        self.started += 1
        process = _Process(cpu_seconds=self.cpu_seconds, memory_bytes=self.memory_bytes)
        self._all.add(process)
        return process


class _Ended(Exception):
    """The process ended, or was killed. signal: by which; None when it exited or had to be stopped by the clock."""

    def __init__(self, signal_: int | None) -> None:
        super().__init__(signal_)
        self.signal = signal_


class _Process:
    """One comparing process. Used by one thread at a time."""

    def __init__(self, *, cpu_seconds: float, memory_bytes: int) -> None:
        self.used = 0
        self._ready = False
        self._process = subprocess.Popen(  # noqa: S603 (our own program, no shell)
            python_command(PROGRAM),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}, cwd="/",
        )  # fmt: skip
        folders = [str(Path(entry).resolve()) for entry in sys.path if entry]
        with suppress(_Ended):  # if this fails, `ask` raises the error again
            self._write({"path": folders, "cpu_seconds": cpu_seconds, "memory_bytes": memory_bytes})

    def ask(self, job: Mapping[str, Any], seconds: float) -> Reply:
        if not self._ready:
            if self._line(START_SECONDS) != "ready":
                raise _Ended(None)
            self._ready = True
        self.used += 1
        self._write(job)
        reply = self._line(seconds)
        if reply not in ("equal", "different", "unreadable", "too_costly"):
            raise _Ended(None)
        return cast("Reply", reply)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _write(self, value: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None

    def _line(self, seconds: float) -> str:
        assert self._process.stdout is not None
        descriptor, line = self._process.stdout.fileno(), b""
        end = time.monotonic() + seconds
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                raise _Ended(None)
            read = os.read(descriptor, 4096)
            if not read:
                raise self._ended()
            line += read
        return line.decode().strip()

    def _ended(self) -> _Ended:
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return _Ended(None)
        return _Ended(-status if status < 0 else None)


_shared: list[Comparer] = []
_sharing = threading.Lock()


def shared() -> Comparer:
    """Return the comparer of this server process."""
    with _sharing:
        if not _shared:
            _shared.append(Comparer())
        return _shared[0]
