"""Starts a box's next interpreter before its program is known, so that a program only waits for itself.

Python opens its program when all of its start is done. Here that is a FIFO, at which it waits; a run writes the program into
it, and puts a file with the same content in its place, which is what tracebacks and `__file__` find. Each program still has
a process of its own, with the walls and the limits of any other run: nothing of an earlier one is in it.

The next one is started when a run has ended, never beside it: both would share the box's user id and its number of processes.
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
"""How long an interpreter may take until it waits at its program; later it is discarded."""


class EarlyStart:
    """The interpreter of a box's next program. The kernel kills a box with the thread that started it: it has one of its own.

    Programs that are given other limits than these are started as usual.
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
        """Start the next one in the background."""
        self._ready = threading.Event()
        self._orders.put(self._ready)

    def take(self, limits: SandboxLimits) -> Run | None:
        """Return the one that waits at its program, when it does; None without one, or for other limits."""
        self._settle()
        # Limits are set when a process starts; those of the one that waits cannot be changed.
        if limits != self._limits:
            self._drop()
            return None
        run, self._run = self._run, None
        return run

    def drop(self) -> None:
        """End the one that waits, or is being started."""
        self._settle()
        self._drop()

    def _settle(self) -> None:
        if self._ready is not None:
            self._ready.wait()
            self._ready = None

    def _drop(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            with contextlib.suppress(KitError):  # it could not be confined, and has run nothing
                run.discard()

    def close(self) -> None:
        """End it, and the thread."""
        self.drop()
        self._orders.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (ready := self._orders.get()) is not None:
            try:
                self._start()
            except (KitError, OSError):  # the run itself is started as usual, and says what is wrong
                self._drop()
            finally:
                ready.set()

    def _start(self) -> None:
        # Not a server that forks a child for each program: it would have to survive programs that run beside it, and
        # its results, memory and walls would be theirs to attack.
        self._folder.put_fifo()
        launch = layers.prepare(self._level, self._folder, None, self._limits, self._readable)
        self._run = Run(launch, self._folder, self._limits, self._level, None)
        if not self._run.wait_at_program(START_SECONDS):
            self._drop()
