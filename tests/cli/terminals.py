"""`taskapp` at a terminal of its own, with a person who waits for words and types."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from .conftest import clean_environ

NAMES = (
    "BACKEND_BASE_URL", "PROD_BACKEND_URL", "TASK_APP_URL", "TASK_APP_BASE_URL", "SYNTH_API_KEY", "ENVIRONMENT_API_KEY",
)  # fmt: skip


class Terminal:
    """text: all that was shown so far, what was typed included where it was echoed."""

    def __init__(self, folder: Path, *args: str, **variables: str) -> None:
        self.text = ""
        self._master, slave = pty.openpty()
        environ = clean_environ(**{"TERM": "xterm", **variables})
        for name in set(NAMES) - set(variables):
            environ.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "taskapp_kit", *args],
            cwd=folder,
            env=environ,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_own_terminal,  # noqa: PLW1509 - as test_mock_model
        )
        os.close(slave)

    def wait(self, words: str, seconds: float = 60.0) -> None:
        """Until these words are shown, after what was waited for before or not."""
        end = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < end, self.text
            if not self._read():
                raise AssertionError(f"It ended without {words!r}: {self.text}")

    def type(self, line: str) -> None:
        """The line and Enter."""
        os.write(self._master, line.encode() + b"\n")

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.write(self._master, b"\x03")

    def end(self) -> int:
        """Its exit status."""
        while self._read():
            pass
        return self.process.wait(30)

    def leave(self) -> int:
        """Ctrl-C at a question, once more where Python was just about to read the line and missed it; its exit status."""
        for _ in range(30):
            self.interrupt()
            while select.select([self._master], [], [], 1.0)[0]:
                if not self._read():
                    return self.process.wait(30)
        raise AssertionError(self.text)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 60)
        assert ready, self.text
        try:
            got = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.text += got.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(got)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        os.close(self._master)


def _own_terminal() -> None:
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
