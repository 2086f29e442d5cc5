"""The agent on a remote box's machine. It handles one request from `remote.py`, as root, and writes the reply.

Standard input and standard output are a JSON line followed by bytes. Programs in the box run under a separate user id and do
not inherit the agent's descriptors, so they can neither kill the agent nor write to its output.

The agent only imports the standard library, and `folder.py` and `errors.py` from its zip file. It does not use Linux features
that a sandboxed kernel may lack (pidfd, cgroups, Landlock, namespaces), because the machine is the outer boundary.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from taskapp_kit.errors import SandboxError
from taskapp_kit.sandbox.folder import BEFORE_CODE, Folder

LOOK_SECONDS = 0.05
KILL_SECONDS = 10.0
CHUNK = 65_536
NOT_FOUND = 127
PR_SET_NO_NEW_PRIVS = 38
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None, use_errno=True)


class RemoteFolder(Folder):
    """The box's directory on this machine. The directory persists between calls."""

    def __init__(self, path: Path, uid: int) -> None:
        self.uid = uid
        self.places = {}  # only level 3 has places
        self.path = path
        for name in ("files", "tmp", "shm", "code", "empty"):
            inner = path / name
            if not inner.is_dir():
                inner.mkdir()
                ours = name in ("code", "empty")
                inner.chmod(0o755 if ours else 0o700)
                if not ours:
                    os.chown(inner, uid, uid)
        self._put("sitecustomize.py", BEFORE_CODE)


class Output:
    """A program's stdout or stderr. The first bytes are stored, and the rest is only counted."""

    def __init__(self, pipe: IO[bytes], most: int) -> None:
        self.kept = bytearray()
        self.seen = 0
        self._pipe = pipe
        self._most = most
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        while data := os.read(self._pipe.fileno(), CHUNK):
            self.seen += len(data)
            self.kept += data[: max(0, self._most - len(self.kept))]


def run(request: dict[str, Any], folder: RemoteFolder, data: bytes) -> tuple[dict[str, Any], bytes]:
    """Run one program, and then kill every process that the program has left behind."""
    limits, uid = request["limits"], folder.uid
    assert uid is not None
    code, stdin = data[: request["code_bytes"]], data[request["code_bytes"] :]
    argv = request["argv"]
    if argv is None:
        folder.put_code(code)
        argv = [sys.executable, "-s", "-P", str(folder.path / "code" / "main.py")]
    elif argv[0] in ("python", "python3"):
        argv = [sys.executable, *argv[1:]]
    began = time.monotonic()
    try:
        process = subprocess.Popen(  # noqa: S603 (what it is for)
            argv, cwd=folder.files, env=variables(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, bufsize=0, start_new_session=True,
            preexec_fn=lambda: confine(limits, uid),  # noqa: PLW1509 (no thread was started yet)
        )  # fmt: skip
    except OSError as error:  # reported as in a shell
        text = f"{argv[0]}: {error.strerror}\n".encode()
        counts = [0, len(text)]
        return {
            "exit_code": NOT_FOUND, "signal": None, "killed_for": None, "kept": counts, "seen": counts,
            "wall_seconds": 0.0, "cpu_seconds": 0.0,
        }, text  # fmt: skip
    except subprocess.SubprocessError:
        raise SandboxError("A remote box could not be confined, because its machine cannot apply limits.") from None
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = Output(process.stdout, limits["output_bytes"]), Output(process.stderr, limits["output_bytes"])
    threading.Thread(target=feed, args=(process.stdin, stdin), daemon=True).start()
    killed_for, cpu_seconds = None, 0.0
    look_at = began + LOOK_SECONDS
    while process.poll() is None:
        now = time.monotonic()
        if now - began >= limits["wall_seconds"]:
            killed_for = "wall"
        elif out.seen + err.seen > limits["flood_bytes"]:
            killed_for = "output"
        elif now >= look_at:
            killed_for, cpu_seconds = look(folder, limits, cpu_seconds)
            look_at = now + max(LOOK_SECONDS, 10 * (time.monotonic() - now))
        if killed_for is not None:
            end(uid)
            process.wait(KILL_SECONDS)
            break
        time.sleep(0.005)
    end(uid)
    status = process.wait(KILL_SECONDS)
    for output in (out, err):
        output.thread.join(KILL_SECONDS)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = max(cpu_seconds, used.ru_utime + used.ru_stime)
    if killed_for is None and (
        -status == signal.SIGXCPU or (-status == signal.SIGKILL and cpu_seconds >= limits["cpu_seconds"])
    ):
        killed_for = "cpu"
    folder.clear_temporary()
    reply = {
        "exit_code": status if status >= 0 else None,
        "signal": -status if status < 0 else None,
        "killed_for": killed_for,
        "kept": [len(out.kept), len(err.kept)],
        "seen": [out.seen, err.seen],
        "wall_seconds": time.monotonic() - began,
        "cpu_seconds": cpu_seconds,
    }
    return reply, bytes(out.kept + err.kept)


def variables(folder: RemoteFolder) -> dict[str, str]:
    """Return the environment variables of a program, which are the same as at other levels."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder.files),
        "TMPDIR": str(folder.path / "tmp"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": f"{folder.path / 'code'}:{folder.files}",
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def confine(limits: dict[str, Any], uid: int) -> None:
    """Set the limits and the user id. This runs in the new process before the process executes the program."""
    cpu = max(1, math.ceil(limits["cpu_seconds"]))
    bounds = {
        "AS": limits["memory_bytes"],
        "FSIZE": limits["file_bytes"],
        "NOFILE": limits["open_files"],
        "NPROC": limits["processes"],
        "CORE": 0,
    }
    for name, value in bounds.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    os.umask(0o022)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError("no_new_privs")


def feed(pipe: IO[bytes], data: bytes) -> None:
    """Write the program's standard input, which the program may close early."""
    with contextlib.suppress(OSError):
        view = memoryview(data)
        while view:
            view = view[os.write(pipe.fileno(), view[:CHUNK]) :]
    with contextlib.suppress(OSError):
        pipe.close()


def look(folder: RemoteFolder, limits: dict[str, Any], before: float) -> tuple[str | None, float]:
    """Return (limit, processor seconds): the limit that all processes together exceed, or None if they exceed none."""
    memory, cpu, count = 0, 0.0, 0
    for pid in of_uid(folder.uid or 0):
        with contextlib.suppress(OSError, ValueError, IndexError):
            memory += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            cpu += sum(map(int, after_name[11:15])) / TICKS
            count += 1
    cpu = max(before, cpu)
    stored, files = folder.used(most_files=limits["files"])
    if memory > limits["memory_bytes"]:
        return "memory", cpu
    if stored > limits["file_bytes"] or files > limits["files"]:
        return "disk", cpu
    return ("cpu" if cpu > limits["cpu_seconds"] else None), cpu


def of_uid(uid: int) -> list[int]:
    """Return the ids of the running processes of a user."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if entry.stat().st_uid == uid and state not in "ZX":
                    pids.append(int(entry.name))
    return pids


def end(uid: int) -> None:
    """Kill every process of the box, with a signal from a child process that has the box's user id."""
    deadline = time.monotonic() + KILL_SECONDS
    while of_uid(uid):
        if time.monotonic() > deadline:
            raise SandboxError("Processes in a remote box did not end after SIGKILL.")
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                os.kill(-1, signal.SIGKILL)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.002)


def write(request: dict[str, Any], folder: RemoteFolder, data: bytes) -> tuple[dict[str, Any], bytes]:
    """Create or replace a file."""
    folder.write(request["name"], data, most_bytes=request["most_bytes"])
    return {}, b""


def read(request: dict[str, Any], folder: RemoteFolder, _: bytes) -> tuple[dict[str, Any], bytes]:
    """Return a file's bytes."""
    return {}, folder.read(request["name"], most_bytes=request["most_bytes"])


def names(request: dict[str, Any], folder: RemoteFolder, _: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the paths of the regular files."""
    return {}, json.dumps(folder.names(most=request["most"])).encode()


HANDLERS: dict[str, Callable[[dict[str, Any], RemoteFolder, bytes], tuple[dict[str, Any], bytes]]] = {
    "run": run,
    "write": write,
    "read": read,
    "names": names,
}


def main() -> None:
    """Handle one request and write the reply."""
    request = json.loads(sys.stdin.buffer.readline())
    data = sys.stdin.buffer.read()
    try:
        folder = RemoteFolder(Path(request["folder"]), request["uid"])
        reply, after = HANDLERS[request["do"]](request, folder, data)
    except FileNotFoundError:
        reply, after = {"missing": True}, b""
    except SandboxError as error:
        reply, after = {"error": error.message, "hint": error.hint}, b""
    except OSError as error:
        reply, after = {"error": f"The request {request['do']!r} to a remote box failed: {error.strerror}."}, b""
    sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n" + after)
    sys.stdout.buffer.flush()
    os._exit(0)  # exit without waiting for a thread that is still writing to standard input


if __name__ == "__main__":
    main()
