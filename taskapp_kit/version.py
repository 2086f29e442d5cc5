"""The kit's version. pyproject.toml reads `__version__` from here."""

from __future__ import annotations

import re
from pathlib import Path

__version__ = "0.2.0"


def git_commit(file: Path) -> str | None:
    """Return the commit (40 hex digits) of the checkout that contains `file`, or None outside a checkout."""
    for folder in file.resolve().parents:
        git = folder / ".git"
        if git.exists():  # a file in a worktree or submodule, whose commit is not the outer checkout's commit
            return _head(git) if git.is_dir() else None
    return None


def _head(git: Path) -> str | None:
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head if re.fullmatch(r"[0-9a-f]{40}", head) else None
        reference = head.removeprefix("ref: ")
        loose = git / reference
        if loose.is_file():
            return loose.read_text().strip()
        for line in (git / "packed-refs").read_text().splitlines():
            if line.endswith(f" {reference}"):
                return line.split(" ", 1)[0]
    except OSError:
        pass
    return None
