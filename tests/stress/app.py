"""An app that fails where env.config says. Servers and worker processes import it from this file."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any, Literal

from taskapp_kit import Image, RequestError, Step, TaskApp, Text, Trajectory, action

app = TaskApp("stress", version="1.0.0", description="Fails where it is told to.")

SECRET = "sentinel-of-the-author"
LARGE_BYTES = 50_000_000
HANG_SECONDS = 2.5
"""Longer than a deadline of 0.3 s and the second after it; then a thread comes back, so that a test can see it do so."""


def grey(level: int) -> bytes:
    """A PNG of one grey pixel. Without numpy, which each worker would have to load."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes([0, level]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


class Unspeakable(Exception):
    """Fails even at saying what it is."""

    def __str__(self) -> str:
        raise RuntimeError(SECRET)


class Faulty:
    """Draws numbers from the seed; its length and rewards follow from seed and actions.

    breaks: the fault, done at step `at` (from 1) or in the method it names. slow: seconds of each step. journal: a
    file that gets a line at reset, at the first step and at close. image: observations hold a picture.
    """

    def __init__(
        self, breaks: str = "", at: int = 2, slow: float = 0.0, journal: str = "", mark: str = "", image: bool = False
    ) -> None:
        self.breaks, self.at, self.slow, self.journal, self.mark, self.image = breaks, at, slow, journal, mark, image
        self.n, self.seed = 0, -1

    def reset(self, seed: int) -> str:
        """The first number."""
        self.seed, self.rng = seed, random.Random(seed)
        self._write("reset")
        if self.breaks == "reset":
            raise RuntimeError(SECRET)
        return f"seed {seed} draws {self.rng.randrange(10**9)}"

    @action(noop={"by": 1})
    def go(self, by: Literal[1, 2, 3]) -> Step:
        """Go on by `by`."""
        self.n += 1
        if self.n == 1:
            self._write("step")
        time.sleep(self.slow)
        seen: Any = f"{self.n} {by * self.rng.randrange(10**9)}"
        if self.breaks and self.n == self.at:
            seen = self._fail() or seen
        if self.image:
            seen = [Text(seen), Image(grey((self.seed + self.n) % 256))]
        return Step(seen, by / 10, terminated=self.rng.random() < 0.1)

    def final_state(self) -> dict[str, str]:
        """Private."""
        if self.breaks == "final state":
            raise RuntimeError(SECRET)
        return {"private": SECRET}

    def close(self) -> None:
        """Says so."""
        self._write("close")
        if self.breaks == "close":
            raise RuntimeError(SECRET)
        if self.breaks == "close hangs":
            time.sleep(HANG_SECONDS)

    def _write(self, what: str) -> None:
        """One whole line, also when many processes write."""
        if self.journal:
            line = f"{what} {self.seed} {os.getpid()} {self.mark}\n"
            file = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, line.encode())
            os.close(file)

    def _fail(self) -> Any:
        """The fault; an observation in place of the right one, or nothing."""
        fault = getattr(self, "_" + self.breaks.replace(" ", "_"), None)
        return fault() if fault is not None else None

    # -- it does not come back -------------------------------------------------------------------------------------

    def _hang(self) -> None:
        time.sleep(HANG_SECONDS)

    def _hang_for_long(self) -> None:
        time.sleep(60)

    def _hang_in_C(self) -> None:
        ctypes.PyDLL(None).sleep(3)  # holds the interpreter's lock

    def _spin(self) -> None:
        until = time.monotonic() + HANG_SECONDS
        while time.monotonic() < until:
            pass

    # -- it dies ---------------------------------------------------------------------------------------------------

    def _segfault(self) -> None:
        ctypes.string_at(0)

    def _abort(self) -> None:
        os.abort()

    def _exit(self) -> None:
        os._exit(3)

    def _exit_0(self) -> None:
        os._exit(0)

    def _kill_itself(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _close_all_files(self) -> None:
        os.closerange(3, 1024)

    # -- it raises -------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        raise RuntimeError(SECRET)

    def _unspeakable(self) -> None:
        raise Unspeakable

    def _sys_exit(self) -> None:
        sys.exit(SECRET)

    def _interrupt(self) -> None:
        raise KeyboardInterrupt

    def _recursion(self) -> None:
        self._recursion()

    def _out_of_memory(self) -> None:
        raise MemoryError

    def _stop_iteration(self) -> None:
        next(iter(()))

    def _generator_exit(self) -> None:
        raise GeneratorExit

    def _cancelled(self) -> None:
        raise asyncio.CancelledError

    def _timeout(self) -> None:
        raise TimeoutError

    def _request_error(self) -> None:
        raise RequestError(SECRET)

    def _signal_handler(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Python allows it in the main thread only

    # -- it shows what cannot be recorded ---------------------------------------------------------------------------

    def _not_json(self) -> Any:
        return {"self": self}

    def _not_finite(self) -> Any:
        return {"x": float("nan")}

    def _endless(self) -> Any:
        seen: dict[str, Any] = {}
        seen["again"] = seen
        return seen

    def _deep(self) -> Any:
        seen: Any = "deep"
        for _ in range(100_000):
            seen = [seen]
        return seen

    def _surrogate(self) -> Any:
        return "half a \ud83d smile"

    def _large_number(self) -> Any:
        return {"x": 10**400}

    # -- it is a bad neighbour, and yet its episode is right ----------------------------------------------------------

    def _large(self) -> Any:
        return "x" * LARGE_BYTES

    def _print(self) -> None:
        for _ in range(200):
            print("p" * 10_000)
            sys.stderr.write("e" * 100 + "\n")

    def _change_directory(self) -> None:
        os.chdir("/")

    def _leave_threads(self) -> None:
        for _ in range(20):
            threading.Thread(target=time.sleep, args=(1.0,)).start()

    def _raise_in_a_thread(self) -> None:
        thread = threading.Thread(target=self._step)
        thread.start()
        thread.join()

    def _leave_a_process(self) -> None:
        subprocess.Popen(["sleep", "2"])

    def _clear_the_environment(self) -> None:
        os.environ.clear()


OPTIONS: dict[str, Any] = {"max_steps": 6, "splits": {"train": range(1000), "test": range(1000, 1100)}}
app.environment("shared", step_timeout_seconds=1.0, **OPTIONS)(Faulty)
app.environment("alone", step_timeout_seconds=1.0, isolation="process", **OPTIONS)(Faulty)


@app.rubric
def much(trajectory: Trajectory, config: dict[str, Any]) -> float:
    """The mean of what was gone by; reads the private end state."""
    if config.get("breaks") == "rubric":
        raise RuntimeError(SECRET)
    if config.get("breaks") == "rubric exits":
        sys.exit(SECRET)
    if config.get("breaks") == "rubric is not finite":
        return float("nan")
    assert trajectory.final_state == {"private": SECRET}
    return trajectory.total_reward / trajectory.length


def note(journal: Path) -> list[list[str]]:
    """The journal's lines as words: what, seed, process, mark."""
    return [line.split() for line in journal.read_text().splitlines()] if journal.exists() else []
