"""A child process: it ends with this process, its output is read, and its last lines explain its end.

The workers of rollouts and the sandbox have their own processes: they exchange frames, and limit what a child may do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Generic, Literal, Self, TypeVar

from taskapp_kit.system import die_with_parent
from taskapp_kit.system.child_python import python_command

Ready = TypeVar("Ready")

END_SECONDS = 5.0
"""Between the request to end and SIGKILL."""
LOOK_SECONDS = 0.05
KEPT_LINES, QUOTED_LINES, LINE_CHARACTERS = 20, 6, 300
"""Of the output: lines that are kept, lines that a sentence quotes, and the length to which each is cut."""
LONGEST_LINE = 2**16
"""Bytes of a line; the rest of a longer one is skipped, because a child may print without end."""


class OwnedProcess(Generic[Ready]):
    """A running child process, in a session of its own; `with` ends it and its descendants.

    It does not outlive this process, however that ends: a child with `input` has to end when its standard input does;
    any other one is killed by the kernel (Linux), and at the end of the interpreter. When the child ends by itself, what
    is left of its process group is killed.

    Args:
        command: The program's full path first. Keys do not belong here: every user of the machine can read it.
        env: The whole environment.
        name: Of the threads that wait for the child and read its output.
        cwd: The working directory; this process's by default.
        input: Written to standard input, which then stays open until `close`; None: there is no input.
        reads: What of the output is read. With `stdout`, standard error goes where this process's goes; with `stderr`,
            standard output is discarded.
        pass_fds: Descriptors that the child inherits.
        clean: Applied to each line before anything else sees it: removes keys.
        ready: Called with each line until it returns a value other than None, for `wait_ready`. That line is not kept.
        on_line: Called with each line that is not blank, in a thread.
        on_exit: Called with the exit status, in a thread, when the output has been read.
        end_seconds: How long `close` waits before it kills.

    Raises:
        OSError: No process can be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        name: str,
        cwd: Path | None = None,
        input: bytes | None = None,
        reads: Literal["stdout", "stderr", "both"] = "both",
        pass_fds: Sequence[int] = (),
        clean: Callable[[str], str] = str,
        ready: Callable[[str], Ready | None] | None = None,
        on_line: Callable[[str], None] | None = None,
        on_exit: Callable[[int], None] | None = None,
        end_seconds: float = END_SECONDS,
    ) -> None:
        self.status: int | None = None
        """The exit status once it has ended; as of `subprocess`, negative for a signal."""
        self.ended = threading.Event()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._answer: Ready | None = None
        self._clean, self._ready, self._on_line, self._on_exit = clean, ready, on_line, on_exit
        self._end_seconds = end_seconds
        self._starting = threading.Lock()  # an Event is left broken where Ctrl-C interrupts who waits for it
        self._settled = threading.Event()  # by the answer of `ready`, or at the end
        self._error: Exception | None = None
        self._process: subprocess.Popen[bytes] | None = None

        def start() -> subprocess.Popen[bytes]:
            tied = command if input is not None else _tied_to_this_thread(command)
            return subprocess.Popen(  # noqa: S603 (what the class is for)
                tied,
                env=env,
                cwd=cwd,
                pass_fds=pass_fds,
                stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
                stdout=subprocess.DEVNULL if reads == "stderr" else subprocess.PIPE,
                stderr={"stdout": None, "stderr": subprocess.PIPE, "both": subprocess.STDOUT}[reads],
                start_new_session=True,  # Ctrl-C reaches this process only, and a signal reaches all descendants
            )

        # the thread that waits for the process starts it: the kernel kills the process when that thread ends
        self._thread = threading.Thread(target=self._run, args=(start, input), name=name, daemon=True)
        self._starting.acquire()
        try:
            self._thread.start()
            with self._starting:
                pass
        except BaseException:  # Ctrl-C: it may be about to be started
            self._starting.acquire(timeout=END_SECONDS)
            self.close()
            raise
        if self._error is not None:
            raise self._error

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None, "it was started"
        return self._process.pid

    @property
    def lines(self) -> list[str]:
        """The last lines of the output, cleaned and cut."""
        return list(self._lines)

    @property
    def end(self) -> str:
        """How the process ended, with its last lines; empty while it runs."""
        if self.status is None:
            return ""
        lines = " | ".join(self.lines[-QUOTED_LINES:])
        return death(self.status) + (f"; its last lines: {lines}" if lines else "")

    def wait_ready(self, seconds: float, leave: threading.Event | None = None) -> Ready | None:
        """Return the value of `ready`; None when the child ends, the time does, or `leave` is set."""
        last = time.monotonic() + seconds
        while not self._settled.wait(LOOK_SECONDS) and time.monotonic() < last:
            if leave is not None and leave.is_set():
                break
        return self._answer

    def signal(self, number: int, *, group: bool = True) -> None:
        """Send a signal to the process group, or to the process alone, while the process runs."""
        process = self._process
        if process is not None and process.returncode is None:  # later, the id may belong to another process
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if group else os.kill)(process.pid, number)

    def close(self) -> None:
        """End the child: its input ends or, if it has none, it gets SIGTERM; then SIGKILL. A second call does nothing."""
        process = self._process
        if process is None:  # it could not be started
            return
        if process.stdin is None:
            self.signal(signal.SIGTERM)
        else:
            with suppress(OSError):  # what could not be written to a process that has ended
                process.stdin.close()
        try:
            self.ended.wait(self._end_seconds)
        finally:  # also at Ctrl-C
            self.kill()

    def kill(self) -> None:
        """Kill the child and its descendants, and wait for its end."""
        self.signal(signal.SIGKILL)
        self._thread.join(END_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # in the thread

    def _run(self, start: Callable[[], subprocess.Popen[bytes]], given: bytes | None) -> None:
        try:
            self._process = process = start()
            at_exit = weakref.finalize(self, _kill_group, process)  # where the kernel does not kill it
            at_exit.atexit = given is None  # the end of its input ends it, with processes of other groups
        except Exception as error:  # raised to the waiting caller, whatever it is
            self._error = error
            return
        finally:
            self._starting.release()
        output = process.stdout or process.stderr
        assert output is not None, "one of them is a pipe"
        reader = threading.Thread(target=self._read, args=(output,), name=self._thread.name, daemon=True)
        reader.start()
        if process.stdin is not None:
            with suppress(OSError, ValueError):  # it has ended, or `close` was called
                process.stdin.write(given or b"")
                process.stdin.flush()
        status = process.wait()
        _kill_group(process)  # descendants, which may hold its output open
        reader.join(END_SECONDS)
        at_exit.detach()
        self.status = status
        self.ended.set()
        self._settled.set()
        if self._on_exit is not None:
            self._on_exit(status)

    def _read(self, output: IO[bytes]) -> None:
        begins = True
        with output:
            while piece := output.readline(LONGEST_LINE):
                if begins:
                    for line in piece.splitlines():
                        self._read_line(self._clean(line.decode(errors="replace")).rstrip())
                begins = piece.endswith(b"\n")

    def _read_line(self, line: str) -> None:
        if not line:
            return
        if self._ready is not None and self._answer is None:
            self._answer = self._ready(line)
            if self._answer is not None:
                self._settled.set()
                return  # it may hold a key
        words = "".join(letter for letter in line if letter.isprintable()).strip()
        if words:
            self._lines.append(words if len(words) <= LINE_CHARACTERS else f"{words[: LINE_CHARACTERS - 1]}…")
        if self._on_line is not None:
            self._on_line(line)


def end_with_input() -> None:
    """Have this process, a child with `input`, end when its standard input does, as when its parent is killed."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def signal_name(status: int | None) -> str | None:
    """Return the name of the signal that ended a process with this exit status; None if none did."""
    if status is None or status >= 0:
        return None
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def death(status: int) -> str:
    """Return in words how a process with this exit status died."""
    name = signal_name(status)
    if name is None:
        return f"exited {status}"
    if name == "SIGKILL":
        return "killed by SIGKILL from outside, as the kernel does when memory runs out"
    return f"{(signal.strsignal(-status) or name).lower()} ({name})"


def _tied_to_this_thread(command: Sequence[str]) -> list[str]:
    return python_command(Path(die_with_parent.__file__), str(os.getpid()), *command)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
