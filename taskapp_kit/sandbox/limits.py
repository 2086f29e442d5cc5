"""The limits of a run in a sandbox, and its result."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from taskapp_kit.errors import SandboxError

MB = 2**20

KilledFor = Literal["wall", "cpu", "memory", "disk", "output", "cancelled"]


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The limits of one run. `dataclasses.replace(limits, wall_seconds=1)` returns a changed copy.

    Attributes:
        wall_seconds: The maximum time from start to end, including sleep.
        cpu_seconds: The maximum processor time of all processes together.
        memory_bytes: The maximum address space of each process, and the maximum resident memory of all processes together.
        processes: The maximum number of concurrent processes and threads.
        file_bytes: The maximum size of one file, and of all files in the box together, including files of earlier runs.
        files: The maximum number of files and directories in the box.
        output_bytes: The maximum number of bytes that are stored from stdout, and separately from stderr. Further output
            is discarded.
        flood_bytes: The maximum total of stdout and stderr, including discarded output. A run with more output is killed.
        open_files: The maximum number of open files of each process.

    Raises:
        SandboxError: A limit is not a positive number.
    """

    wall_seconds: float = 10.0
    cpu_seconds: float = 10.0
    memory_bytes: int = 512 * MB
    processes: int = 32
    file_bytes: int = 64 * MB
    files: int = 10_000
    output_bytes: int = 64 * 1024
    flood_bytes: int = 64 * MB
    open_files: int = 128

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            kinds = (int, float) if item.name.endswith("_seconds") else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 2**62:
                kind = "a number" if float in kinds else "an integer"
                raise SandboxError(f"The sandbox limit {item.name} cannot be {value!r}.", hint=f"Use {kind} above 0.")


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one run.

    Attributes:
        exit_code: The program's exit code, or None if a signal ended the program. Under bubblewrap, exit codes from 129
            to 192 cannot be distinguished from signals and are reported as signals.
        signal: The number of the signal that ended the program, or None if no signal ended it.
        stdout_bytes: The standard output, up to the limit `output_bytes`.
        stderr_bytes: The standard error, up to the limit `output_bytes`.
        stdout_truncated: Whether the program wrote more to standard output than `output_bytes`.
        stderr_truncated: Whether the program wrote more to standard error than `output_bytes`.
        wall_seconds: The time from start to end.
        cpu_seconds: The processor time of all processes of the run.
        killed_for: The limit that the run exceeded, or None if the run was not killed.
        level: The sandbox level of the box.
    """

    exit_code: int | None
    signal: int | None
    stdout_bytes: bytes
    stderr_bytes: bytes
    stdout_truncated: bool
    stderr_truncated: bool
    wall_seconds: float
    cpu_seconds: float
    killed_for: KilledFor | None
    level: int

    @property
    def ok(self) -> bool:
        """Whether the program ended with exit code 0 and was not killed."""
        return self.exit_code == 0 and self.killed_for is None

    @property
    def timed_out(self) -> bool:
        """Whether the run was killed because it exceeded the limit on wall time or processor time."""
        return self.killed_for in ("wall", "cpu")

    @property
    def stdout(self) -> str:
        """The standard output as a string, with U+FFFD for bytes that are not UTF-8."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """The standard error as a string, with U+FFFD for bytes that are not UTF-8."""
        return self.stderr_bytes.decode("utf-8", "replace")
