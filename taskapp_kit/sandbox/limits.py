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
        wall_seconds: Time from start to end, including sleep.
        cpu_seconds: Processor time of all processes together.
        memory_bytes: Address space of each process, and resident memory of all processes together.
        processes: Concurrent processes, including threads.
        file_bytes: Size of one file, and of everything that the box stores on disk, also between runs.
        files: Number of files and directories.
        output_bytes: Stored bytes of stdout, and of stderr. Further output is discarded.
        flood_bytes: Total bytes of output after which the run is killed.
        open_files: Open files of each process.

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
        exit_code: Exit code, or None if a signal ended it. Under bubblewrap, exit codes from 129 to 192 cannot be
            distinguished from signals and are reported as signals.
        signal: Number of the signal that ended it, or None.
        stdout_bytes: Standard output, at most `output_bytes` of the limits.
        stderr_bytes: Standard error, at most `output_bytes` of the limits.
        stdout_truncated: Whether standard output was longer.
        stderr_truncated: Whether standard error was longer.
        wall_seconds: Time from start to end.
        cpu_seconds: Processor time of all its processes.
        killed_for: Limit that it exceeded, or None if it was not killed.
        level: Sandbox level.
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
        """Whether it ended with exit code 0 and was not killed."""
        return self.exit_code == 0 and self.killed_for is None

    @property
    def timed_out(self) -> bool:
        """Whether it was killed because it exceeded its wall time or processor time."""
        return self.killed_for in ("wall", "cpu")

    @property
    def stdout(self) -> str:
        """Standard output as text, with U+FFFD for bytes that are not UTF-8."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text, with U+FFFD for bytes that are not UTF-8."""
        return self.stderr_bytes.decode("utf-8", "replace")
