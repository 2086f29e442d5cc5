"""The parent's side of one child process: start, frames and end.

All of this code runs on the event loop. It reads 64 kB from the socket at a time, or more within a large frame. A child
that sends too fast fills its socket and blocks, so it cannot exhaust the memory of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from taskapp_kit.rollout.executors.job import JobHung, KilledFor, Running, StartFailed, WorkerDied
from taskapp_kit.rollout.executors.protocol import CELL_BYTES, MAX_THREADS, BadFrame, Frame, PipeReader, encode
from taskapp_kit.system.child import death

log = logging.getLogger("taskapp_kit.run")

_EOF_SECONDS = 1.0
_RETIRE_SECONDS = 2.0


class ChildProcess:
    """One child process. `free(child)` is called when it can accept another job, `gone(child)` once when it has died."""

    def __init__(
        self, *, exclusive: bool, free: Callable[[ChildProcess], None], gone: Callable[[ChildProcess], None]
    ) -> None:
        self.exclusive = exclusive
        self.jobs: dict[int, Running] = {}
        self.hung: dict[int, Running] = {}
        self.threads = 0
        self.pid = 0
        self.idle_since = 0.0
        self.killed_for: KilledFor | None = None
        self.retiring = False
        self.alive = False
        self._free = free
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[int] = self._loop.create_future()
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._reader = PipeReader()
        self._out: list[bytes] = []
        self._unsent = b""
        self._scheduled = False
        self._end_of_file = False
        self._writing = False
        self._free_cells = list(range(MAX_THREADS))
        memory = _shared_memory()
        try:
            self._memory = mmap.mmap(memory, MAX_THREADS * CELL_BYTES)
            self._cells = memoryview(self._memory).cast("q")
            self._sock, self._childs = socket.socketpair()
            self._sock.setblocking(False)
            socket.send_fds(self._sock, [b"m"], [memory])
        finally:
            os.close(memory)

    async def start(self, argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> None:
        """Start the program with the socket's number as the last argument, and wait until it reports that it is ready.

        Raises StartFailed if it cannot start, or is not ready within `seconds`.
        """
        try:
            with self._childs as theirs:
                # a separate session, so that Ctrl-C only reaches the parent and a kill also reaches grandchildren
                self._process = await asyncio.create_subprocess_exec(
                    *argv,
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=2,
                    env=dict(environment),
                    start_new_session=True,
                )
        except OSError as error:
            self._release()
            raise StartFailed(f"a worker process could not be started: {error}") from error
        except BaseException:
            self._release()
            raise
        self.pid = self._process.pid
        self.alive = True
        self._loop.add_reader(self._sock.fileno(), self._read)
        self._watcher = self._loop.create_task(self._watch(self._process))
        try:
            async with asyncio.timeout(seconds):
                threads = await self._ready
        except TimeoutError:
            self.kill("closing", "")
            raise StartFailed(f"the worker process was not ready within {seconds:g} s") from None
        except BaseException:
            self.kill("closing", "")
            raise
        self.threads = 1 if self.exclusive else threads
        self.idle_since = self._loop.time()

    def takes(self) -> bool:
        """Return whether the child can accept another job."""
        return self.alive and not self.retiring and not self._end_of_file and len(self.jobs) < self.threads

    def begin(self, running: Running) -> None:
        """Send the job to the child. Raises TypeError or ValueError for values that JSON cannot represent."""
        cell = self._free_cells[-1]
        pieces = encode(
            {"job": running.number, "run": running.frame, "cell": cell, "exclusive": self.exclusive}, running.blob
        )
        self._free_cells.pop()
        self._cells[cell] = 0
        running.child, running.cell = self, cell
        self.jobs[running.number] = running
        running.frame, running.blob = {}, b""  # sent, and no longer needed
        self._send(pieces)
        if running.step_seconds is not None:
            running.step_timer = self._loop.call_later(running.step_seconds, running.watch_step)

    def send(self, message: Frame) -> None:
        """Send a frame to the child if it is alive."""
        self._send(encode(message))

    def step_began(self, cell: int) -> int:
        """Return when the current step of the job that uses this cell began, in monotonic nanoseconds, or 0 between steps."""
        return self._cells[cell] if self.alive else 0

    def ended(self, running: Running) -> None:
        """Handle the end of a job in the child."""
        if self.jobs.pop(running.number, None) is None and self.hung.pop(running.number, None) is None:
            return
        self._free_cells.append(running.cell)
        if not self.jobs:
            self.idle_since = self._loop.time()
        self._free(self)

    def overdue(self, running: Running, what: Literal["step", "deadline", "cancelled"], reason: str) -> None:
        """Handle a job that does not end. An exclusive child is killed. A shared child abandons the job and retires."""
        if self.exclusive:
            self.kill(what, reason)
            return
        self.jobs.pop(running.number, None)
        self.hung[running.number] = running
        running.end(JobHung(reason, "step" if what == "step" else "deadline"), at_once=what != "step")
        self._send(encode({"job": running.number, "stop": running.stopping or "timeout"}))
        log.error("worker process %d: %s; the job is abandoned and the process replaced", self.pid, reason)
        self.retiring = True
        self._free(self)

    def retire(self, seconds: float = _RETIRE_SECONDS) -> None:
        """Stop sending jobs and close the input, so that the child exits. Kill the child if it is still alive after `seconds`."""
        self.retiring = True
        if self.alive:
            self._flush()
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
            self._loop.call_later(seconds, self.kill, "closing", "it did not exit within the grace period")

    def kill(self, why: KilledFor, reason: str) -> None:
        """Kill the child and its process group, and fail the child's jobs immediately. The exit is awaited in the background."""
        if not self.alive:
            return
        self.killed_for = why
        if reason:
            log.error("worker process %d killed: %s", self.pid, reason)
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._dead(WorkerDied(f"killed: {reason}", -signal.SIGKILL, why))

    async def reaped(self) -> None:
        """Wait until the operating system has released the process."""
        if self._watcher is not None:
            await asyncio.wait((self._watcher,))

    # -- internals -------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            chunk = self._sock.recv(self._reader.wants)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._end_of_file = True
            self._loop.remove_reader(self._sock.fileno())
            # the exit status usually follows immediately, and a live child without a socket is useless
            if not self.retiring:
                self._loop.call_later(_EOF_SECONDS, self.kill, "frame", "it closed its socket")
            return
        try:
            for message, blob, size in self._reader.feed(chunk):
                number = message.get("job")
                if type(number) is not int:
                    self._greeting(message)
                elif (running := self.jobs.get(number)) is not None:
                    running.take(message, blob, size)
                elif number in self.hung and ("done" in message or "raised" in message):
                    self.ended(self.hung[number])  # the abandoned job has ended after all
        except BadFrame as error:
            self.kill("frame", f"it sent invalid data: {error}")

    def _greeting(self, message: Frame) -> None:
        threads, failed = message.get("ready"), message.get("failed")
        if self._ready.done() or (failed is None and not isinstance(threads, int)):
            raise BadFrame("the frame has no job number")
        if threads is None:
            self._ready.set_exception(StartFailed(f"the worker process could not start: {failed}"))
        else:
            self._ready.set_result(min(threads, MAX_THREADS))

    def _send(self, pieces: list[bytes]) -> None:
        if not self.alive:
            return
        self._out += pieces
        if not self._scheduled:  # one system call for all frames of this loop iteration
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if not self.alive:
            return
        data = self._unsent
        if self._out:
            data = b"".join((data, *self._out)) if data or len(self._out) > 1 else self._out[0]
            self._out = []
        try:
            sent = self._sock.send(data) if data else 0
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:  # the reader will notice that the child has died
            sent = len(data)
        self._unsent = data[sent:] if sent < len(data) else b""
        self._scheduled = bool(self._unsent)
        if self._scheduled != self._writing:
            self._writing = self._scheduled
            if self._writing:
                self._loop.add_writer(self._sock.fileno(), self._flush)
            else:
                self._loop.remove_writer(self._sock.fileno())

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if not self.alive:
            return
        with contextlib.suppress(OSError):
            # the last frames of the child
            while self.alive and (chunk := self._sock.recv(self._reader.wants, socket.MSG_PEEK)):
                del chunk
                self._read()
        if self.alive:
            self._dead(WorkerDied(death(code), code))

    def _dead(self, error: WorkerDied) -> None:
        self.alive = False
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._release()
        if not self._ready.done():
            self._ready.set_exception(StartFailed(f"the worker process {error.reason} before it was ready"))
            self._ready.exception()  # retrieved here, because asyncio logs exceptions that nothing awaits
        jobs, self.jobs, self.hung = list(self.jobs.values()), {}, {}
        for running in jobs:
            running.end(error, at_once=error.killed_for in ("deadline", "cancelled", "closing"))
        self._gone(self)

    def _release(self) -> None:
        self._sock.close()
        self._childs.close()
        self._cells.release()
        self._memory.close()


def _shared_memory() -> int:
    """Return a file descriptor of shared memory for a child's cells."""
    size = MAX_THREADS * CELL_BYTES
    if sys.platform == "linux":
        descriptor = os.memfd_create("taskapp-steps")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
