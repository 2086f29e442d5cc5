"""What the tests of the sandbox share: the levels that hold on this machine, and ways of looking at what is left."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from pathlib import Path

from taskapp_kit.sandbox import Sandbox, SandboxLimits, SandboxTooWeak
from taskapp_kit.sandbox.folder import PREFIX
from taskapp_kit.sandbox.limits import MB
from taskapp_kit.sandbox.probe import at_level


def holding() -> list[int]:
    """The levels that confine untrusted code here, by their own probe."""
    found = []
    for level in (3, 2):
        try:
            at_level(level)
        except SandboxTooWeak:
            continue
        found.append(level)
    return found


class WarmLevel(int):
    """A level at which boxes start their interpreter before they have a program."""


LEVELS = holding()
SMALL = SandboxLimits(
    wall_seconds=10,
    cpu_seconds=5,
    memory_bytes=128 * MB,
    processes=16,
    file_bytes=8 * MB,
    files=200,
    flood_bytes=8 * MB,
)


def box(level: int, **given: object) -> Sandbox:
    warm = isinstance(level, WarmLevel)
    return Sandbox(level=int(level), **{"limits": SMALL, "warm": warm, **given})  # type: ignore[arg-type]


def token() -> str:
    """A word for a command line (`sleep 4000.…`) by which a process is found again."""
    return f"4000.{secrets.randbelow(10**12):012d}"


def carrying(word: str) -> list[int]:
    """The processes of this machine whose command line holds the word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def gone(word: str, seconds: float = 5.0) -> bool:
    """Whether nothing carries the word any more, waiting a little."""
    deadline = time.monotonic() + seconds
    while carrying(word):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def appeared(word: str, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not carrying(word):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def folders() -> set[str]:
    """The folders of boxes on this machine now."""
    return {path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*")}


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
