"""Builds the start of a program at each level: the command, its environment, the descriptors that it inherits.

4  remote       another machine: see remote.py
3  bubblewrap   namespaces, seccomp, rlimits; as root also a user id of the box's own
2  landlock     Landlock, seccomp without sockets, rlimits, a user id of the box's own: needs root
1  rlimits      limits and a clean environment; as root also a user id of the box's own
0  none         a plain child process with a clean environment
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from taskapp_kit.errors import Unavailable
from taskapp_kit.sandbox import interpreter, processes
from taskapp_kit.sandbox.folder import Folder, tool
from taskapp_kit.sandbox.launch import BETWEEN, KINDS, NOTHING, PATH
from taskapp_kit.sandbox.limits import SandboxLimits
from taskapp_kit.sandbox.syscalls import seccomp_program
from taskapp_kit.system.child_python import python_command

NAMES = {0: "none", 1: "rlimits", 2: "landlock", 3: "bubblewrap", 4: "remote"}
LOCAL_LEVELS = (3, 2, 1, 0)
SAFE_LEVEL = 2

TEMPORARY, SHARED = "/tmp", "/dev/shm"  # noqa: S108 (in the box)
TAKEN = frozenset(
    "bin boot box code dev etc lib lib32 lib64 libx32 proc run sbin sys tmp usr var".split()  # noqa: SIM905 (shorter)
)
"""Top folders of the machine and of every box, which a box cannot have for itself."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# Process 1 of the box: waits for the program, so that its usage is accounted and the program itself is not process 1.
# When started by root it stays root's, without rights: only then may a dying bubblewrap kill it, and the program may not.
# Its own messages ("Killed") are discarded.
#
# It reports that it is running (one line on stdout) and waits for a line on stdin. Before that nothing ties it to our
# process; if ours ended meanwhile, no line comes, and it exits.
_FIRST_PROCESS = 'echo; read -r _ || exit 1; cd /box; exec 3>&2 2>/dev/null; (exec "$@" 2>&3 3>&-); exit $?'


@dataclass(slots=True)
class Launch:
    """A command to start. pass_fds: inherited by it, then closed by us. status_fd: where the launcher reports
    what the program cannot forge: bubblewrap JSON lines, launch.py why it failed. handshake: it prints a line and waits
    for an answer before it begins.
    """

    argv: list[str]
    environment: dict[str, str]
    folder: str
    pass_fds: list[int] = field(default_factory=list)
    status_fd: int | None = None
    handshake: bool = False


def inner_root(level: int, folder: Folder) -> str:
    """Return the working directory as the program in the box sees it."""
    return "/box" if level == 3 else str(folder.files)


def own_uid(level: int) -> bool:
    """Return whether a box of this level runs under a user id of its own."""
    return level > 0 and os.geteuid() == 0


def prepare(
    level: int, folder: Folder, argv: Sequence[str] | None, limits: SandboxLimits, readable: Sequence[str] = ()
) -> Launch:
    """Return the command of one run. argv None: the Python program in the box's code folder. readable: further folders to show.

    Raises Unavailable when this machine lacks what the level needs.
    """
    python = _interpreter(level)
    if argv is None:
        code = "/code/main.py" if level == 3 else str(folder.path / "code" / "main.py")
        argv = [python.program, "-s", *(["-P"] if python == interpreter.own() else []), code]  # -P came with 3.11
    else:
        argv = interpreter.command(argv, python.program)
    if level == 3:
        return _bubblewrap(folder, argv, limits, readable)
    environment = _environment(str(folder.files), str(folder.path / "tmp"), str(folder.path / "code"))
    if level == 0:
        return Launch(["/bin/sh", "-c", 'exec "$@"', "sh", *argv], environment, str(folder.files))
    limited = [f"{name}={value}" for name, value in _rlimits(limits, folder.uid is not None).items()]
    status_read, status_write = os.pipe()
    command = python_command(Path(__file__).with_name("launch.py"), str(status_write))
    command += [
        str(os.getpid()),
        NOTHING if folder.uid is None else str(folder.uid),
        str(folder.files),
        ",".join(limited),
    ]
    command.append(_filter(False).hex() if level == 2 else NOTHING)
    rules = _landlock(folder, python) if level == 2 else {}
    command += [BETWEEN.join(rules.get(kind, [NOTHING])) for kind in KINDS]
    return Launch([*command, *argv], environment, "/", [status_write], status_read)


def _interpreter(level: int) -> interpreter.Interpreter:
    if level == 3 or not own_uid(level):
        return interpreter.own()
    found = interpreter.reachable()
    if found is None:
        raise Unavailable(
            f"No Python can be started by another user: {interpreter.own().program} is in a closed folder.",
            hint="Install the system's Python (apt-get install python3).",
        )
    return found


def _environment(home: str, temporary: str, code: str) -> dict[str, str]:
    """Return all variables of a box. None of ours are passed on."""
    return {
        "PATH": PATH,
        "HOME": home,
        "TMPDIR": temporary,
        "LANG": "C.UTF-8",
        "PYTHONPATH": code,  # sitecustomize.py puts the working directory in its place
        "PYTHONHASHSEED": "0",  # the same program prints the same output
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _rlimits(limits: SandboxLimits, own: bool) -> dict[str, int]:
    """Limit names of `setrlimit`, without RLIMIT_, to values."""
    found = {
        "AS": limits.memory_bytes,
        "CPU": max(1, math.ceil(limits.cpu_seconds)),
        "FSIZE": limits.file_bytes,
        "NOFILE": limits.open_files,
        "NPROC": limits.processes if own else limits.processes + processes.threads_of(os.getuid()),
        "CORE": 0,
        "MEMLOCK": 0,
    }
    if sys.platform == "linux":
        found |= {"MSGQUEUE": 0, "RTPRIO": 0, "SIGPENDING": 128}
    return found


@functools.cache
def _filter(sockets: bool) -> bytes:
    return seccomp_program(sockets=sockets)


def _landlock(folder: Folder, python: interpreter.Interpreter) -> dict[str, list[str]]:
    if folder.uid is None:
        raise Unavailable("This level needs a user id for each box, which only root can assign.")
    read, listed = interpreter.readable(python.program)
    return {
        "read": [*read, str(folder.path / "code")],
        "list": list(listed),
        "write": [str(folder.path / name) for name in ("files", "tmp")],
        "devices": list(_DEVICES),
    }


def _bubblewrap(folder: Folder, argv: Sequence[str], limits: SandboxLimits, readable: Sequence[str]) -> Launch:
    """As root: root's own mounts, then the box's user id inside. Otherwise: a user namespace, where ids have no rights."""
    found = {name: tool(name) for name in ("bwrap", "prlimit", "setpriv", "sh")}
    for name, package in (("bwrap", "bubblewrap"), ("prlimit", "util-linux"), ("setpriv", "util-linux")):
        if found[name] is None:
            raise Unavailable(f"The program {name} is not installed.", hint=f"Install it: apt-get install {package}.")
    command = [str(found["bwrap"]), "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--hostname", "box", "--new-session", "--die-with-parent", "--as-pid-1"]
    enter: list[str] = []
    if folder.uid is None:
        command += ["--unshare-user", "--cap-drop", "ALL"]
    else:
        command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        enter = [str(found["setpriv"]), f"--reuid={folder.uid}", f"--regid={folder.uid}", "--clear-groups"]
        enter.append("--")
    for root in interpreter.SYSTEM:
        path = Path(root)
        if path.is_symlink():
            command += ["--symlink", str(path.readlink()), root]
        elif path.exists():
            command += ["--ro-bind", root, root]
    prefix = interpreter.own().prefix
    if prefix is not None:
        command += _shown(prefix)
    for path in map(Path, interpreter.EXTRA):
        command += ["--ro-bind-try", str(path), str(path)]
    for hidden in interpreter.hidden():
        command += ["--ro-bind", str(folder.path / "empty"), hidden]
    command += ["--proc", "/proc", "--dev", "/dev", "--bind", str(folder.path / "shm"), SHARED]
    command += [
        "--remount-ro",
        "/dev",
        "--bind",
        str(folder.files),
        "/box",
        "--bind",
        str(folder.path / "tmp"),
        TEMPORARY,
    ]
    command += ["--ro-bind", str(folder.path / "code"), "/code"]
    for place, below in folder.places.items():
        command += ["--bind", str(folder.path / below), place]
    for further in readable:
        command += _shown(os.path.abspath(further))  # noqa: PTH100 (links in it are the box's own to follow)
    command += ["--remount-ro", "/"]
    filter_fd = _readable(_filter(True))
    status_read, status_write = os.pipe()
    command += ["--seccomp", str(filter_fd), "--json-status-fd", str(status_write), "--"]
    # without an id of its own, process 1 counts too
    bounds = _rlimits(limits, True) | {"NPROC": limits.processes + (folder.uid is None)}
    soft = [f"--{name.lower()}={value}" for name, value in bounds.items() if name != "CPU"]
    soft.append(f"--cpu={bounds['CPU']}:{bounds['CPU'] + 1}")
    command += [str(found["sh"]), "-c", _FIRST_PROCESS, "sh", *enter, str(found["prlimit"]), *soft, "--", *argv]
    return Launch(
        command, _environment("/box", TEMPORARY, "/code"), "/", [filter_fd, status_write], status_read, handshake=True
    )


def _shown(path: str) -> list[str]:
    """Return a folder of the machine in the box. By default bubblewrap makes /root inaccessible to others."""
    parents = [str(parent) for parent in list(Path(path).parents)[-2::-1]]
    return [*(word for parent in parents for word in ("--dir", parent)), "--ro-bind", path, path]


def _readable(data: bytes) -> int:
    """Return a descriptor from which these bytes can be read once."""
    found = os.memfd_create("taskapp-filter", os.MFD_CLOEXEC)
    os.write(found, data)
    os.lseek(found, 0, os.SEEK_SET)
    return found
