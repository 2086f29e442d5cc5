"""Stops a run from another thread than the one that watches it."""

from __future__ import annotations

import contextlib
import os


class Stop:
    """Stops a run from another thread. `stop()` may be called at any time, before the run begins or after it ended."""

    def __init__(self) -> None:
        self.stopped = False
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        """A descriptor that is readable once the run is to be stopped."""
        return self._read

    def stop(self) -> None:
        """Requests that the run ends now."""
        if not self.stopped:
            self.stopped = True
            with contextlib.suppress(OSError):
                os.write(self._write, b"x")

    def close(self) -> None:
        """Releases it; called by the run's own thread when `stop()` is no longer needed."""
        self.stopped = True
        os.close(self._read)
        os.close(self._write)
