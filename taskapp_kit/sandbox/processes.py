"""Finds, measures and kills the processes of a box from outside, through /proc."""

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
"""A user id that no box and no account uses; see `acting_as`."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The total usage of a box's processes: resident bytes, processor seconds, and bytes of deleted files that are open."""

    memory_bytes: int
    cpu_seconds: float
    nameless_bytes: int


def of_uid(uid: int) -> list[int]:
    """Return the ids of the running processes of a user."""
    pids = []
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid and _alive(int(entry.name)):
                    pids.append(int(entry.name))
    return pids


def descendants(pid: int) -> list[int]:
    """Return a process and its descendants, except descendants whose parent has ended."""
    pids, waiting = [], [pid]
    while waiting:
        pid = waiting.pop()
        pids.append(pid)
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
    return pids


def usage(pids: Iterable[int], *, memory_above: int, uid: int | None) -> Usage:
    """Return the usage of these processes.

    Args:
        pids: The process ids.
        memory_above: If the resident bytes exceed this, shared pages are counted only once, which takes more time.
        uid: The user of the processes. None means the user of this process.
    """
    return _usage(pids, memory_above) if uid is None else _acting_as(uid, lambda: _usage(pids, memory_above))


def _usage(pids: Iterable[int], memory_above: int) -> Usage:
    resident: dict[int, int] = {}
    cpu = nameless = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            resident[pid] = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            cpu += sum(map(int, after_name[11:15]))  # utime, stime, and both for the reaped children
        nameless += _nameless(pid)
    memory = sum(resident.values())
    if memory > memory_above:
        # only above the limit, because reading the shared pages takes milliseconds for each process
        memory = sum(_proportional(pid, else_bytes) for pid, else_bytes in resident.items())
    return Usage(memory, cpu / _TICKS, nameless)


def kill_uid(uid: int) -> None:
    """Kill every process of a user id, as root. Raises SandboxError if a process does not end."""
    with contextlib.suppress(OSError):
        # a single call reaches all processes of the user, even those that are forking, and no other process
        _acting_as(uid, lambda: os.kill(-1, signal.SIGKILL))
    deadline = time.monotonic() + _KILL_SECONDS
    # A killed process takes a moment to end, and a process forked just before the signal may appear only now.
    while left := of_uid(uid):
        if time.monotonic() > deadline:
            raise SandboxError(f"{len(left)} processes in a box (user id {uid}) did not end after SIGKILL.")
        time.sleep(0.001)


def kill(pids: Iterable[int]) -> None:
    """Send SIGKILL to each of these processes, and ignore processes that have ended."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Give this thread a user's rights inside the `with` block, to signal and inspect the user's processes.

    Do not use this on the process's first thread; see `_acting_as`.

    Root without CAP_SYS_PTRACE, as in most containers, cannot inspect other users' processes. As root, kill(-1) would kill
    every process on the machine, so this function checks that the thread has lost root's rights. Only the effective id
    changes to the user's id. The real id changes to an unused id, so that the user's processes cannot signal this process.
    The system call is made directly, because the C library's function changes all threads.

    Raises:
        SandboxError: The rights could not be changed.
    """
    number = _SETRESUID.get(platform.machine())
    if number is None or os.geteuid() != 0:
        raise SandboxError(f"Only root on x86_64 or aarch64 can measure others' boxes (here: {platform.machine()}).")
    real, effective, saved = os.getresuid()
    group = os.getegid()
    parent_signal = ctypes.c_int(0)
    _libc.prctl(_GET_PDEATHSIG, ctypes.byref(parent_signal))
    try:
        _libc.setfsgid(uid)
        _libc.syscall(number, GUARD_UID, uid, effective)
        if os.getresuid() != (GUARD_UID, uid, effective) or _capable():
            raise SandboxError(f"A thread could not switch to user id {uid} to measure or kill the processes of a box.")
        yield
    finally:
        restored = _libc.syscall(number, real, effective, saved)
        _libc.setfsgid(group)
        _libc.prctl(_SET_DUMPABLE, 0)  # changing the ids resets both settings; see `child_python.hide_memory`
        _libc.prctl(_SET_PDEATHSIG, parent_signal.value)
        if restored != 0:
            raise SandboxError(f"A thread could not switch back from user id {uid}. Restart this process.")


def _acting_as(uid: int, work: Callable[[], T]) -> T:
    """Run `work` with a user's rights, but never on the process's first thread.

    All threads that act as another user share one real id, and `kill(-1)` reaches all processes with the sender's real id.
    The kernel only checks the first thread of each process. If that thread acted as a user, a `kill(-1)` by another
    process would end this process.
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
    """Return whether this thread has any effective capability."""
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
    """Return the resident bytes of a process, counting 1/n of each page that n processes share.

    Return `else_bytes` if the kernel does not report this number.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return else_bytes


def _nameless(pid: int) -> int:
    """Return the bytes on disk of deleted files that a process still has open."""
    total = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                status = entry.stat()
                if status.st_nlink == 0:
                    total += status.st_blocks * 512
    return total


def threads_of(uid: int) -> int:
    """Return the number of threads of a user id. RLIMIT_NPROC limits this number."""
    total = 0
    for entry in os.scandir(_PROC) if _PROC.is_dir() else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid or _real_uid(entry.name) == uid:
                    total += sum(1 for _ in os.scandir(f"/proc/{entry.name}/task"))
    return total


def _real_uid(pid: str) -> int | None:
    """Return a process's real user id, even if root owns its directory in /proc because the process hides its memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None
