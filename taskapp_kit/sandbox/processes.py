"""The processes of a box, seen from outside through /proc: finds, measures and kills them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from taskapp_kit.errors import SandboxError

T = TypeVar("T")

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_KILL_SECONDS = 10.0
_SETRESUID = {"x86_64": 117, "aarch64": 147}
_SET_DUMPABLE, _SET_PDEATHSIG, _GET_PDEATHSIG = 4, 1, 2
_libc = ctypes.CDLL(None)

GUARD_UID = 60_599
"""No box and no account has this id; see `acting_as`."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of a box's processes together: resident bytes, processor seconds, bytes of files without a name."""

    memory_bytes: int
    cpu_seconds: float
    nameless_bytes: int


def of_uid(uid: int) -> list[int]:
    """Return the living processes of a user id."""
    found = []
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid and _alive(int(entry.name)):
                    found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """Return a process and all its descendants, as long as no process between them has ended."""
    found, waiting = [], [pid]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
    return found


def usage(pids: Iterable[int], *, memory_above: int, uid: int | None) -> Usage:
    """Return the usage of these processes. Shared pages count once, but that is only looked up past `memory_above` bytes.

    uid: the user of the processes, None for our own.
    """
    return _usage(pids, memory_above) if uid is None else _acting_as(uid, lambda: _usage(pids, memory_above))


def _usage(pids: Iterable[int], memory_above: int) -> Usage:
    resident: dict[int, int] = {}
    cpu = nameless = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            resident[pid] = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            cpu += sum(map(int, after_name[11:15]))  # utime, stime, and both for its reaped children
        nameless += _nameless(pid)
    memory = sum(resident.values())
    if memory > memory_above:
        # Only now, because reading the shares takes milliseconds for each process.
        memory = sum(_proportional(pid, else_bytes) for pid, else_bytes in resident.items())
    return Usage(memory, cpu / _TICKS, nameless)


def kill_uid(uid: int) -> None:
    """Kill every process of a user id, as root. Raises SandboxError if some do not end."""
    with contextlib.suppress(OSError):
        # one call reaches all of them, including those that fork meanwhile, and no other process
        _acting_as(uid, lambda: os.kill(-1, signal.SIGKILL))
    deadline = time.monotonic() + _KILL_SECONDS
    # A killed process takes a moment to end, and one that was forked before the signal may only appear now.
    while left := of_uid(uid):
        if time.monotonic() > deadline:
            raise SandboxError(f"{len(left)} processes of a box (user id {uid}) do not end when they are killed.")
        time.sleep(0.001)


def kill(pids: Iterable[int]) -> None:
    """Send SIGKILL; a process that has already ended is skipped."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Gives this thread alone the rights of that user for a while: to signal its processes, and to inspect them.

    Do not use it on the process's first thread: see `_acting_as`.

    Root without CAP_SYS_PTRACE, as in most containers, may not inspect them; and kill(-1) as root would end the machine,
    so this checks that no right of root is left. Only the effective id is the user's: the real one is an unused id, so
    that the user's processes cannot signal us. The system call is made directly, because the C library's version changes
    every thread. Raises SandboxError.
    """
    number = _SETRESUID.get(platform.machine())
    if number is None or os.geteuid() != 0:
        raise SandboxError(f"A box of another user cannot be watched on {platform.machine()}, or without root.")
    real, effective, saved = os.getresuid()
    group = os.getegid()
    parent_signal = ctypes.c_int(0)
    _libc.prctl(_GET_PDEATHSIG, ctypes.byref(parent_signal))
    try:
        _libc.setfsgid(uid)
        _libc.syscall(number, GUARD_UID, uid, effective)
        if os.getresuid() != (GUARD_UID, uid, effective) or _capable():
            raise SandboxError("The rights of root could not be dropped temporarily.")
        yield
    finally:
        restored = _libc.syscall(number, real, effective, saved)
        _libc.setfsgid(group)
        _libc.prctl(_SET_DUMPABLE, 0)  # a change of ids resets both; see `child_python.hide_memory`
        _libc.prctl(_SET_PDEATHSIG, parent_signal.value)
        if restored != 0:
            raise SandboxError("The rights of root could not be restored.")


def _acting_as(uid: int, work: Callable[[], T]) -> T:
    """Do the work with that user's rights, and never on the process's first thread.

    All threads that act as another user share one real id meanwhile, and `kill(-1)` reaches processes with the sender's
    real id. Of a process it checks the first thread alone: if that one acted, another process's kill would end this one.
    """

    def act() -> T:
        with acting_as(uid):
            return work()

    if threading.get_native_id() != os.getpid():
        return act()
    done: Future[T] = Future()

    def body() -> None:
        try:
            done.set_result(act())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=body, name="taskapp-sandbox-acting", daemon=True)
    thread.start()
    thread.join()
    return done.result()


def _capable() -> bool:
    """Return whether this thread has any capability in effect."""
    for line in Path("/proc/thread-self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16) != 0
    return True


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def _proportional(pid: int, else_bytes: int) -> int:
    """Resident bytes, where a page that n processes share counts 1/n for each; else_bytes if we may not read them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return else_bytes


def _nameless(pid: int) -> int:
    """Bytes on disk of files that a process holds open after their last name was removed."""
    total = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found = entry.stat()
                if found.st_nlink == 0:
                    total += found.st_blocks * 512
    return total


def threads_of(uid: int) -> int:
    """Return how many threads run under a user id; RLIMIT_NPROC counts them."""
    total = 0
    for entry in os.scandir(_PROC) if _PROC.is_dir() else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid or _real_uid(entry.name) == uid:
                    total += sum(1 for _ in os.scandir(f"/proc/{entry.name}/task"))
    return total


def _real_uid(pid: str) -> int | None:
    """Return the real user id of a process whose memory is hidden: its folder in /proc belongs to root."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None
