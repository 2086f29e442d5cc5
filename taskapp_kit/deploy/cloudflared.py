"""One cloudflared process: started, listened to, ended, and never left behind.

It runs in a session of its own, so Ctrl-C at the terminal is for the program and not for the tunnel; closing ends its
whole process group, and where the kernel allows it, it dies with us, too (`leash.py`).
"""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from taskapp_kit.config import child_environment

log = logging.getLogger("taskapp_kit.deploy")

LEASH = Path(__file__).with_name("leash.py")
QUICK_ADDRESS = re.compile(r"https://(?!api\.|www\.)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.trycloudflare\.com(?![\w.-])")
"""The address in a box of log lines; `api.` is whom cloudflared asks for one, and stands in its errors."""
KEPT_LINES, LINE_LETTERS = 20, 300
END_SECONDS = 3.0
"""How long it has to take leave of Cloudflare before it is killed."""


class Cloudflared:
    """The process. `address` is what it printed, `last_words` what it said last, for a sentence about a failure."""

    def __init__(self, arguments: Sequence[str], *, secret: Mapping[str, str] | None = None) -> None:
        """arguments: the program's full path first. secret: variables that go to it alone, such as its token.

        Raises OSError when no process can be started.
        """
        self.address: str | None = None
        self.ended = threading.Event()
        self.exit_status: int | None = None
        self._heard = threading.Event()  # an address, or its end
        self._secret = dict(secret or {})
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._closing = False
        started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()
        # the thread starts the process, for the kernel ends the process when that thread ends
        self._thread = threading.Thread(
            target=self._run, args=(list(arguments), started), name="taskapp-tunnel", daemon=True
        )
        self._thread.start()
        process = started.get()
        if isinstance(process, OSError):
            raise process
        self._process = process
        self._finalizer = weakref.finalize(self, _kill, process)  # also when the interpreter ends

    @property
    def last_words(self) -> str:
        """The last line in which it complains, else its last line; "" when it said nothing."""
        lines = list(self._lines)
        complaints = [line for line in lines if re.search(r"\b(ERR|FTL|error|failed)\b", line, re.IGNORECASE)]
        return (complaints or lines or [""])[-1]

    def wait_for_address(self, seconds: float, leave: threading.Event) -> str | None:
        """The address that it prints; None when it ends, or the time does, or `leave` is set."""
        end = time.monotonic() + seconds
        while not self._heard.wait(0.05) and time.monotonic() < end and not leave.is_set():
            pass
        return self.address

    def close(self) -> None:
        """Ends it and whatever it started. May be called twice."""
        self._closing = True
        _signal(self._process, signal.SIGTERM)
        if not self.ended.wait(END_SECONDS):
            _kill(self._process)
        self._thread.join(END_SECONDS)
        self._finalizer.detach()

    def _run(self, arguments: list[str], started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError]) -> None:
        try:
            process = subprocess.Popen(  # noqa: S603 (what it is for)
                [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**child_environment(), **self._secret},
                start_new_session=True,
            )
        except OSError as error:
            started.put(error)
            return
        started.put(process)
        assert process.stdout is not None
        with process.stdout as output:
            self._listen(output.fileno())
        try:
            self.exit_status = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # nobody can hear it any more
            _kill(process)
            self.exit_status = process.wait()
        if not self._closing and self.address is not None:
            log.error("the tunnel %s ended (cloudflared, exit status %s)", self.address, self.exit_status)
        self.ended.set()
        self._heard.set()

    def _listen(self, output: int) -> None:
        """Until it closes its output; reading goes on when the address is known, or it would stand still one day."""
        rest = ""
        with suppress(OSError):
            while chunk := os.read(output, 4096):
                *lines, rest = (rest + chunk.decode("utf-8", "replace")).split("\n")
                for line in lines:
                    self._hear(line)
                rest = rest[-LINE_LETTERS:]  # a line without end
        self._hear(rest)

    def _hear(self, line: str) -> None:
        for value in self._secret.values():
            line = line.replace(value, "…")
        line = "".join(letter for letter in line if letter.isprintable()).strip()
        if line:
            self._lines.append(line[:LINE_LETTERS])
        found = QUICK_ADDRESS.search(line)
        if found is not None and self.address is None:
            self.address = found[0]
            self._heard.set()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """To its whole group, as long as it is ours: a number that was waited for may be somebody else's by now."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _kill(process: subprocess.Popen[bytes]) -> None:
    _signal(process, signal.SIGKILL)
