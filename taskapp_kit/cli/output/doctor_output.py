"""Print the findings of `taskapp doctor` and `taskapp train`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from taskapp_kit.cli.output.terminal import clean, table
from taskapp_kit.net.redact import without_keys
from taskapp_kit.records.formatting import counted

if TYPE_CHECKING:
    from rich.console import Console

    from taskapp_kit.doctor.finding import DoctorFinding

MARKS = {"ok": "ok", "warning": "warning", "wrong": "WRONG", "skipped": "skipped", "allowed": "allowed"}


def failed(findings: Sequence[DoctorFinding]) -> bool:
    """Return whether any finding has the status WRONG."""
    return any(not finding.ok for finding in findings)


def summary(findings: Sequence[DoctorFinding]) -> str:
    """Return the number of findings by status, as one line."""
    counts = {status: sum(finding.status == status for finding in findings) for status in MARKS}
    parts = [counted(counts["ok"], "check") + " ok"]
    parts += [f"{counts[status]} {MARKS[status]}" for status in list(MARKS)[1:] if counts[status]]
    return ", ".join(parts) + "."


def show(findings: Sequence[DoctorFinding], out: Console, keys: Sequence[str | None]) -> None:
    """Print one row per finding: the check, its status, the evidence, the location, and what to do.

    keys: API keys to remove from the text. The check of a server has already removed the key that it sent.
    """
    rows = table("check" if any(finding.environment for finding in findings) else "part", "", "found")
    for finding in findings:
        evidence, do = (clean(str(without_keys(text, keys))) for text in (finding.found, finding.do))
        if finding.place and finding.status not in ("ok", "skipped") and finding.place not in evidence:
            evidence = f"{clean(finding.place)}: {evidence}"
        name = finding.name if finding.environment is not None else finding.part
        rows.add_row(name, MARKS[finding.status], evidence + (f"\n→ {do}" if do else ""))
    out.print(rows)
