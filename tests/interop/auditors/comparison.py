"""Which auditor catches which planted defect: the stored results, and the table of them in the documentation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.doctor.defects import index
from tests.doctor.defects.index import DEFECTS, Defect

OURS = "taskapp doctor --quick"
AUDITORS = ("rl-envdoctor-0.1.0", "falsepass-0.11.0", "gameability-0.3.1")
STORED = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[3] / "docs/environments/doctor-compared.md"
BEGIN, END = "<!-- results: written with TASKAPP_WRITE_AUDITORS=1 -->", "<!-- end of results -->"
KINDS: dict[str, Sequence[Defect]] = {
    "text answers": index.TEXTS,
    "numbers": index.NUMBERS,
    "failures and forms": index.FAILURES_AND_FORMS,
    "lists and fields": index.LISTS_AND_FIELDS,
    "code and SQL": index.CODE_AND_SQL,
    "games": index.GAMES,
    "tools": index.TOOLS,
    "leaks": index.LEAKS,
    "right answers refused": index.REFUSALS,
    "judges": index.JUDGES,
    "skewed data (a note)": index.NOTES,
}
Findings = Mapping[str, Sequence[str] | None]
"""Names of apps to what was found in them, or None if the auditor cannot express the app."""
Result = dict[str, list[str]]
"""The names of apps whose defect was caught, of apps that cannot be expressed, and of sound twins with a finding (alarms)."""


def result_of(found: Findings, in_twins: Findings) -> Result:
    """Return the result of an auditor, to be stored."""
    return {
        "caught": sorted(name for name, findings in found.items() if findings),
        "cannot express": sorted(name for name, findings in found.items() if findings is None),
        "alarms": sorted(name for name, findings in in_twins.items() if findings),
    }


def stored() -> dict[str, Result]:
    """Return the stored results of all auditors."""
    results: dict[str, Result] = json.loads(STORED.read_text("utf-8"))
    return results


def store(auditor: str, result: Result) -> None:
    """Store the result of one auditor, and update the page."""
    results = {**stored(), auditor: result} if STORED.is_file() else {auditor: result}
    ordered = {name: results[name] for name in (OURS, *AUDITORS) if name in results}
    STORED.write_text(json.dumps(ordered, indent=1) + "\n", "utf-8")
    if len(ordered) == 1 + len(AUDITORS):
        PAGE.write_text(written(PAGE.read_text("utf-8"), ordered), "utf-8")


def written(page: str, results: Mapping[str, Result]) -> str:
    """Return the page with the part between its markers replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(results)}\n\n{only_others(results)}\n\n{END}{after}"


def table(results: Mapping[str, Result]) -> str:
    """Return the numbers of defects that were caught, missed and cannot be expressed, by kind, and the alarms."""
    titles = [f"`{OURS}`", *(" ".join(name.rsplit("-", 1)) for name in AUDITORS)]
    lines = [["defects", "number", *titles], ["---", *["---:"] * (1 + len(titles))]]
    columns = [results[name] for name in (OURS, *AUDITORS)]
    for kind, defects in {**KINDS, "**all**": DEFECTS}.items():
        lines.append([kind, str(len(defects)), *(_counts(defects, column) for column in columns)])
    return "\n".join(f"| {' | '.join(line)} |" for line in [*lines, *_twin_lines(columns)])


def _twin_lines(columns: Sequence[Result]) -> list[list[str]]:
    """Return the lines about sound twins: how many have a finding, and how many are told apart from the app."""
    twins = {defect.file for defect in DEFECTS if defect.twin}
    expressed = [len(twins - set(column["cannot express"])) for column in columns]
    alarms = [len(column["alarms"]) for column in columns]
    apart = [len(twins & set(column["caught"]) - set(column["alarms"])) for column in columns]
    return [
        [title, str(len(twins)), *(f"{count} of {total}" for count, total in zip(counts, expressed, strict=True))]
        for title, counts in (("alarms on sound twins", alarms), ("caught, without an alarm on the sound twin", apart))
    ]


def only_others(results: Mapping[str, Result]) -> str:
    """Return the sentence about the defects that another auditor catches and the doctor does not."""
    others = {name for auditor in AUDITORS for name in results[auditor]["caught"]} - set(results[OURS]["caught"])
    if not others:
        return "The doctor catches every defect that another tool catches."
    return f"Another tool catches {len(others)} defects that the doctor misses: {', '.join(f'`{n}`' for n in sorted(others))}."


def _counts(defects: Sequence[Defect], result: Result) -> str:
    names = {defect.file for defect in defects}
    caught, cannot = len(names & set(result["caught"])), len(names & set(result["cannot express"]))
    return f"{caught} / {len(names) - caught - cannot} / {cannot}"
