"""The two boxes of an episode: the policy's box, and the judge's box, which opens after the policy's box has closed."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from taskapp_kit.errors import SandboxError, SandboxTooWeak
from taskapp_kit.grading import code as grading_code
from taskapp_kit.sandbox import RunResult, Sandbox, SandboxLimits
from taskapp_kit.sandbox.uids import DEFAULT_UIDS

MB = 2**20
POLICY_IDS, JUDGE_IDS = DEFAULT_UIDS[:-100], DEFAULT_UIDS[-100:]
"""User ids of boxes if the process runs as root. A policy's box never has the id of a judge's box."""

POLICY_LIMITS = SandboxLimits(
    wall_seconds=10, cpu_seconds=5, memory_bytes=512 * MB, processes=32, file_bytes=16 * MB, files=500,
    output_bytes=16_000, flood_bytes=16 * MB,
)  # fmt: skip
AT_ONCE = min(16, max(4, os.cpu_count() or 1))
"""How many programs a server process runs concurrently. The others wait, so that no time limit runs without a CPU."""

_running = threading.BoundedSemaphore(AT_ONCE)
_HERE = Path(__file__).parent
_CAN_BE_READ = """
import sys
print(sys.executable)
for path in sys.stdin.read().splitlines():
    try:
        open(path).close()
    except OSError:
        continue
    print(path)
"""


class Boxes:
    """Opens boxes of one level.

    level: None for the strongest that works on this machine. judge_limits: of one verdict. policy_ids, judge_ids: user
    ids for their boxes. private_files: files that no box may be able to read.
    """

    def __init__(
        self,
        level: int | None = None,
        *,
        judge_limits: SandboxLimits = grading_code.LIMITS,
        policy_ids: Sequence[int] = POLICY_IDS,
        judge_ids: Sequence[int] = JUDGE_IDS,
        private_files: Sequence[Path] = tuple(sorted(_HERE.glob("*.jsonl"))),
    ) -> None:
        self._requested_level = level
        self._judge_limits = judge_limits
        self._policy_ids = policy_ids
        self._judge_ids = judge_ids
        self._private_files = private_files
        self._lock = threading.Lock()
        self._known: tuple[int, str] | None = None

    @property
    def level(self) -> int:
        """The level of every box; the first access opens one to find out."""
        return self._ready()[0]

    def _ready(self) -> tuple[int, str]:
        """(level, Python in the box). Raises SandboxTooWeak if this machine cannot confine a policy's code."""
        with self._lock:
            if self._known is None:
                with Sandbox(limits=POLICY_LIMITS, level=self._requested_level) as box:
                    files = "\n".join(map(str, self._private_files))
                    result = box.run_sync(_CAN_BE_READ, stdin=files.encode())
                    if not result.ok:
                        raise SandboxError(f"A box could not run Python: {result.stderr.strip()[-200:]}")
                    python, *seen = result.stdout.splitlines()
                    if seen and box.level >= 2:
                        raise SandboxTooWeak(
                            f"On this machine, a box can read the hidden tests of python_sandbox: {Path(seen[0]).name}.",
                            hint="Move the environment out of the directories of system programs.",
                        )
                    self._known = (box.level, python)
            return self._known

    def open_policy(self) -> Sandbox:
        """Open a policy's box. Raises SandboxError."""
        return Sandbox(limits=POLICY_LIMITS, level=self.level, user_ids=self._policy_ids).__enter__()

    def run(self, box: Sandbox, code: str) -> RunResult:
        """Run code as `main.py` in a policy's box. Raises SandboxError."""
        with _running:
            return self._run(box, "main.py", code.encode("utf-8", "surrogatepass"))

    def answers(self, code: str, entry: str, arguments: Sequence[list[Any]]) -> list[tuple[str, Any]]:
        """Return what a submission's function returned for each list of arguments, as parsed by `read_answers`.

        Uses a new box and discards it. Raises SandboxError when it could not be opened, twice in a row.
        """
        stdin = grading_code.request(code, entry, arguments)
        try:
            result = self._judged(stdin)
        except SandboxTooWeak:
            raise
        except SandboxError:
            result = self._judged(stdin)
        return grading_code.read_answers(result.stdout_bytes, cut=result.stdout_truncated, count=len(arguments))

    def _judged(self, stdin: bytes) -> RunResult:
        with _running, Sandbox(limits=self._judge_limits, level=self.level, user_ids=self._judge_ids) as box:
            return self._run(box, grading_code.PROGRAM.name, grading_code.PROGRAM.read_bytes(), stdin)

    def _run(self, box: Sandbox, name: str, code: bytes, stdin: bytes = b"") -> RunResult:
        """Run a program with a fixed order of its sets."""
        box.write_sync(name, code)
        return box.run_sync(["env", "PYTHONHASHSEED=0", self._ready()[1], "-s", name], stdin=stdin)
