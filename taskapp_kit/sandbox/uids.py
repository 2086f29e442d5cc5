"""Leases of user ids for boxes; on one machine an id is leased to one box at a time.

RLIMIT_NPROC counts the processes of a real user id, and one id may signal and read its own processes: boxes that share
an id share both. Only root can change ids; other users run boxes under their own one, inside a user namespace.
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
"""Between the ids that distributions and systemd assign, and below 65536, the end of a container's range."""

_lock = threading.Lock()
_next = 0


class Lease:
    """One user id, held until `release()`. The lock is an abstract socket name, which can be bound only once."""

    def __init__(self, uid: int, held: socket.socket) -> None:
        self.uid = uid
        self._held = held

    def release(self) -> None:
        """Give the id back. No process may still run under it."""
        self._held.close()


def lease(uids: Sequence[int]) -> Lease:
    """Take a free id. Kills what an earlier owner, itself killed, may have left under it. Raises SandboxError."""
    global _next
    with _lock:
        for turn in range(len(uids)):
            uid = uids[(_next + turn) % len(uids)]
            if uid <= 0 or uid == processes.GUARD_UID or _has_account(uid):
                raise SandboxError(
                    f"User id {uid} cannot be a box's: it is reserved or an account's, and all its processes would be killed.",
                    hint="Give user_ids that no account has.",
                )
            # The kernel frees the name when this process ends, however it ends; a lock file would stay.
            held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                held.bind(f"\0taskapp-box-uid-{uid}")
            except OSError as error:
                held.close()
                if error.errno != errno.EADDRINUSE:
                    raise SandboxError(f"No user id could be taken for a box: {error.strerror}.") from error
                continue
            _next = (_next + turn + 1) % len(uids)
            try:
                processes.kill_uid(uid)
            except BaseException:
                held.close()
                raise
            return Lease(uid, held)
    raise SandboxError(
        f"All {len(uids)} user ids for boxes are taken.", hint="Close boxes that are done, or give a longer range."
    )


@functools.cache
def _has_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
