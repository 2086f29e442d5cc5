"""A program that tries to break out of its box. Every attempt is real, but harmless if it succeeds.

Run it as `python probe_inside.py`. Standard input is a JSON object with the targets. Standard output is a JSON object that
maps each attempt to "open" or "denied: REASON". The program does not import the kit.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLONE_NEWUSER = 0x10000000
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
FORKS = 200
BIG_BYTES, BIG_FILE_BYTES = 2**30, 200 * 10**6

targets: dict[str, Any] = {}
_libc = ctypes.CDLL(None, use_errno=True)


class AccessDenied(Exception):
    """An attempt was denied. The message gives the reason."""


def tcp_out() -> None:
    """Connect to a listener on the host. On a remote machine, connect to an address that the host can reach."""
    host = targets.get("tcp_host", "127.0.0.1")
    socket.create_connection((host, targets["tcp_port"]), timeout=3 if "tcp_host" in targets else 1).close()


def udp_out() -> None:
    """Send a datagram to the host. The host checks whether it arrives."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"probe", ("127.0.0.1", targets["udp_port"]))


def other_sockets() -> None:
    """Connect to the host's Unix sockets, by file and by abstract name, and to the host over vsock."""
    reached = []
    for name in (targets["socket_path"], "\0" + targets["abstract_name"]):
        try:
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(name)
            reached.append(name)
        except OSError:
            continue
    try:
        socket.socket(40, socket.SOCK_STREAM).close()  # AF_VSOCK
        reached.append("vsock")
    except OSError:
        pass
    if not reached:
        raise AccessDenied("no host socket accepted a connection")


def read_outside() -> None:
    """Read a file on the host that any user may read."""
    Path(targets["readable"]).read_bytes()


def write_outside() -> None:
    """Create a file in a directory on the host to which any user may write."""
    (Path(targets["writable"]) / "probe").write_bytes(b"x")


def others_environment() -> None:
    """Read the environment of a process on the host."""
    if b"TASKAPP_PROBE=" not in Path(f"/proc/{targets['pid']}/environ").read_bytes():
        raise AccessDenied("/proc/PID/environ does not contain the variables")


def signal_others() -> None:
    """Send a signal to a process on the host."""
    os.kill(targets["pid"], 0)


def trace_others() -> None:
    """Attach as a debugger to a process on the host, or to a child of this process."""
    child = os.fork()
    if child == 0:
        time.sleep(5)
        os._exit(0)
    try:
        for pid in (targets["pid"], child):
            _libc.ptrace.restype = ctypes.c_long
            if _libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0:
                return
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    raise AccessDenied(os.strerror(ctypes.get_errno()))


def namespaces() -> None:
    """Create a user namespace in a child process, because this process could not leave the namespace again."""
    child = os.fork()
    if child == 0:
        os._exit(0 if _libc.unshare(CLONE_NEWUSER) == 0 else 1)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        raise AccessDenied("unshare fails")


def memory() -> None:
    """Allocate a gigabyte."""
    bytearray(BIG_BYTES)


def big_file() -> None:
    """Create a file of 200 MB."""
    with open("big", "wb") as file:  # noqa: PTH123
        file.truncate(BIG_FILE_BYTES)
    Path("big").unlink()


def forks() -> None:
    """Start 200 concurrent processes."""
    children: list[int] = []
    try:
        for _ in range(FORKS):
            child = os.fork()
            if child == 0:
                time.sleep(20)
                os._exit(0)
            children.append(child)
    except OSError as error:
        raise AccessDenied(f"stops at {len(children)}") from error
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)


def daemon() -> None:
    """Leave a process behind in a new session. The host checks whether the process survives."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(5)
        os._exit(0)


ATTEMPTS: dict[str, Callable[[], None]] = {
    "tcp_out": tcp_out,
    "udp_out": udp_out,
    "other_sockets": other_sockets,
    "read_outside": read_outside,
    "write_outside": write_outside,
    "others_environment": others_environment,
    "signal_others": signal_others,
    "trace_others": trace_others,
    "namespaces": namespaces,
    "memory": memory,
    "big_file": big_file,
    "forks": forks,
    "daemon": daemon,
}


def attempt(work: Callable[[], None]) -> str:
    """Make an attempt. Return "open", or "denied: " with the reason."""
    try:
        work()
    except (OSError, AccessDenied, MemoryError) as error:
        return f"denied: {getattr(error, 'strerror', None) or str(error) or type(error).__name__}"
    return "open"


def main() -> None:
    """Make every attempt and print the outcomes."""
    targets.update(json.load(sys.stdin))
    json.dump({name: attempt(work) for name, work in ATTEMPTS.items()}, sys.stdout)


if __name__ == "__main__":
    main()
