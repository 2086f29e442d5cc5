"""Print the findings of `taskapp doctor` and `taskapp train`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from taskapp_kit.cli.output.terminal import clean, table
from taskapp_kit.net.redact import without_keys
from taskapp_kit.records.formatting import counted, cut

if TYPE_CHECKING:
    from rich.console import Console

    from taskapp_kit.doctor.finding import DoctorFinding
    from taskapp_kit.doctor.verify import ReportDifference
    from taskapp_kit.records.content import Json

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


MOST_DIFFERENCES = 40
"""How many differences are printed. `--json` prints all."""


def show_differences(found: Sequence[ReportDifference], facts: Json, saved: str, out: Console) -> None:
    """Print one row per difference between a saved report and a new one. facts: The facts of the saved report."""
    if not found:
        out.print(
            f"No difference: the {_leaves(facts)} facts of {clean(saved)} are equal, and measured values similar."
        )
        return
    rows = table("value", "in the report", "now")
    for item in found[:MOST_DIFFERENCES]:
        rows.add_row(*(clean(text) for text in (".".join(item.path), _short(item.before), _short(item.after))))
    out.print(rows)
    rest = len(found) - MOST_DIFFERENCES
    more = f" {rest} more are not shown; --json prints all." if rest > 0 else ""
    out.print(f"{counted(len(found), 'difference')} from {clean(saved)}.{more}")


def _short(value: Json) -> str:
    return cut(value if isinstance(value, str) else json.dumps(value), 60)


def _leaves(value: Json) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 1 if parts is None else sum(map(_leaves, parts))
