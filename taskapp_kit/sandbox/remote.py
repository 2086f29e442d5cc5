"""Level 4: each box is on its own remote machine. A provider of machines implements `Machines` and `Machine`.

The machine is the outer boundary. It has no network, no files of the host and no secrets, and is removed when the box is
closed. On the machine, `remote_inside.py` runs each program under a separate user id and measures it. As at other levels, the
behavior of a program is a result, and only failures of the machine raise errors.
"""

from __future__ import annotations

import functools
import io
import json
import select
import threading
import time
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from taskapp_kit.errors import SandboxError
from taskapp_kit.sandbox.limits import RunResult, SandboxLimits
from taskapp_kit.sandbox.supervise import Stop

LEVEL = 4
FOLDER = "/taskapp-box"
"""The box's directory on its machine."""
ROOT = f"{FOLDER}/files"
UID = 61_200
"""The user id of programs. Each machine has one box, so all boxes use the same id. Local boxes use other ids."""
GRACE_SECONDS = 30.0
"""How many seconds a call may take in addition to the program's time limit."""
_HEADER_BYTES = 65_536
_UNPACK = f"""
import os, pathlib, sys
box = pathlib.Path({FOLDER!r})
box.mkdir(mode=0o711, parents=True, exist_ok=True)
box.chmod(0o711)
os.umask(0o077)
(box / "agent.zip").write_bytes(sys.stdin.buffer.read())
"""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command on the machine. `stdout` has at most `most_bytes` bytes."""

    exit_code: int
    stdout: bytes


class Machine(Protocol):
    """The machine of one box. Calls block and do not overlap, but another thread may call `close` during a call."""

    def call(self, argv: Sequence[str], stdin: bytes, *, seconds: float, most_bytes: int) -> CommandResult:
        """Run a command as root and block until it has ended.

        Raises:
            SandboxError: The machine is unreachable, the command took too long, or it printed more than `most_bytes`.
        """
        ...

    def close(self) -> None:
        """Stop the machine and everything on it. A second call does nothing. Never raises."""
        ...


class Machines(Protocol):
    """A provider of machines."""

    @property
    def name(self) -> str:
        """The provider's name, for `/health`."""
        ...

    def open(self, limits: SandboxLimits) -> Machine:
        """Start a machine that has no network and is large enough for these limits. Raises SandboxError if this fails."""
        ...

    def reachable(self) -> tuple[str, int] | None:
        """Return a host and TCP port that this process can reach and boxes must not reach, or None to skip the test."""
        ...


_lock = threading.Lock()
_in_use: Machines | None = None


def use(machines: Machines | None) -> None:
    """Set the machines on which this process creates new boxes. Open boxes are not affected.

    Args:
        machines: The provider of remote machines. None creates boxes on this machine.
    """
    global _in_use
    with _lock:
        _in_use = machines


def in_use() -> Machines | None:
    """Return the provider of machines for new boxes, or None if boxes are created on this machine."""
    return _in_use


class RemoteBox:
    """A box on its own machine, with `run` and the methods of `folder.Folder` that `box.Sandbox` uses."""

    def __init__(self, machines: Machines, limits: SandboxLimits) -> None:
        self._machine = machines.open(limits)
        try:
            argv = ["python3", "-I", "-S", "-c", _UNPACK]
            ended = self._machine.call(argv, agent(), seconds=GRACE_SECONDS, most_bytes=1)
            if ended.exit_code != 0:
                raise SandboxError(
                    "A remote box could not be prepared, because the machine has no usable Python or no root user."
                )
        except BaseException:
            self._machine.close()
            raise

    def write(self, name: str, data: bytes, *, most_bytes: int) -> None:
        """Create or replace a file in the box."""
        self._request({"do": "write", "name": name, "most_bytes": most_bytes}, data)

    def read(self, name: str, *, most_bytes: int) -> bytes:
        """Return the bytes of a file in the box."""
        _, data = self._request({"do": "read", "name": name, "most_bytes": most_bytes}, most_bytes=most_bytes)
        return data

    def names(self, *, most: int) -> list[str]:
        """Return the paths of the files in the box."""
        _, data = self._request({"do": "names", "most": most}, most_bytes=4096 * most)
        paths: list[str] = json.loads(data)
        return paths

    def remove(self) -> None:
        """Stop the machine."""
        self._machine.close()

    def run(
        self, program: str | None, argv: Sequence[str] | None, limits: SandboxLimits, stdin: bytes, stop: Stop
    ) -> RunResult:
        """Run Python source or a command. If the run is stopped, the machine also stops, so the box cannot be used again."""
        code = b"" if program is None else program.encode("utf-8", "surrogatepass")
        request = {
            "do": "run",
            "argv": None if argv is None else list(argv),
            "code_bytes": len(code),
            "limits": asdict(limits),
        }
        began = time.monotonic()
        over = Stop()
        watcher = threading.Thread(target=self._watch, args=(stop, over), name="taskapp-remote-stop", daemon=True)
        watcher.start()
        try:
            reply, data = self._request(
                request, code + stdin, seconds=limits.wall_seconds, most_bytes=2 * limits.output_bytes
            )
        except SandboxError:
            if not stop.stopped:
                raise
            data = b""
            reply = {
                "exit_code": None, "signal": 9, "killed_for": "cancelled", "kept": [0, 0], "seen": [0, 0],
                "cpu_seconds": 0.0, "wall_seconds": time.monotonic() - began,
            }  # fmt: skip
        finally:
            over.stop()
            watcher.join()
            over.close()
        out, err = reply["kept"]
        if len(data) != out + err:
            raise SandboxError("A remote box returned output of a different length than it announced.")
        return RunResult(
            exit_code=reply["exit_code"],
            signal=reply["signal"],
            stdout_bytes=data[:out],
            stderr_bytes=data[out:],
            stdout_truncated=reply["seen"][0] > out,
            stderr_truncated=reply["seen"][1] > err,
            wall_seconds=reply["wall_seconds"],
            cpu_seconds=reply["cpu_seconds"],
            killed_for=reply["killed_for"],
            level=LEVEL,
        )

    def _watch(self, stop: Stop, over: Stop) -> None:
        """Close the machine if the run is stopped before it has ended."""
        readable, _, _ = select.select([stop, over], [], [])
        if over not in readable:
            self._machine.close()

    def _request(
        self, request: dict[str, Any], data: bytes = b"", *, seconds: float = 0.0, most_bytes: int = 0
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request to the agent. Return the JSON reply and the bytes after it, which programs cannot forge."""
        argv = ["python3", "-I", f"{FOLDER}/agent.zip"]
        sent = json.dumps(request | {"folder": FOLDER, "uid": UID}).encode() + b"\n" + data
        ended = self._machine.call(argv, sent, seconds=seconds + GRACE_SECONDS, most_bytes=most_bytes + _HEADER_BYTES)
        line, _, rest = ended.stdout.partition(b"\n")
        try:
            reply = json.loads(line)
        except ValueError:
            raise SandboxError(f"A remote box did not reply. Its agent exited with code {ended.exit_code}.") from None
        if reply.get("missing"):
            raise FileNotFoundError(2, "The box has no such file", request.get("name", ""))
        if "error" in reply:
            raise SandboxError(reply["error"], hint=reply.get("hint", ""))
        return reply, rest


@functools.cache
def agent() -> bytes:
    """Return the agent for the machine: a zip file with `remote_inside.py` and the two modules that it imports."""
    here = Path(__file__).parent
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, path in (("errors.py", here.parent / "errors.py"), ("sandbox/folder.py", here / "folder.py")):
            file.write(path, f"taskapp_kit/{name}")
        file.writestr("taskapp_kit/__init__.py", "")
        file.writestr("taskapp_kit/sandbox/__init__.py", "")
        file.write(here / "remote_inside.py", "__main__.py")
    return packed.getvalue()
