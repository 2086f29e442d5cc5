"""Early start of a box's next interpreter, so that a program does not wait for Python to start.

At the end of its start-up, Python opens the program file. In a box, this file is a FIFO, on which the interpreter blocks. A run
writes the program to the FIFO, and replaces the FIFO with a file with the same content for tracebacks and `__file__`. Each
program still runs in a separate process with all restrictions and limits, without any state of an earlier program.

The next interpreter starts after a run has ended, because both processes would share the box's user id and process limit.
"""

from __future__ import annotations

import contextlib
import queue
import threading

from taskapp_kit.errors import KitError
from taskapp_kit.sandbox import layers
from taskapp_kit.sandbox.folder import Folder
from taskapp_kit.sandbox.limits import SandboxLimits
from taskapp_kit.sandbox.supervise import Run

START_SECONDS = 10.0
"""The time limit for the start of an interpreter. A slower interpreter is discarded."""


class EarlyStart:
    """The interpreter for a box's next program. A dedicated thread starts the interpreter.

    The thread must live as long as the interpreter, because the kernel kills a box when the thread that started it ends.
    Programs with different limits do not use this interpreter.
    """

    def __init__(self, level: int, folder: Folder, limits: SandboxLimits, readable: tuple[str, ...]) -> None:
        self._level, self._folder, self._limits, self._readable = level, folder, limits, readable
        self._orders: queue.SimpleQueue[threading.Event | None] = queue.SimpleQueue()
        self._ready: threading.Event | None = None
        self._run: Run | None = None
        self._thread = threading.Thread(target=self._work, name="taskapp-sandbox-early", daemon=True)
        self._thread.start()
        self.begin()

    def begin(self) -> None:
        """Start the next interpreter in the background."""
        self._ready = threading.Event()
        self._orders.put(self._ready)

    def take(self, limits: SandboxLimits) -> Run | None:
        """Return the waiting interpreter if it has these limits, or None if there is no such interpreter."""
        self._settle()
        # Limits are set when a process starts, so the limits of the waiting interpreter cannot be changed.
        if limits != self._limits:
            self._drop()
            return None
        run, self._run = self._run, None
        return run

    def drop(self) -> None:
        """End the interpreter that is waiting or starting."""
        self._settle()
        self._drop()

    def _settle(self) -> None:
        if self._ready is not None:
            self._ready.wait()
            self._ready = None

    def _drop(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            with contextlib.suppress(KitError):  # the interpreter could not be confined and has not run anything
                run.discard()

    def close(self) -> None:
        """End the interpreter and the thread."""
        self.drop()
        self._orders.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (ready := self._orders.get()) is not None:
            try:
                self._start()
            except (KitError, OSError):  # the next run starts its own process and reports the error
                self._drop()
            finally:
                ready.set()

    def _start(self) -> None:
        # Do not fork children from one server process, because untrusted programs that run next to the server could attack
        # its memory, its results and its restrictions.
        self._folder.put_fifo()
        launch = layers.prepare(self._level, self._folder, None, self._limits, self._readable)
        self._run = Run(launch, self._folder, self._limits, self._level, None)
        if not self._run.wait_at_program(START_SECONDS):
            self._drop()
