"""The memory that is available to a new process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the available memory in bytes.

    This is the available memory of the machine, or the unused part of this container's limit if that is smaller. Cached pages
    of files count as available, because the kernel can drop them. On systems without /proc and /sys, such as macOS, this is
    the machine's total memory, or None if it is unknown.
    """
    values = [value for value in (_of_machine(root), _of_container(root)) if value is not None]
    if values:
        return max(min(values), 0)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _of_machine(root: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _of_container(root: Path) -> int | None:
    """Return the unused part of the control group's memory limit (version 2 or 1), or None if there is no limit."""
    for folder, limit, used, inactive in (
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError, IndexError):
            at = root / folder
            free = int((at / limit).read_text()) - int((at / used).read_text())  # "max" (no limit) raises ValueError
            lines = (line.split() for line in (at / "memory.stat").read_text().splitlines())
            return free + next((int(words[1]) for words in lines if words[0] == inactive), 0)
    return None
