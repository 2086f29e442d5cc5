"""A child process that ends with this process. Its last lines of output explain why it ended.

Rollout workers and the sandbox do not use this class, because they exchange frames and restrict their children.
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
"""The time between the request to end and SIGKILL, in seconds."""
LOOK_SECONDS = 0.05
KEPT_LINES, QUOTED_LINES, LINE_CHARACTERS = 20, 6, 300
"""How many output lines are stored, how many of them messages quote, and the maximum length of each line."""
LONGEST_LINE = 2**16
"""The maximum size of a line in bytes. The rest of a longer line is skipped, because a child may never end a line."""


class OwnedProcess(Generic[Ready]):
    """A running child process in a new session. As a context manager, it ends the child and its descendants.

    The child never outlives this process. A child with `input` must end when its standard input ends. Other children are
    killed by the kernel (Linux), and when the interpreter exits. When the child ends, the remaining processes of its process
    group are killed.

    Args:
        command: The absolute path of the program, followed by its arguments. It must not contain keys, because all users
            can read it.
        env: The child's complete environment.
        name: The name of the threads that wait for the child and read its output.
        cwd: The working directory. Defaults to the working directory of this process.
        input: Data for standard input, which stays open until `close`. None means no standard input.
        reads: Which output is read. With `stdout`, standard error is inherited. With `stderr`, standard output is discarded.
        pass_fds: File descriptors that the child inherits.
        clean: A function that removes keys from a line. It is applied before any other use of the line.
        ready: A function that is called with each line until it returns a value other than None. `wait_ready` returns this
            value, and the line is not stored.
        on_line: A function that is called on a thread with each line that is not blank.
        on_exit: A function that is called on a thread with the exit status, after all output has been read.
        end_seconds: How long `close` waits before it kills the child, in seconds.

    Raises:
        OSError: The process cannot be started.
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
        """The exit status, or None while the child is running. As in `subprocess`, it is negative for a signal."""
        self.ended = threading.Event()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._answer: Ready | None = None
        self._clean, self._ready, self._on_line, self._on_exit = clean, ready, on_line, on_exit
        self._end_seconds = end_seconds
        self._starting = threading.Lock()  # not an Event, which breaks if Ctrl-C interrupts a waiting thread
        self._settled = threading.Event()  # set by the result of `ready`, or at the end of the process
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
                start_new_session=True,  # Ctrl-C reaches only this process, and `signal` reaches all descendants
            )

        # the waiting thread starts the child, because the kernel kills the child when the thread that started it ends
        self._thread = threading.Thread(target=self._run, args=(start, input), name=name, daemon=True)
        self._starting.acquire()
        try:
            self._thread.start()
            with self._starting:
                pass
        except BaseException:  # Ctrl-C, possibly just before the child is started
            self._starting.acquire(timeout=END_SECONDS)
            self.close()
            raise
        if self._error is not None:
            raise self._error

    @property
    def pid(self) -> int:
        """Return the process id."""
        assert self._process is not None, "it was started"
        return self._process.pid

    @property
    def lines(self) -> list[str]:
        """Return the last lines of the output. They are cleaned and truncated."""
        return list(self._lines)

    @property
    def end(self) -> str:
        """Describe how the process ended, with its last lines of output. Empty while the process is running."""
        if self.status is None:
            return ""
        lines = " | ".join(self.lines[-QUOTED_LINES:])
        return death(self.status) + (f"; its last lines: {lines}" if lines else "")

    def wait_ready(self, seconds: float, leave: threading.Event | None = None) -> Ready | None:
        """Wait for the value of `ready` and return it. Return None if the child ends, the time is up, or `leave` is set."""
        last = time.monotonic() + seconds
        while not self._settled.wait(LOOK_SECONDS) and time.monotonic() < last:
            if leave is not None and leave.is_set():
                break
        return self._answer

    def signal(self, number: int, *, group: bool = True) -> None:
        """Send a signal to the child's process group, or only to the child if `group` is false.

        Do nothing if the child has ended.
        """
        process = self._process
        if process is not None and process.returncode is None:  # later, another process may have its id
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if group else os.kill)(process.pid, number)

    def close(self) -> None:
        """End the child: close its input, or send SIGTERM if it has no input, and later send SIGKILL.

        Further calls do nothing.
        """
        process = self._process
        if process is None:  # the process could not be started
            return
        if process.stdin is None:
            self.signal(signal.SIGTERM)
        else:
            with suppress(OSError):  # the process has ended before it read all input
                process.stdin.close()
        try:
            self.ended.wait(self._end_seconds)
        finally:  # also after Ctrl-C
            self.kill()

    def kill(self) -> None:
        """Kill the child and its descendants, and wait until the child has ended."""
        self.signal(signal.SIGKILL)
        self._thread.join(END_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # on the thread

    def _run(self, start: Callable[[], subprocess.Popen[bytes]], given_input: bytes | None) -> None:
        try:
            self._process = process = start()
            # For systems on which the kernel does not kill the child. A child with input ends when its input is closed, and
            # ends its processes in other groups.
            at_exit = weakref.finalize(self, _kill_group, process)
            at_exit.atexit = given_input is None
        except Exception as error:  # raised in the waiting caller
            self._error = error
            return
        finally:
            self._starting.release()
        output = process.stdout or process.stderr
        assert output is not None, "stdout or stderr is a pipe"
        reader = threading.Thread(target=self._read, args=(output,), name=self._thread.name, daemon=True)
        reader.start()
        if process.stdin is not None:
            with suppress(OSError, ValueError):  # the process has ended, or `close` was called
                process.stdin.write(given_input or b"")
                process.stdin.flush()
        status = process.wait()
        _kill_group(process)  # descendants may keep the output open
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
                return  # the line may contain a key
        text = "".join(character for character in line if character.isprintable()).strip()
        if text:
            self._lines.append(text if len(text) <= LINE_CHARACTERS else f"{text[: LINE_CHARACTERS - 1]}…")
        if self._on_line is not None:
            self._on_line(line)


def end_with_input() -> None:
    """Make this process exit when its standard input ends, for example because its parent died.

    Children with `input` call this function.
    """

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def signal_name(status: int | None) -> str | None:
    """Return the name of the signal that ended a process with this exit status, or None if no signal ended it."""
    if status is None or status >= 0:
        return None
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def death(status: int) -> str:
    """Describe as text how a process with this exit status ended."""
    name = signal_name(status)
    if name is None:
        return f"exited {status}"
    if name == "SIGKILL":
        return "killed by SIGKILL, which the kernel sends when memory runs out"
    return f"{(signal.strsignal(-status) or name).lower()} ({name})"


def _tied_to_this_thread(command: Sequence[str]) -> list[str]:
    return python_command(Path(die_with_parent.__file__), str(os.getpid()), *command)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
