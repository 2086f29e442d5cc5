"""Level 4: boxes on machines of others, each its own, reached through two protocols that somebody above us implements.

The machine is the outer wall: it has no network, none of our files, no secret, and is gone when the box is closed. Inside
it `remote_inside.py` runs each program under a user id of its own and measures it, so that what a program does is a result
here, too, and only what happens to the machine is our failure.
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
from taskapp_kit.sandbox.stop import Stop

LEVEL = 4
PLACE = "/taskapp-box"
"""Where a box lies on its machine."""
ROOT = f"{PLACE}/files"
UID = 61_200
"""Of the programs; a machine holds one box, so every box may have the same. None of the ids that boxes of this machine take."""
GRACE_SECONDS = 30.0
"""What a call may take beyond the program's own time."""
_HEADER_BYTES = 65_536
_UNPACK = f"""
import os, pathlib, sys
place = pathlib.Path({PLACE!r})
place.mkdir(mode=0o711, parents=True, exist_ok=True)
place.chmod(0o711)
os.umask(0o077)
(place / "agent.zip").write_bytes(sys.stdin.buffer.read())
"""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command of ours that ended on the machine. stdout: at most as much as was asked for."""

    exit_code: int
    stdout: bytes


class Machine(Protocol):
    """A machine that is one box's own. Calls block, one at a time; `close` may come from another thread meanwhile."""

    def call(self, argv: Sequence[str], stdin: bytes, *, seconds: float, most_bytes: int) -> CommandResult:
        """Runs a command as root and waits for it. Raises SandboxError: unreachable, gone, too slow, too much output."""
        ...

    def close(self) -> None:
        """Ends the machine and all that runs on it. A second call does nothing; never raises."""
        ...


class Machines(Protocol):
    """Where machines come from. name: of the provider, for `/health`."""

    @property
    def name(self) -> str:
        """Of the provider."""
        ...

    def open(self, limits: SandboxLimits) -> Machine:
        """A new machine without network, large enough for programs of these limits. Raises SandboxError."""
        ...

    def reachable(self) -> tuple[str, int] | None:
        """(host, TCP port) that this process can connect to and a box must not; None when there is nothing to try."""
        ...


_lock = threading.Lock()
_in_use: Machines | None = None


def use(machines: Machines | None) -> None:
    """From now on boxes of this process are on these machines; None: on this one. Boxes that are open stay where they are."""
    global _in_use
    with _lock:
        _in_use = machines


def in_use() -> Machines | None:
    """Where this process's boxes are, None for this machine."""
    return _in_use


class RemoteBox:
    """A box on a machine of its own, with the methods of `folder.Folder` that `box.Sandbox` uses, and `run`."""

    def __init__(self, machines: Machines, limits: SandboxLimits) -> None:
        self._machine = machines.open(limits)
        try:
            argv = ["python3", "-I", "-S", "-c", _UNPACK]
            ended = self._machine.call(argv, agent(), seconds=GRACE_SECONDS, most_bytes=1)
            if ended.exit_code != 0:
                raise SandboxError("A remote box could not be prepared: its machine has no usable Python, or no root.")
        except BaseException:
            self._machine.close()
            raise

    def write(self, name: str, data: bytes, *, most_bytes: int) -> None:
        """See `Folder.write`."""
        self._asked({"do": "write", "name": name, "most_bytes": most_bytes}, data)

    def read(self, name: str, *, most_bytes: int) -> bytes:
        """See `Folder.read`."""
        _, data = self._asked({"do": "read", "name": name, "most_bytes": most_bytes}, most_bytes=most_bytes)
        return data

    def names(self, *, most: int) -> list[str]:
        """See `Folder.names`."""
        _, data = self._asked({"do": "names", "most": most}, most_bytes=4096 * most)
        found: list[str] = json.loads(data)
        return found

    def remove(self) -> None:
        """Ends the machine."""
        self._machine.close()

    def run(
        self, program: str | None, argv: Sequence[str] | None, limits: SandboxLimits, stdin: bytes, stop: Stop
    ) -> RunResult:
        """Runs Python source, or a command. When it is stopped the whole machine goes, and the box is of no more use."""
        code = b"" if program is None else program.encode("utf-8", "surrogatepass")
        asked = {
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
            told, data = self._asked(
                asked, code + stdin, seconds=limits.wall_seconds, most_bytes=2 * limits.output_bytes
            )
        except SandboxError:
            if not stop.stopped:
                raise
            nothing: dict[str, Any] = {"signal": 9, "killed_for": "cancelled", "kept": [0, 0], "seen": [0, 0]}
            told, data = (
                {"exit_code": None, "cpu_seconds": 0.0, "wall_seconds": time.monotonic() - began} | nothing,
                b"",
            )
        finally:
            over.stop()
            watcher.join()
            over.close()
        out, err = told["kept"]
        if len(data) != out + err:
            raise SandboxError("A remote box told less of a run than it promised.")
        return RunResult(
            exit_code=told["exit_code"],
            signal=told["signal"],
            stdout_bytes=data[:out],
            stderr_bytes=data[out:],
            stdout_truncated=told["seen"][0] > out,
            stderr_truncated=told["seen"][1] > err,
            wall_seconds=told["wall_seconds"],
            cpu_seconds=told["cpu_seconds"],
            killed_for=told["killed_for"],
            level=LEVEL,
        )

    def _watch(self, stop: Stop, over: Stop) -> None:
        """Ends the machine when the run is to end before it is over."""
        readable, _, _ = select.select([stop, over], [], [])
        if over not in readable:
            self._machine.close()

    def _asked(
        self, asked: dict[str, Any], data: bytes = b"", *, seconds: float = 0.0, most_bytes: int = 0
    ) -> tuple[dict[str, Any], bytes]:
        """(what our program on the machine told, the bytes after it). Its words are ours: no box's program can write there."""
        argv = ["python3", "-I", f"{PLACE}/agent.zip"]
        sent = json.dumps(asked | {"place": PLACE, "uid": UID}).encode() + b"\n" + data
        ended = self._machine.call(argv, sent, seconds=seconds + GRACE_SECONDS, most_bytes=most_bytes + _HEADER_BYTES)
        line, _, rest = ended.stdout.partition(b"\n")
        try:
            told = json.loads(line)
        except ValueError:
            raise SandboxError(f"A remote box did not answer (its program ended with {ended.exit_code}).") from None
        if told.get("missing"):
            raise FileNotFoundError(2, "The box has no such file", asked.get("name", ""))
        if "error" in told:
            raise SandboxError(told["error"], hint=told.get("hint", ""))
        return told, rest


@functools.cache
def agent() -> bytes:
    """What runs on the machine: `remote_inside.py` and the two modules that it needs, as a program in a zip file."""
    here = Path(__file__).parent
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, path in (("errors.py", here.parent / "errors.py"), ("sandbox/folder.py", here / "folder.py")):
            file.write(path, f"taskapp_kit/{name}")
        file.writestr("taskapp_kit/__init__.py", "")
        file.writestr("taskapp_kit/sandbox/__init__.py", "")
        file.write(here / "remote_inside.py", "__main__.py")
    return packed.getvalue()
