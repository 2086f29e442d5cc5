"""The process that owns a lease, named so that another process on the same host can be certain that it is dead.

This needs Linux's /proc. Elsewhere, and across hosts and containers, the lease alone decides.
"""

from __future__ import annotations

import os
from pathlib import Path


def this_process() -> str | None:
    """`host/boot/pid namespace/pid/start time`, the last in clock ticks since boot; None without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = Path("/proc/self/ns/pid").readlink()
        _, started, _ = _stat(os.getpid())
        return f"{os.uname().nodename}/{boot}/{namespace}/{os.getpid()}/{started}"
    except (OSError, AttributeError, ValueError, IndexError):
        return None


def certainly_dead(process: str | None, observer: str | None) -> bool:
    """Whether `process` has ended, as far as `observer` (`this_process()` here) can know; False when in doubt."""
    if process is None or observer is None or process == observer:
        return False
    try:
        place, pid, started = process.rsplit("/", 2)
        if place != observer.rsplit("/", 2)[0]:
            return False  # another host, boot or container: its numbers mean nothing here
        os.kill(int(pid), 0)  # sends nothing; asks the kernel, for /proc may hide the processes of other users
        state, now_started, threads = _stat(int(pid))
    except ProcessLookupError:
        return True
    except (OSError, ValueError, IndexError, OverflowError):
        return False
    return now_started != started or (state in "ZX" and threads <= 1)


def _stat(pid: int) -> tuple[str, str, int]:
    """State letter, start time, number of threads: fields 3, 22 and 20 of proc(5)'s stat."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    fields = text[text.rindex(")") + 2 :].split()  # the name in parentheses may itself hold spaces and parentheses
    return fields[0], fields[19], int(fields[17])
