"""One cloudflared process: started, listened to, ended, and never left behind.

It runs in a session of its own, so Ctrl-C at the terminal is for the program and not for the tunnel; closing ends its
whole process group, and where the kernel allows it, it dies with us, too (`system/die_with_parent.py`).
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from taskapp_kit.config import child_environment
from taskapp_kit.net.redact import without_whole
from taskapp_kit.system import die_with_parent
from taskapp_kit.system.child_python import python_command

log = logging.getLogger("taskapp_kit.deploy")

LEASH = Path(die_with_parent.__file__)
QUICK_ADDRESS = re.compile(r"https://(?!api\.|www\.)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.trycloudflare\.com(?![\w.-])")
"""The address in a box of log lines; `api.` is whom cloudflared asks for one, and stands in its errors."""
KEPT_LINES, LINE_LETTERS = 20, 300
PASSED_ON = frozenset(
    {"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"}
    | {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"}
)
"""Of our variables it gets these, and its own settings: no key of anybody."""
OTHER_TUNNELS = frozenset(
    f"TUNNEL_{name}" for name in ("TOKEN", "TOKEN_FILE", "NAME", "HOSTNAME", "URL", "CRED_FILE", "CRED_CONTENTS")
)
"""Settings of its own that name a tunnel: it would open that one instead of the one that it is started for."""
END_SECONDS = 3.0
"""The time that it has to disconnect from Cloudflare before it is killed."""


class Cloudflared:
    """The cloudflared process. address: as printed. last_words: its last output, for the message of a failure."""

    def __init__(self, arguments: Sequence[str], *, secret: Mapping[str, str] | None = None) -> None:
        """arguments: the program's full path first. secret: variables that go to it alone, such as its token.

        Raises OSError when no process can be started.
        """
        self.address: str | None = None
        self.ended = threading.Event()
        self.exit_status: int | None = None
        self._ready = threading.Event()  # set by an address, or at its end
        self._secret = dict(secret or {})
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._closing = False
        self._started: list[subprocess.Popen[bytes] | Exception] = []  # one of them, once it is known
        self._begun = threading.Event()
        # the thread starts the process, for the kernel ends the process when that thread ends
        self._thread = threading.Thread(target=self._run, args=(list(arguments),), name="taskapp-tunnel", daemon=True)
        try:
            self._thread.start()
            self._begun.wait()
            (process,) = self._started
            if isinstance(process, Exception):
                raise process
            self._process = process
            self._finalizer = weakref.finalize(self, _kill, process)  # also when the interpreter ends
        except BaseException:  # Ctrl-C: it may be about to be started
            self._begun.wait(END_SECONDS)
            for begun in self._started:
                if not isinstance(begun, Exception):
                    _kill(begun)
                    self._thread.join(END_SECONDS)
            raise

    @property
    def last_words(self) -> str:
        """The last line in which it complains, else its last line; "" when it said nothing."""
        lines = list(self._lines)
        complaints = [line for line in lines if re.search(r"\b(ERR|FTL|error|failed)\b", line, re.IGNORECASE)]
        return (complaints or lines or [""])[-1]

    def wait_for_address(self, seconds: float, leave: threading.Event) -> str | None:
        """The address that it prints; None when it ends, or the time does, or `leave` is set."""
        end = time.monotonic() + seconds
        while not self._ready.wait(0.05) and time.monotonic() < end and not leave.is_set():
            pass
        return self.address

    def close(self) -> None:
        """Ends it and whatever it started. May be called twice."""
        self._closing = True
        _signal(self._process, signal.SIGTERM)
        try:
            self.ended.wait(END_SECONDS)
        finally:  # also at Ctrl-C
            if not self.ended.is_set():
                _kill(self._process)
        self._thread.join(END_SECONDS)
        self._finalizer.detach()

    def _run(self, arguments: list[str]) -> None:
        try:
            process = subprocess.Popen(  # noqa: S603 (what it is for)
                python_command(LEASH, str(os.getpid()), *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**_environment(), **self._secret},
                start_new_session=True,
            )
        except Exception as error:  # raised to the waiting caller, whatever it is
            self._started.append(error)
            return
        else:
            self._started.append(process)
        finally:
            self._begun.set()
        assert process.stdout is not None
        with process.stdout as output:
            self._listen(output.fileno())
        try:
            self.exit_status = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # it cannot be stopped any more
            _kill(process)
            self.exit_status = process.wait()
        if not self._closing and self.address is not None:
            log.error("the tunnel %s ended (cloudflared, exit status %s)", self.address, self.exit_status)
        self.ended.set()
        self._ready.set()

    def _listen(self, output: int) -> None:
        """Until it closes its output; reading goes on when the address is known, or it would stand still one day."""
        rest = ""
        overlap = LINE_LETTERS + max(
            map(len, self._secret.values()), default=0
        )  # of a line without end: no half secret
        with suppress(OSError):
            while chunk := os.read(output, 4096):
                *lines, rest = (rest + chunk.decode("utf-8", "replace")).split("\n")
                for line in lines:
                    self._read_line(line)
                rest = self._without_secret(rest)[-overlap:]
        self._read_line(rest)

    def _without_secret(self, text: str) -> str:
        return without_whole(text, self._secret.values(), "…")

    def _read_line(self, line: str) -> None:
        line = self._without_secret(line)
        line = "".join(letter for letter in line if letter.isprintable()).strip()
        if line:
            self._lines.append(line[:LINE_LETTERS])
        found = QUICK_ADDRESS.search(line)
        if found is not None and self.address is None:
            self.address = found[0]
            self._ready.set()


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in child_environment().items()
        if name in PASSED_ON or (name.startswith("TUNNEL_") and name not in OTHER_TUNNELS)
    }


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Sends a signal to the process group while the process runs: afterwards its id may belong to another process."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _kill(process: subprocess.Popen[bytes]) -> None:
    _signal(process, signal.SIGKILL)
