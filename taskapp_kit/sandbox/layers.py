"""How a program is started at each level: the command, the environment, and the inherited descriptors.

4  remote       another machine; see remote.py
3  bubblewrap   namespaces, seccomp, rlimits; as root also a separate user id
2  landlock     Landlock, seccomp without sockets, rlimits, a separate user id; requires root
1  rlimits      limits and a clean environment; as root also a separate user id
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
TAKEN = frozenset("bin boot box code dev etc lib lib32 lib64 libx32 proc run sbin sys tmp usr var".split())
"""Top-level directories that every box has, which cannot be `places`."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# Process 1 in the box. It waits for the program, so that the program is not process 1 and its usage is measured.
# If root starts it, it keeps root's id without rights, so that a dying bubblewrap can kill process 1, but the program cannot.
# Its own messages ("Killed") are discarded.
#
# It prints one line when it is running and then waits for a line on stdin, because until then it would survive the end of
# this process. If this process has died, the line never arrives, and process 1 exits.
_FIRST_PROCESS = 'echo; read -r _ || exit 1; cd /box; exec 3>&2 2>/dev/null; (exec "$@" 2>&3 3>&-); exit $?'


@dataclass(slots=True)
class Launch:
    """A command to start.

    Attributes:
        pass_fds: The descriptors that the command inherits. The parent closes them afterwards.
        status_fd: The descriptor for the launcher's reports, which the program cannot forge. bubblewrap writes JSON
            lines, and launch.py writes an error.
        handshake: Whether the command prints a line and waits for a reply before it starts the program.
    """

    argv: list[str]
    environment: dict[str, str]
    folder: str
    pass_fds: list[int] = field(default_factory=list)
    status_fd: int | None = None
    handshake: bool = False


def inner_root(level: int, folder: Folder) -> str:
    """Return the path of the working directory inside the box."""
    return "/box" if level == 3 else str(folder.files)


def own_uid(level: int) -> bool:
    """Return whether boxes at this level have separate user ids."""
    return level > 0 and os.geteuid() == 0


def prepare(
    level: int, folder: Folder, argv: Sequence[str] | None, limits: SandboxLimits, readable: Sequence[str] = ()
) -> Launch:
    """Return the command of one run.

    Args:
        level: The sandbox level.
        folder: The directory of the box.
        argv: The command, or None for the Python program in the box's code directory.
        limits: The limits of the run.
        readable: Additional directories that the program may read.

    Raises:
        Unavailable: This machine does not support the level.
    """
    python = _interpreter(level)
    if argv is None:
        code = "/code/main.py" if level == 3 else str(folder.path / "code" / "main.py")
        argv = [python.program, "-s", *(["-P"] if python == interpreter.own() else []), code]  # -P requires Python 3.11
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
    python = interpreter.reachable()
    if python is None:
        raise Unavailable(
            f"The user of a box cannot start Python because {interpreter.own().program} is in a private directory.",
            hint="Install the system's Python (apt-get install python3).",
        )
    return python


def _environment(home: str, temporary: str, code: str) -> dict[str, str]:
    """Return the environment variables of a box. The variables of this process are not inherited."""
    return {
        "PATH": PATH,
        "HOME": home,
        "TMPDIR": temporary,
        "LANG": "C.UTF-8",
        "PYTHONPATH": code,  # sitecustomize.py replaces this path with the working directory
        "PYTHONHASHSEED": "0",  # so that a program always prints the same output
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _rlimits(limits: SandboxLimits, own: bool) -> dict[str, int]:
    """Return the values for `setrlimit` by name. The names omit the prefix RLIMIT_."""
    values = {
        "AS": limits.memory_bytes,
        "CPU": max(1, math.ceil(limits.cpu_seconds)),
        "FSIZE": limits.file_bytes,
        "NOFILE": limits.open_files,
        "NPROC": limits.processes if own else limits.processes + processes.threads_of(os.getuid()),
        "CORE": 0,
        "MEMLOCK": 0,
    }
    if sys.platform == "linux":
        values |= {"MSGQUEUE": 0, "RTPRIO": 0, "SIGPENDING": 128}
    return values


@functools.cache
def _filter(sockets: bool) -> bytes:
    return seccomp_program(sockets=sockets)


def _landlock(folder: Folder, python: interpreter.Interpreter) -> dict[str, list[str]]:
    if folder.uid is None:
        raise Unavailable("Sandbox level 2 requires root, because each box gets a separate user id.")
    read, listed = interpreter.readable(python.program)
    return {
        "read": [*read, str(folder.path / "code")],
        "list": list(listed),
        "write": [str(folder.path / name) for name in ("files", "tmp")],
        "devices": list(_DEVICES),
    }


def _bubblewrap(folder: Folder, argv: Sequence[str], limits: SandboxLimits, readable: Sequence[str]) -> Launch:
    """Return the command for level 3.

    Root mounts the directories as root and then changes to the box's user id. Other users use a user namespace, in which user
    ids have no privileges.
    """
    tools = {name: tool(name) for name in ("bwrap", "prlimit", "setpriv", "sh")}
    for name, package in (("bwrap", "bubblewrap"), ("prlimit", "util-linux"), ("setpriv", "util-linux")):
        if tools[name] is None:
            raise Unavailable(f"The program {name} is not installed.", hint=f"Install it: apt-get install {package}.")
    command = [str(tools["bwrap"]), "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--hostname", "box", "--new-session", "--die-with-parent", "--as-pid-1"]
    enter: list[str] = []
    if folder.uid is None:
        command += ["--unshare-user", "--cap-drop", "ALL"]
    else:
        command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        enter = [str(tools["setpriv"]), f"--reuid={folder.uid}", f"--regid={folder.uid}", "--clear-groups", "--"]
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
    command += ["--proc", "/proc", "--dev", "/dev", "--bind", str(folder.path / "shm"), SHARED, "--remount-ro", "/dev"]
    command += ["--bind", str(folder.files), "/box", "--bind", str(folder.path / "tmp"), TEMPORARY]
    command += ["--ro-bind", str(folder.path / "code"), "/code"]
    for place, below in folder.places.items():
        command += ["--bind", str(folder.path / below), place]
    for path_to_read in readable:
        command += _shown(os.path.abspath(path_to_read))  # noqa: PTH100 (the box resolves links in it)
    command += ["--remount-ro", "/"]
    filter_fd = _readable(_filter(True))
    status_read, status_write = os.pipe()
    command += ["--seccomp", str(filter_fd), "--json-status-fd", str(status_write), "--"]
    # without a separate user id, process 1 counts as one of the processes
    bounds = _rlimits(limits, True) | {"NPROC": limits.processes + (folder.uid is None)}
    soft = [f"--{name.lower()}={value}" for name, value in bounds.items() if name != "CPU"]
    soft.append(f"--cpu={bounds['CPU']}:{bounds['CPU'] + 1}")
    command += [str(tools["sh"]), "-c", _FIRST_PROCESS, "sh", *enter, str(tools["prlimit"]), *soft, "--", *argv]
    return Launch(
        command, _environment("/box", TEMPORARY, "/code"), "/", [filter_fd, status_write], status_read, handshake=True
    )


def _shown(path: str) -> list[str]:
    """Return the arguments that mount a host directory. Parents are created first, because bubblewrap makes /root private."""
    parents = [str(parent) for parent in list(Path(path).parents)[-2::-1]]
    return [*(word for parent in parents for word in ("--dir", parent)), "--ro-bind", path, path]


def _readable(data: bytes) -> int:
    """Return a file descriptor from which these bytes can be read once."""
    descriptor = os.memfd_create("taskapp-filter", os.MFD_CLOEXEC)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
