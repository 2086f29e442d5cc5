"""The doctor's report: can an app's rewards be trained on? As JSON, from which the page and the SARIF log are made."""

from __future__ import annotations

import contextlib
import shlex
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from taskapp_kit.doctor.examine import CHECKS, examine
from taskapp_kit.doctor.facts import app_facts, environment_facts, examiner_facts, measurements, statuses
from taskapp_kit.doctor.finding import DoctorFinding
from taskapp_kit.errors import DeclarationError
from taskapp_kit.records.content import Json, json_hash
from taskapp_kit.records.formatting import utc_time
from taskapp_kit.version import __version__, git_commit
from taskapp_kit.viewer.pages import render, shown, standalone
from taskapp_kit.viewer.plots import Bar, CaptionedPlot, bar_plot

if TYPE_CHECKING:
    from taskapp_kit.config import Settings
    from taskapp_kit.declare.app import TaskApp
    from taskapp_kit.doctor.doctor_options import DoctorOptions
    from taskapp_kit.doctor.subject import EnvironmentUnderTest

FORMAT = 1
"""The version of the report's JSON."""
Safe = Literal["yes", "no", "not_examined"]
MOST_REASONS = 3
REASON_CHARACTERS = 220
NEEDED = ("rollout", "reward-defined", "same-seed")
"""Checks without which nothing is known about an environment's rewards."""
SECTIONS = {
    "scores": "Scores",
    "repeats": "The same episode again",
    "privacy": "Leaks",
    "resources": "Speed and memory",
    "answers": "Invalid replies",
    "rollouts": "Rollouts",
    "descriptions": "Descriptions",
}
"""The page's sections, by the module of the checks. The checks of all other modules look for undeserved rewards."""
ATTACK = "Undeserved rewards"
SECTION_OF = {item.name: SECTIONS.get(item.function.__module__.rpartition(".")[2], ATTACK) for item in CHECKS}
UNDESERVED = tuple(name for name, section in SECTION_OF.items() if section == ATTACK)
"""Checks for undeserved rewards. At least one must have run."""
EVIDENCE = (*UNDESERVED, "gold-better", "second-process", "same-seed")
"""The checks whose evidence is shown if nothing is wrong, in this order."""
WORDS = {"yes": "yes", "no": "no", "not_examined": "not examined"}


@dataclass
class DoctorReport:
    """The findings about an app or a running task app, and what they are based on.

    Attributes:
        target: The app or URL, as the user wrote it.
        options: The examination's options.
        at_url: Whether the target is a running task app.
        facts: What must be equal for equal input.
        measured: What must be similar.
        commit: The git commit of the app, or None.
    """

    target: str
    options: DoctorOptions
    at_url: bool = False
    findings: list[DoctorFinding] = field(default_factory=list)
    facts: dict[str, Json] = field(default_factory=dict)
    measured: dict[str, Json] = field(default_factory=dict)
    commit: str | None = None

    def to_json(self) -> dict[str, Json]:
        """Return the report as JSON."""
        safe, reasons = self.verdict()
        options = {name: getattr(self.options, name) for name in ("quick", "judges", "environment")}
        return {
            "ok": all(finding.ok for finding in self.findings),
            "format": FORMAT,
            "safe": safe,
            "reasons": [_reason(item, with_hint=safe == "not_examined") for item in reasons],
            "target": self.target,
            "created_at": utc_time(time.time()).strftime("%Y-%m-%d %H:%M:%S"),
            "commit": self.commit,
            "options": {**options, "allow": sorted(self.options.allow)},
            "facts": self.facts,
            "measured": self.measured,
            "findings": [self._finding(item) for item in self.findings],
        }

    def _finding(self, finding: DoctorFinding) -> dict[str, Json]:
        body, episode = finding.to_json(), finding.episode
        if episode is not None and finding.environment is not None:
            line = episode.command(self.target, finding.environment, judges=self.options.judges)
            body["episode"]["command"] = line
        return body

    def verdict(self) -> tuple[Safe, list[DoctorFinding]]:
        """Return whether the app is safe to train on, and the findings that are the reasons.

        The answer is `no` if a check is wrong, and `not_examined` if a check did not run without which the rewards are
        unknown.
        """
        wrong = [item for item in self.findings if item.status == "wrong" and item.part != "backend"]
        if wrong:
            return "no", sorted(wrong, key=lambda item: item.name not in UNDESERVED)[:MOST_REASONS]
        if self.at_url:
            return "not_examined", []
        by_environment: dict[str, dict[str, DoctorFinding]] = {}
        for item in self.findings:
            if item.environment is not None:
                by_environment.setdefault(item.environment, {})[item.name] = item
        missing = [item for found in by_environment.values() for item in _missing(found)]
        if missing or not by_environment:  # without an environment, an invalid declaration was accepted
            return "not_examined", (missing or self.findings)[:MOST_REASONS]
        first = next(iter(by_environment.values()))
        ran = [first[name] for name in EVIDENCE if name in first and first[name].status != "skipped"]
        return "yes", ran[:MOST_REASONS]


def _missing(found: Mapping[str, DoctorFinding]) -> Iterator[DoctorFinding]:
    """Yield the skipped findings of one environment without which its rewards are unknown."""
    if NEEDED[0] not in found:  # setup_worker failed, which was accepted
        yield from found.values()
        return
    yield from (found[name] for name in NEEDED if found[name].status == "skipped")
    attacks = [found[name] for name in UNDESERVED]
    if all(item.status == "skipped" for item in attacks):
        yield attacks[0]


def _reason(finding: DoctorFinding, *, with_hint: bool) -> dict[str, Json]:
    text = " ".join(filter(None, (finding.found, finding.do if with_hint else "")))
    text = textwrap.shorten(text, REASON_CHARACTERS, placeholder=" …")
    return {"check": finding.name, "environment": finding.environment, "text": text}


async def report_on_app(app: TaskApp, target: str, options: DoctorOptions, settings: Settings) -> DoctorReport:
    """Examine an app, and return the report. Raises the errors of `examine`."""
    report = DoctorReport(target, options, commit=git_commit(app.file))
    environments: dict[str, dict[str, Json]] = {}

    def examined(subject: EnvironmentUnderTest) -> None:
        environments[subject.name] = environment_facts(subject)
        report.measured[subject.name] = measurements(subject)

    report.findings = [finding async for finding in examine(app, options, settings, examined)]
    for name, facts in environments.items():
        facts["checks"] = statuses(report.findings, name)
    with contextlib.suppress(DeclarationError):  # the findings list the problems
        report.facts |= app_facts(app.freeze())
    report.facts |= {**examiner_facts(), "checks": statuses(report.findings, None), "environments": environments}
    return report


def server_facts(findings: Sequence[DoctorFinding], declared: Mapping[str, Json]) -> dict[str, Json]:
    """Return the facts about a running task app. declared: The declarations in its `/task_info`; empty if unknown."""
    hashes = {name: json_hash(value) for name, value in declared.items()}
    return {**examiner_facts(), "task_info": hashes, "checks": statuses(findings, None)}


PROBLEMS = ("wrong", "warning", "allowed")


def _problems(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the findings that are wrong, warnings or accepted, in this order. Undeserved rewards come first."""
    found = [item for item in report["findings"] if item["status"] in PROBLEMS]
    return sorted(found, key=lambda item: (PROBLEMS.index(item["status"]), item["name"] not in UNDESERVED))


def page(report: Mapping[str, Any]) -> str:
    """Return a report as one HTML file that needs neither scripts nor the network. report: The report's JSON."""
    findings, facts = report["findings"], report["facts"]
    title = " ".join(filter(None, (facts.get("app"), facts.get("version")))) or report["target"]
    sections: dict[str, list[Any]] = {heading: [] for heading in (ATTACK, *SECTIONS.values())}
    for item in findings:
        if item["environment"] is not None and item["name"] in SECTION_OF:
            sections[SECTION_OF[item["name"]]].append(item)
    body = render(
        "doctor.html",
        report=report,
        title=title,
        target=shlex.quote(report["target"]),
        safe=WORDS[report["safe"]],
        counts=Counter(item["status"] for item in findings),
        problems=_problems(report),
        many=len(report["measured"]) > 1,
        baselines=[(name, one["baselines"], _plot(one["baselines"])) for name, one in report["measured"].items()],
        sections=sections,
        others=[item for item in findings if item["environment"] is None],
        version=__version__,
    )
    return standalone(f"{title}: safe to train on?", body)


def _plot(policies: Mapping[str, Any]) -> list[CaptionedPlot]:
    rows = [Bar(shown(name), by["mean"], by["low"], by["high"], f"n = {by['n']}") for name, by in policies.items()]
    return bar_plot("Mean reward with 95 % interval", rows) if any(row.value for row in rows) else []


def sarif(report: Mapping[str, Any]) -> dict[str, Json]:
    """Return the findings that are wrong, warnings or accepted as a SARIF 2.1.0 log. report: The report's JSON."""
    problems, sentences = _problems(report), {item.name: item.sentence for item in CHECKS}
    names = dict.fromkeys(item["name"] for item in problems)
    rules = [{"id": name, "shortDescription": {"text": sentences.get(name, name)}} for name in names]
    driver = {"name": "taskapp doctor", "version": __version__, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_result(item) for item in problems]}],
    }


def _result(item: Mapping[str, Any]) -> dict[str, Json]:
    text = " ".join(filter(None, (item["found"], item["do"])))
    level = "error" if item["status"] == "wrong" else "warning"
    result: dict[str, Json] = {"ruleId": item["name"], "level": level, "message": {"text": text}}
    if item["status"] == "allowed":
        result["suppressions"] = [{"kind": "external"}]
    file, _, line = item["place"].rpartition(":")
    if file and line.isdecimal():
        uri = Path(file).as_uri() if Path(file).is_absolute() else quote(PurePath(file).as_posix())
        location = {"artifactLocation": {"uri": uri}, "region": {"startLine": int(line)}}
        result["locations"] = [{"physicalLocation": location}]
    return result
