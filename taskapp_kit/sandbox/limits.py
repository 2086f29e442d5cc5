"""The limits of a run in a sandbox, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from taskapp_kit.errors import SandboxError

MB = 2**20

KilledFor = Literal["wall", "cpu", "memory", "disk", "output", "cancelled"]


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The limits of one run. `dataclasses.replace(limits, wall_seconds=1)` makes a changed copy.

    Attributes:
        wall_seconds: from start to end, sleep included.
        cpu_seconds: of all its processes together.
        memory_bytes: of address space for each process, and of resident memory for all together.
        processes: at once, threads included.
        file_bytes: of one file, and of all that the box holds on disk, between runs too.
        files: how many of them.
        output_bytes: stored of stdout, and again of stderr; the rest is read and discarded.
        flood_bytes: of output in all, after which the run is killed.
        open_files: for each process.

    Raises:
        SandboxError: a limit is not a positive number.
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
            whole = not item.name.endswith("_seconds")
            good = isinstance(value, int) or (isinstance(value, float) and not whole)
            if isinstance(value, bool) or not good or not math.isfinite(value) or not 0 < value < 2**62:
                kind = "whole number" if whole else "number"
                raise SandboxError(
                    f"The sandbox limit {item.name} cannot be {value!r}.", hint=f"Give a {kind} above 0."
                )


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one run.

    Attributes:
        exit_code: None when a signal ended it. Under bubblewrap a program that exits with 129 to 192 cannot be
            distinguished from one that a signal ended, and counts as that.
        signal: the number of the signal that ended it.
        stdout_bytes: the first `output_bytes`.
        stderr_bytes: the first `output_bytes`.
        stdout_truncated: whether there was more.
        stderr_truncated: whether there was more.
        wall_seconds: from start to end.
        cpu_seconds: used by all its processes.
        killed_for: the limit for which we killed it, None when it ended by itself.
        level: that it ran under.
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
        """Whether it ended by itself, with exit code 0."""
        return self.exit_code == 0 and self.killed_for is None

    @property
    def timed_out(self) -> bool:
        """Whether it was killed because its wall or processor time was used up."""
        return self.killed_for in ("wall", "cpu")

    @property
    def stdout(self) -> str:
        """Its standard output as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Its standard error as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stderr_bytes.decode("utf-8", "replace")
