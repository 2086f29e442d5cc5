"""Services that run Python programs in a sandbox: `SandboxedPythonCoder` and `PythonWorkspace`, which keeps files."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taskapp_kit.errors import BadArgument, SandboxError
from taskapp_kit.sandbox import RunResult, Sandbox, SandboxLimits
from taskapp_kit.sandbox import remote as remote_boxes
from taskapp_kit.services.actor import Actor
from taskapp_kit.services.endpoints import endpoint

ARTEFACT_BYTES = 2**20
"""Maximum size of a returned file in bytes."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of a program.

    Attributes:
        stdout: Standard output.
        stderr: Standard error. If the program failed, the last line is the reason, as in the result of `execute`.
        exit_code: Exit code, or None if a signal ended the program.
        signal: Number of the signal that ended the program, or None if no signal ended it.
        killed_for: Limit that the program exceeded, or None if it was not killed.
        seconds: Wall time in seconds.
        cpu_seconds: Processor time of all the program's processes.
        level: Sandbox level.
        files: Names of the files in the program's working directory.
        artefacts: Contents of the requested files.
        problems: For each requested file that is missing, the reason, by the file's name.
    """

    stdout: str
    stderr: str
    exit_code: int | None
    signal: int | None
    killed_for: str | None
    seconds: float
    cpu_seconds: float
    level: int
    files: list[str] = field(default_factory=list)
    artefacts: dict[str, bytes] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the program ended with exit code 0 and was not killed."""
        return self.exit_code == 0 and self.killed_for is None


class SandboxedPythonCoder(Actor):
    """Runs untrusted Python programs: `SandboxedPythonCoder.options(num_replicas=16).as_service()`.

        stdout, stderr = await coder.execute.route("print(6 * 7)")

    Each program has an empty working directory, no network, and the limits of a sandbox (docs/environments/sandbox.md). A
    replica runs one program at a time, in its own box. If this machine cannot confine programs, the service does not start.
    To keep files between programs, use `PythonWorkspace`.

    Args:
        limits: Limits of each program.
        level: Sandbox level. Defaults to the strongest level that works on this machine.
        allow_weak: Whether a weak level is allowed, as for `Sandbox`.
        warm: Whether to start the next interpreter before its program arrives.
    """

    _files_stay = False

    def __init__(
        self,
        *,
        limits: SandboxLimits | None = None,
        level: int | None = None,
        allow_weak: bool | None = None,
        warm: bool = True,
    ) -> None:
        self._limits = limits or SandboxLimits()
        self._options: dict[str, Any] = {"level": level, "allow_weak": allow_weak, "warm": warm}
        self._box = self._opened()

    @endpoint(idempotent=True)
    async def execute(self, code: Any) -> tuple[str, str]:
        """Run a program.

        Args:
            code: Python source, or an object with the source in its attribute `text`, such as a policy's `Response`.

        Returns:
            Standard output and standard error. If the program failed (killed, ended by a signal, or a non-zero exit
            code), the last line of standard error is the reason. Standard error is empty only if the program succeeded
            and wrote nothing to it.

        Raises:
            SandboxError: The program could not be started.
        """
        ran = await self._ran(code, "", {})
        await self._cleared()
        return ran.stdout, _standard_error(ran, self._limits)

    @endpoint(idempotent=True)
    async def run(
        self,
        code: Any,
        *,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        artefacts: Sequence[str] = (),
    ) -> Execution:
        """Run a program and return its full result.

        Args:
            code: Python source, as for `execute`.
            stdin: Standard input.
            files: Files to write to the working directory before the program runs.
            artefacts: Names of files to return, each at most 1 MiB.

        Raises:
            SandboxError: The program could not be started, or a file could not be written.
        """
        ran = await self._ran(code, stdin, files or {})
        found, problems = await self._read(artefacts)
        names = await self._names()
        await self._cleared()
        return Execution(
            stdout=ran.stdout,
            stderr=_standard_error(ran, self._limits),
            exit_code=ran.exit_code,
            signal=ran.signal,
            killed_for=ran.killed_for,
            seconds=ran.wall_seconds,
            cpu_seconds=ran.cpu_seconds,
            level=ran.level,
            files=names,
            artefacts=found,
            problems=problems,
        )

    def close(self) -> None:
        """Kill a running program and remove the box."""
        self._box.close()

    def _opened(self) -> Sandbox:
        box = Sandbox(limits=self._limits, **self._options)
        box.__enter__()
        return box

    async def _ran(self, code: Any, stdin: str, files: Mapping[str, str | bytes]) -> RunResult:
        source = getattr(code, "text", code)
        if not isinstance(source, str):
            raise BadArgument(f"The program has the type {type(code).__name__}. Pass the Python source as a string.")
        for name, data in files.items():
            await self._box.write(name, data)
        return await self._box.run(
            source, stdin=stdin.encode("utf-8", "surrogatepass"), clear_follows=not self._files_stay
        )

    async def _names(self) -> list[str]:
        try:
            return await self._box.list()
        except SandboxError:  # more files than the limit would make the next run fail
            return []

    async def _read(self, names: Sequence[str]) -> tuple[dict[str, bytes], dict[str, str]]:
        found: dict[str, bytes] = {}
        problems: dict[str, str] = {}
        for name in names:
            try:
                found[name] = await self._box.read(name, max_bytes=ARTEFACT_BYTES)
            except FileNotFoundError:
                problems[name] = "there is no such file"
            except SandboxError as error:
                problems[name] = str(error)
        return found, problems

    async def _cleared(self) -> None:
        """Remove all files that the program created."""
        if self._box.level == remote_boxes.LEVEL:  # a box on another machine cannot be emptied
            self._box.close()
            self._box = self._opened()
        else:
            await self._box.clear()


class PythonWorkspace(SandboxedPythonCoder, stateful=True):
    """A `SandboxedPythonCoder` that keeps files between programs. Each session has its own box until the session ends.

        async with PythonWorkspace.options(num_replicas=4).as_service() as workspaces:
            async with workspaces.session() as session:
                await session.execute.route("open('notes.txt', 'w').write('1')")
                stdout, stderr = await session.execute.route("print(open('notes.txt').read())")

    Only files are kept: each program runs in a new process, without the variables and modules of earlier programs.
    """

    _files_stay = True

    async def _cleared(self) -> None:
        """Keep the files."""


_KILLED = {
    "wall": "it ran longer than {limits.wall_seconds:g} s",
    "cpu": "it used more than {limits.cpu_seconds:g} s of processor time",
    "memory": "it used more than {limits.memory_bytes} bytes of memory",
    "disk": "it wrote more than {limits.file_bytes} bytes or {limits.files} files",
    "output": "it wrote more than {limits.flood_bytes} bytes of output",
    "cancelled": "it was cancelled",
}


def _standard_error(ran: RunResult, limits: SandboxLimits) -> str:
    """Return the program's standard error. If the program failed, the last line of the text is the reason."""
    if ran.killed_for is not None:
        why = f"killed: {_KILLED[ran.killed_for].format(limits=limits)}"
    elif ran.signal is not None:
        why = f"ended by {signal.Signals(ran.signal).name}"
    elif ran.exit_code and not ran.stderr.strip():
        why = f"ended with exit status {ran.exit_code}"
    else:
        return ran.stderr
    return f"{ran.stderr}{'' if not ran.stderr or ran.stderr.endswith(chr(10)) else chr(10)}{why}\n"
