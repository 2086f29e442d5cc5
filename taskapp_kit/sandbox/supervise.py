"""Supervises one run from outside: writes the input, reads the output, measures usage, and kills the run if it exceeds a limit.

All of this happens in one thread, which must live as long as the run, because the kernel kills a box when its parent thread
ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from taskapp_kit.errors import SandboxError
from taskapp_kit.sandbox import processes
from taskapp_kit.sandbox.folder import Folder
from taskapp_kit.sandbox.layers import Launch
from taskapp_kit.sandbox.limits import KilledFor, RunResult, SandboxLimits
from taskapp_kit.system.child_python import hide_memory

_LOOK_SECONDS = 0.05
_CHUNK = 65536
_GOING_SECONDS = 10.0
_OPENS_SECONDS = 0.001


@dataclass(slots=True)
class _Output:
    most: int
    kept: bytearray = field(default_factory=bytearray)
    seen: int = 0

    def take(self, data: bytes) -> None:
        self.seen += len(data)
        if len(self.kept) < self.most:
            self.kept += data[: self.most - len(self.kept)]


class Stop:
    """A switch to stop a run from another thread. It can be used before, during and after the run."""

    def __init__(self) -> None:
        self.stopped = False
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when `stop()` is called."""
        return self._read

    def stop(self) -> None:
        """Stop the run."""
        if not self.stopped:
            self.stopped = True
            with contextlib.suppress(OSError):
                os.write(self._write, b"x")

    def close(self) -> None:
        """Close the descriptors. Only the run's thread may call this, after the run."""
        self.stopped = True
        os.close(self._read)
        os.close(self._write)


class Run:
    """One started program. `result()` supervises the program until it ends.

    If `stdin` is None, only the interpreter is started. Then call `wait_at_program` and `hand_over`.

    Attributes:
        left_behind: Whether a process still had the output open after the run, which is only possible at levels 0 and 1.
    """

    def __init__(self, launch: Launch, folder: Folder, limits: SandboxLimits, level: int, stdin: bytes | None) -> None:
        early = stdin is None
        self._folder = folder
        self._limits = limits
        self._level = level
        self._status_fd = launch.status_fd
        if self._status_fd is not None:
            os.set_blocking(self._status_fd, False)
        self._status = bytearray()
        self._started = time.monotonic()
        self.left_behind = False
        self._killed_for: KilledFor | None = None
        self._cpu_seconds = 0.0
        self._begun = not launch.handshake
        self._unsent = memoryview(b"\n" + (stdin or b"") if launch.handshake else stdin or b"")
        self._program: int | None = None
        """The descriptor of the FIFO on which an early interpreter waits for its program."""
        # At weak levels, the program has this process's user id and could read its memory through /proc.
        hide_memory()
        try:
            self._process = subprocess.Popen(  # noqa: S603 (what it is for)
                launch.argv, env=launch.environment, cwd=launch.folder, pass_fds=launch.pass_fds, bufsize=0,
                stdin=subprocess.PIPE if self._unsent or early else subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            if launch.status_fd is not None:
                os.close(launch.status_fd)
            raise SandboxError(f"The sandbox could not start {launch.argv[0]}: {error.strerror}.") from error
        finally:
            for number in launch.pass_fds:
                os.close(number)

    def wait_at_program(self, seconds: float) -> bool:
        """Wait until the interpreter opens the FIFO for its program. Return whether it did within `seconds`.

        Until then, only the interpreter's start-up code and the modules in the box that it imports have run.
        """
        deadline = time.monotonic() + seconds
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        if not self._begun:
            if not _readable(process.stdout.fileno(), seconds) or os.read(process.stdout.fileno(), 1) != b"\n":
                return False
            self._begun = True
            with contextlib.suppress(OSError):
                os.write(process.stdin.fileno(), b"\n")
        while self._program is None and process.poll() is None and time.monotonic() < deadline:
            try:
                self._program = os.open(self._folder.program, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != errno.ENXIO:  # ENXIO: the interpreter has not opened the FIFO yet
                    raise
                time.sleep(_OPENS_SECONDS)
        return self._program is not None

    def hand_over(self, code: bytes, stdin: bytes) -> bool:
        """Pass the program to the waiting interpreter and start the time limits. Return False if the interpreter had ended."""
        number, self._program = self._program, None
        assert number is not None, "wait_at_program returned True"
        self._started = time.monotonic()
        self._unsent = memoryview(stdin)
        try:
            os.set_blocking(number, True)
            view = memoryview(code)
            while view:
                view = view[os.write(number, view) :]
        except BrokenPipeError:
            return False
        finally:
            os.close(number)
        return True

    def discard(self) -> None:
        """End a waiting interpreter to which no program will be passed."""
        if self._process.returncode is None:
            self._end("cancelled")
            self._reap()
        self._close()

    def result(self, stop: Stop) -> RunResult:
        """Wait until the run ends or reaches a limit. Raises SandboxError if the program could not be confined."""
        outputs = {"stdout": _Output(self._limits.output_bytes), "stderr": _Output(self._limits.output_bytes)}
        try:
            with selectors.DefaultSelector() as selector:
                self._watch(selector, outputs, stop)
            status, used = self._reap()
            self._drain(outputs)
        finally:
            self._close()
        self._cpu_seconds = max(self._cpu_seconds, used)
        code = os.waitstatus_to_exitcode(status)
        if self._level == 3 and 128 < code <= 192:
            code = 128 - code
        if not self._begun and self._killed_for is not None:  # killed before the program started
            code = -signal.SIGKILL
        used_up = self._cpu_seconds >= self._limits.cpu_seconds
        if self._killed_for is None and (-code == signal.SIGXCPU or (-code == signal.SIGKILL and used_up)):
            self._killed_for = "cpu"
        self._check_walls(outputs["stderr"])
        out, err = outputs["stdout"], outputs["stderr"]
        return RunResult(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout_bytes=bytes(out.kept),
            stderr_bytes=bytes(err.kept),
            stdout_truncated=out.seen > len(out.kept),
            stderr_truncated=err.seen > len(err.kept),
            wall_seconds=time.monotonic() - self._started,
            cpu_seconds=self._cpu_seconds,
            killed_for=self._killed_for,
            level=self._level,
        )

    def _check_walls(self, error: _Output) -> None:
        """Raise SandboxError if the program could not be confined. Programs cannot write to the status descriptor."""
        self._read_status()
        why = ""
        if self._level == 3 and b'"exit-code"' not in self._status and self._killed_for is None:
            why = bytes(error.kept).decode("utf-8", "replace").strip() or "bubblewrap ended early"
        elif self._level in (1, 2):
            why = self._status.decode("utf-8", "replace").strip()
        if why:
            needs = "bubblewrap requires user namespaces, or CAP_SYS_ADMIN in a container." if self._level == 3 else ""
            raise SandboxError(f"A box (level {self._level}) could not be confined: {why}.", hint=needs)

    def _watch(self, selector: selectors.BaseSelector, outputs: dict[str, _Output], stop: Stop) -> None:
        process = self._process
        pidfd = os.pidfd_open(process.pid)
        try:
            selector.register(pidfd, selectors.EVENT_READ, lambda: None)  # the loop checks for the program's end
            selector.register(stop, selectors.EVENT_READ, lambda: self._stopped(selector, stop))
            for name, output in outputs.items():
                number = getattr(process, name).fileno()
                os.set_blocking(number, False)
                selector.register(number, selectors.EVENT_READ, self._reader(selector, number, output))
            if process.stdin is not None:
                os.set_blocking(process.stdin.fileno(), False)
                if self._begun:
                    self._begin_to_feed(selector)
            deadline = self._started + self._limits.wall_seconds
            look_at = self._started + _LOOK_SECONDS
            ended = ending = False
            while not ended:
                # killed at a limit, or because of output that was just read
                if self._killed_for is not None and not ending:
                    ending, deadline = True, time.monotonic() + _GOING_SECONDS
                now = time.monotonic()
                if ending and now >= deadline:
                    raise SandboxError("A program in a box did not end after it was killed.")
                if not ending and now >= deadline:
                    self._end("wall")
                elif not ending and now >= look_at:
                    self._look(outputs)
                    look_at = now + max(_LOOK_SECONDS, 10 * (time.monotonic() - now))
                until = deadline if ending else min(deadline, look_at)
                if self._killed_for is not None and not ending:
                    continue
                for key, _ in selector.select(max(0.0, until - time.monotonic())):
                    ended = ended or key.fd == pidfd
                    key.data()
        finally:
            os.close(pidfd)

    def _stopped(self, selector: selectors.BaseSelector, stop: Stop) -> None:
        selector.unregister(stop)
        self._end("cancelled")

    def _reader(self, selector: selectors.BaseSelector, number: int, output: _Output) -> Callable[[], None]:
        assert self._process.stdout is not None
        stdout = self._process.stdout.fileno()

        def read() -> None:
            try:
                data = os.read(number, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                selector.unregister(number)
            if data and not self._begun and number == stdout:
                data = data[1:]
                if self._killed_for is None:
                    self._begin_to_feed(selector)
            output.take(data)
            if output.seen > self._limits.flood_bytes and self._killed_for is None:
                self._end("output")

        return read

    def _begin_to_feed(self, selector: selectors.BaseSelector) -> None:
        assert self._process.stdin is not None
        self._begun = True
        selector.register(self._process.stdin, selectors.EVENT_WRITE, lambda: self._feed(selector))

    def _feed(self, selector: selectors.BaseSelector) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        try:
            self._unsent = self._unsent[os.write(pipe.fileno(), self._unsent[:_CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:  # the program closed its stdin
            self._unsent = memoryview(b"")
        if not self._unsent:
            selector.unregister(pipe)
            pipe.close()

    def _read_status(self) -> None:
        """Read the launcher's status: bubblewrap's JSON lines, or the error of launch.py."""
        if self._status_fd is not None:
            with contextlib.suppress(BlockingIOError):
                while data := os.read(self._status_fd, _CHUNK):
                    self._status += data

    def _root_pid(self) -> int:
        """Return the pid of process 1 in the box, or of the launched process until bubblewrap has reported process 1."""
        if self._level == 3:
            self._read_status()
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return int(json.loads(bytes(self._status).partition(b"\n")[0])["child-pid"])
        return self._process.pid

    def _look(self, outputs: dict[str, _Output]) -> None:
        """Check the limits that several processes together can exceed."""
        limits = self._limits
        used = processes.usage(self._family(), memory_above=limits.memory_bytes, uid=self._folder.uid)
        self._cpu_seconds = max(self._cpu_seconds, used.cpu_seconds)
        stored, files = self._folder.used(most_files=limits.files)
        if used.memory_bytes > limits.memory_bytes:
            self._end("memory")
        elif stored + used.nameless_bytes > limits.file_bytes or files > limits.files:
            self._end("disk")
        elif used.cpu_seconds > limits.cpu_seconds:
            self._end("cpu")
        elif sum(output.seen for output in outputs.values()) > limits.flood_bytes:
            self._end("output")

    def _family(self) -> list[int]:
        if self._level in (1, 2) and self._folder.uid is not None:
            return processes.of_uid(self._folder.uid)
        return processes.descendants(self._root_pid())

    def _end(self, cause: KilledFor) -> None:
        """Kill the run. At level 3, kill process 1, so that the kernel kills all other processes in the namespace.

        If process 1 has not reported yet, bubblewrap may be about to start it, and killing bubblewrap could leave process 1
        running for a moment. In this case only stdin is closed, which makes process 1 exit.
        """
        self._killed_for = self._killed_for or cause
        if self._level == 3:
            if self._begun:
                processes.kill([self._root_pid()])
            elif self._process.stdin is not None:
                self._process.stdin.close()
            return
        if self._folder.uid is not None:
            processes.kill([self._process.pid])
            processes.kill_uid(self._folder.uid)
        else:
            processes.kill(reversed(processes.descendants(self._process.pid)))

    def _reap(self) -> tuple[int, float]:
        """Kill all remaining processes. Return the wait status and the processor seconds of all reaped processes."""
        self._read_status()
        if self._folder.uid is not None and (self._level != 3 or b'"exit-code"' not in self._status):
            processes.kill_uid(self._folder.uid)
        elif self._level < 3:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        _, status, used = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return status, used.ru_utime + used.ru_stime

    def _drain(self, outputs: dict[str, _Output]) -> None:
        """Read the rest of the pipes without waiting, because a daemon that could not be killed may keep them open."""
        for name, output in outputs.items():
            number = getattr(self._process, name).fileno()
            while output.seen <= self._limits.flood_bytes:
                try:
                    data = os.read(number, _CHUNK)
                except BlockingIOError:
                    self.left_behind = True
                    break
                if not data:
                    break
                # otherwise the pipe contains the line of process 1, which has not been read
                if self._begun or name != "stdout":
                    output.take(data)

    def _close(self) -> None:
        if self._process.returncode is None:  # supervision was interrupted (Ctrl-C), or the process does not end
            with contextlib.suppress(SandboxError, subprocess.TimeoutExpired):
                self._end("cancelled")
                self._process.wait(_GOING_SECONDS)
            self._process.kill()
            self._process.wait()
        for number in (self._status_fd, self._program):
            if number is not None:
                os.close(number)
        self._status_fd = self._program = None
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()


def _readable(number: int, seconds: float) -> bool:
    return bool(select.select([number], [], [], seconds)[0])
