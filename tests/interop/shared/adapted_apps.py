"""What the tests of importers check of an app with another library's environment."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from taskapp_kit import TaskApp
from taskapp_kit.doctor.doctor_options import DoctorOptions
from taskapp_kit.doctor.examine import examine


def wrong_findings(app: TaskApp) -> dict[str, str]:
    """Return what the quick examination reports as wrong, by the names of the findings."""

    async def examined() -> dict[str, str]:
        findings = examine(app, DoctorOptions(quick=True))
        return {finding.name: str(finding) async for finding in findings if finding.status == "wrong"}

    return asyncio.run(examined())


def printed_by_processes(code: str) -> set[str]:
    """Return the last lines of the output of two processes with different hash seeds."""
    return {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout.splitlines()[-1]
        for hash_seed in ("1", "2")
    }


PLAYED = """
from taskapp_kit import TaskApp
from taskapp_kit.testing import play

def digest(made, seed, **limits):
    app = TaskApp("played")
    app.environment("it", splits={"train": range(1000)}, **limits)(made)
    return play(app, seed=seed).digest
"""
"""Code for `printed_by_processes`."""
