"""The text that the policy sees: the task, and the output of a run. This module does not import the kit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

SHOWN_CHARACTERS = 4000
"""Maximum number of characters that are shown of standard output, and of standard error."""

RULES = (
    "Results are compared exactly, types included: a tuple is not a list, True is not 1, 1.0 is not 1. "
    "`run` runs Python code as a program of its own; files that it leaves stay until the end. "
    "`submit` takes the whole source of your function and ends the episode; hidden tests decide."
)
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")


def task_text(statement: str, signature: str, entry: str, examples: Sequence[tuple[list[Any], Any]], many: bool) -> str:
    """Return the first observation. many: whether a case has more than one right result."""
    shown = [
        f"    {entry}({', '.join(map(repr, arguments))}) {'may give' if many else '=='} {result!r}"
        for arguments, result in examples
    ]
    lines = [statement, "", "Write this function in Python:", "", f"    {signature}", "", "Examples:", "", *shown]
    return "\n".join([*lines, "", RULES])


def run_text(
    *, exit_code: int | None, signal: int | None, killed_for: str | None, stdout: str, stderr: str, root: str
) -> str:
    """Return the observation after a run. root: the working directory in the box, which no observation shows."""
    if killed_for in ("wall", "cpu"):
        lines = ["Stopped: it took too long."]
    elif killed_for is not None:
        lines = [f"Stopped: too much {killed_for}."]
    elif signal is not None:
        lines = [f"Ended by signal {signal}."]
    else:
        lines = [f"Exit code {exit_code}."]
    for name, text in (("stdout", stdout), ("stderr", stderr)):
        if text:
            shown = steady(text, root)
            more = len(shown) > SHOWN_CHARACTERS
            lines += [f"{name}:", shown[:SHOWN_CHARACTERS].rstrip("\n") + ("\n(cut here)" if more else "")]
    return "\n".join(lines)


def steady(text: str, root: str) -> str:
    """Return the text without parts that differ between otherwise equal runs: the box's own paths, addresses of objects."""
    box = root.removesuffix("/files")
    if box != root:  # at this level, paths in the box are the same as on the host
        text = text.replace(f"{box}/tmp", "/tmp").replace(f"{box}/code", "/code")  # noqa: S108 (in the box)
    text = text.replace(f"{root}/", "").replace(root, ".")
    return _ADDRESS.sub("at 0x0", text)
