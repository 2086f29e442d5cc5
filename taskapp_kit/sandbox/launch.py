"""A program that confines itself and then executes the box's program, for levels 1 and 2.

Run it as `python -I -S launch.py STATUS_FD PARENT UID FOLDER LIMITS FILTER READ LIST WRITE DEVICES COMMAND…`. Pass "-"
for a missing value:

    STATUS_FD           descriptor for error reports, which the command does not inherit
    PARENT              pid of the parent process; this process is killed when the parent dies
    UID                 user and group id of the box
    FOLDER              working directory
    LIMITS              comma-separated NAME=value, with names as in RLIMIT_NAME
    FILTER              seccomp program in hex
    READ … DEVICES      paths for Landlock, separated by the character 0x1f; READ "-" disables Landlock

The command inherits the environment. If a step fails, this program exits before the command runs. It does not import the
kit, json, re or typing, because the imports would take longer than the rest of the program.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys

PATH = "/usr/local/bin:/usr/bin:/bin"
FAILED, NOT_FOUND = 125, 127
SIGKILL = 9
S_IFMT, S_IFDIR = 0o170000, 0o040000
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
SECCOMP_MODE_FILTER = 2

# The Landlock calls have the same numbers on every architecture.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH = 1, 1
# The bits for file access. The kernel's ABI version determines how many of the bits it supports.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = 1, 2, 4, 8, 1 << 14, 1 << 15
KNOWN_BITS = {1: 13, 2: 14, 3: 15, 4: 15}  # 16 from version 5 on
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
NEEDED_ABI = 1

NOTHING, BETWEEN = "-", "\x1f"
KINDS = ("read", "list", "write", "devices")

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, *values: int) -> None:
    """Call `prctl(2)`. Raises OSError if the call fails."""
    arguments = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    _checked(_libc.prctl(option, *arguments), f"prctl {option}")


def landlock_abi() -> int:
    """Return the kernel's Landlock version, or 0 if the kernel has no Landlock."""
    return max(
        0, int(_libc.syscall(ctypes.c_long(CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(VERSION_FLAG)))
    )


def confine_files(rules: dict[str, list[str]]) -> None:
    """Use Landlock to allow only these paths, to deny TCP (from ABI 4), and to confine abstract sockets and signals (ABI 6)."""
    abi = landlock_abi()
    if abi < NEEDED_ABI:
        raise OSError(0, "this kernel has no Landlock")
    every = (1 << KNOWN_BITS.get(abi, 16)) - 1
    attributes = struct.pack("<QQQ", every, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _checked(
        _libc.syscall(ctypes.c_long(CREATE_RULESET), attributes, ctypes.c_size_t(size), ctypes.c_uint(0)),
        "landlock_create_ruleset",
    )
    allowed = {
        "read": EXECUTE | READ_FILE | READ_DIR,
        "list": READ_DIR,
        "write": every & ~IOCTL_DEV,
        "devices": READ_FILE | WRITE_FILE,
    }
    for kind, paths in rules.items():
        for path in paths:
            _allow(ruleset, path, allowed[kind] & every)
    _checked(
        _libc.syscall(ctypes.c_long(RESTRICT_SELF), ctypes.c_int(ruleset), ctypes.c_uint(0)), "landlock_restrict_self"
    )
    os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if os.fstat(opened).st_mode & S_IFMT != S_IFDIR:
            access &= OF_A_FILE
        if access:
            rule = struct.pack("<Qi", access, opened)
            _checked(
                _libc.syscall(
                    ctypes.c_long(ADD_RULE), ctypes.c_int(ruleset), ctypes.c_int(PATH_BENEATH), rule, ctypes.c_uint(0)
                ),
                f"landlock_add_rule {path}",
            )
    finally:
        os.close(opened)


def filter_calls(program: bytes) -> None:
    """Load a seccomp filter (`struct sock_filter`, 8 bytes each)."""
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(held))
    shown = ctypes.create_string_buffer(header, len(header))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(shown))


def confine(parent: str, uid: str, folder: str, limits: str, program: str, paths: list[str]) -> None:
    """Apply every restriction to this process. The restrictions that need the most privileges come first."""
    for limit in limits.split(","):
        name, value = limit.split("=")
        hard = int(value) + (name == "CPU")  # SIGXCPU at the soft limit, SIGKILL a second later
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (int(value), hard))
    if uid != NOTHING:
        os.setgroups([])
        os.setresgid(int(uid), int(uid), int(uid))
        os.setresuid(int(uid), int(uid), int(uid))
    os.chdir(folder)
    if sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, SIGKILL)  # after changing ids, because changing them clears this setting
        prctl(PR_SET_NO_NEW_PRIVS, 1)
    if os.getppid() != int(parent):
        raise OSError(0, "the parent process has ended")
    if paths[0] != NOTHING:
        confine_files(dict(zip(KINDS, (kind.split(BETWEEN) for kind in paths), strict=True)))
    if program != NOTHING:
        filter_calls(bytes.fromhex(program))


def main() -> None:
    """Confine this process, then execute the command."""
    status_fd, parent, uid, folder, limits, program, *rest = sys.argv[1:]
    paths, command = rest[: len(KINDS)], rest[len(KINDS) :]
    os.set_inheritable(int(status_fd), False)
    try:
        os.umask(0o022)
        confine(parent, uid, folder, limits, program, paths)
    except (OSError, ValueError) as error:
        os.write(int(status_fd), str(error).encode())
        sys.exit(FAILED)
    become(command)


def become(command: list[str]) -> None:
    """Execute the command like `os.execvp`, but without imports, because the standard library may be inaccessible by now."""
    reason = "No such file or directory"
    for folder in [""] if "/" in command[0] else PATH.split(":"):
        try:
            os.execv(f"{folder}/{command[0]}" if folder else command[0], command)  # noqa: S606 (what it is for)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            reason = str(error.strerror)
    os.write(2, f"{command[0]}: {reason}\n".encode())
    sys.exit(NOT_FOUND)


if __name__ == "__main__":
    main()
