"""Leases of user ids for boxes. On one machine, an id is leased to at most one box at a time.

Boxes must not share an id, because RLIMIT_NPROC counts all processes of a real user id, and because a process can signal and
inspect other processes with the same id. Only root can change ids. Other users run boxes under their own id in a user
namespace.
"""

from __future__ import annotations

import errno
import functools
import pwd
import socket
import threading
from collections.abc import Sequence

from taskapp_kit.errors import SandboxError
from taskapp_kit.sandbox import processes

DEFAULT_UIDS = range(60_600, 61_100)
"""The default ids. Neither distributions nor systemd assign them. They are below 65536, the limit in a container."""

_lock = threading.Lock()
_next = 0


class Lease:
    """A user id that is leased until `release()`. An abstract socket name, which only one process can bind, is the lock."""

    def __init__(self, uid: int, held: socket.socket) -> None:
        self.uid = uid
        self._held = held

    def release(self) -> None:
        """Release the id. No process with this id may be running."""
        self._held.close()


def lease(uids: Sequence[int]) -> Lease:
    """Lease a free id, and kill processes with this id that a dead owner left behind. Raises SandboxError if no id is free."""
    global _next
    with _lock:
        for turn in range(len(uids)):
            uid = uids[(_next + turn) % len(uids)]
            if uid <= 0 or uid == processes.GUARD_UID or _has_account(uid):
                raise SandboxError(
                    f"The user id {uid} is reserved or belongs to an account, so boxes cannot use it. "
                    "All processes with the id would be killed.",
                    hint="Set user_ids to ids that no account uses.",
                )
            # unlike a lock file, the kernel releases the name even if this process is killed
            held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                held.bind(f"\0taskapp-box-uid-{uid}")
            except OSError as error:
                held.close()
                if error.errno != errno.EADDRINUSE:
                    raise SandboxError(f"A user id for a box could not be leased: {error.strerror}.") from error
                continue
            _next = (_next + turn + 1) % len(uids)
            try:
                processes.kill_uid(uid)
            except BaseException:
                held.close()
                raise
            return Lease(uid, held)
    raise SandboxError(
        f"All {len(uids)} user ids for boxes are in use.",
        hint="Close boxes that are not needed, or pass more user_ids.",
    )


@functools.cache
def _has_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
