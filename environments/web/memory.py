"""Kills the process of a page that uses too much memory, so that only the page's episode fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

LIMIT_BYTES = 1_500_000_000
"""Limit on the resident memory of one page's process. Chromium's own limit does not cover array buffers."""
EVERY_SECONDS = 2.0

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


async def watch_memory(limit_bytes: int = LIMIT_BYTES, every_seconds: float = EVERY_SECONDS) -> None:
    """Watch the memory of this process's renderers until cancelled. Without /proc, this does nothing."""
    watched = sys.platform == "linux"
    while watched:
        await asyncio.sleep(every_seconds)
        for process, resident in renderers(os.getpid()).items():
            if resident > limit_bytes:
                with contextlib.suppress(ProcessLookupError):  # the process has ended
                    os.kill(process, signal.SIGKILL)


def renderers(ancestor: int) -> dict[int, int]:
    """Chromium's processes for pages among the descendants of a process, with their resident bytes."""
    parents: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # the process has ended
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: dict[int, int] = {}
    for process in parents:
        above = parents.get(process, 0)
        while above > 1 and above != ancestor:
            above = parents.get(above, 0)
        if above != ancestor:
            continue
        try:
            if b"--type=renderer" in (_PROC / str(process) / "cmdline").read_bytes():
                found[process] = int((_PROC / str(process) / "statm").read_text().split()[1]) * _PAGE_BYTES
        except OSError:
            continue
    return found
