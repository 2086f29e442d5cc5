"""Python programs in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def printed(
    program: str,
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: tuple[str, ...] = (),
) -> str:
    """What the program prints, once it has ended well; flags: of the interpreter."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", program, *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
