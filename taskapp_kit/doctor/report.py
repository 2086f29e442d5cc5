"""The doctor's report: can an app's rewards be trained on? As JSON, from which the page and the SARIF log are made."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from taskapp_kit.doctor import attack
from taskapp_kit.doctor.examine import CHECKS, examine
from taskapp_kit.doctor.facts import app_facts, environment_facts, measurements, statuses
from taskapp_kit.doctor.finding import DoctorCheck, DoctorFinding
from taskapp_kit.errors import DeclarationError
from taskapp_kit.records.content import Json, json_hash
from taskapp_kit.records.formatting import utc_time
from taskapp_kit.version import __version__, git_commit
from taskapp_kit.viewer.pages import render, shown, standalone
from taskapp_kit.viewer.plots import Bar, bar_plot

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
UNDESERVED = tuple(item.name for item in vars(attack).values() if isinstance(item, DoctorCheck))
"""Checks for undeserved rewards. At least one must have run."""
EVIDENCE = (*UNDESERVED, "gold-better", "second-process", "same-seed")
"""The checks whose evidence is shown if nothing is wrong, in this order."""
SECTIONS = {
    "attack": "Undeserved rewards",
    "scores": "Scores",
    "repeats": "The same episode again",
    "privacy": "Leaks",
    "resources": "Speed and memory",
    "answers": "Invalid replies",
    "rollouts": "Rollouts",
    "descriptions": "Descriptions",
}
"""The page's sections, by the module of the checks."""
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
        options = self.options
        return {
            "ok": all(finding.ok for finding in self.findings),
            "format": FORMAT,
            "safe": safe,
            "reasons": [_reason(item, with_hint=safe == "not_examined") for item in reasons],
            "target": self.target,
            "created_at": utc_time(time.time()).strftime("%Y-%m-%d %H:%M:%S"),
            "commit": self.commit,
            "options": {
                "quick": options.quick,
                "judges": options.judges,
                "environment": options.environment,
                "allow": sorted(options.allow),
            },
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
        ran = [first[name] for name in EVIDENCE if name in first and first[name].status == "ok"]
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
    shortened = textwrap.shorten(text, REASON_CHARACTERS, placeholder=" …")
    return {"check": finding.name, "environment": finding.environment, "text": shortened}


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
    try:
        report.facts = app_facts(app.freeze())
    except DeclarationError:
        pass  # the findings list the problems
    report.facts |= {"checks": statuses(report.findings, None), "environments": environments}
    return report


def server_facts(findings: Sequence[DoctorFinding], info: Mapping[str, Json] | None, fields: Sequence[str]) -> Json:
    """Return the facts about a running task app: the hashes of the declarations in `/task_info`, and the checks.

    info: The response of `/task_info`, or None if it is unknown. fields: The names of the declarations in it.
    """
    declared = {name: json_hash(info[name]) for name in fields if name in info} if info is not None else {}
    return {"kit": __version__, "task_info": declared, "checks": statuses(findings, None)}


# -- the page -----------------------------------------------------------------------------------------------------------


def page(report: Mapping[str, Any]) -> str:
    """Return a report as one HTML file that needs neither scripts nor the network. report: The report's JSON."""
    findings, facts = report["findings"], report["facts"]
    environments = list(dict.fromkeys(item["environment"] for item in findings if item["environment"]))
    many = len(environments) > 1
    title = " ".join(filter(None, (facts.get("app"), facts.get("version")))) or report["target"]
    problems = [item for item in findings if item["status"] in ("wrong", "warning", "allowed")]
    order = ["wrong", "warning", "allowed"]
    body = render(
        "doctor.html",
        report=report,
        title=title,
        safe=WORDS[report["safe"]],
        counts={status: sum(item["status"] == status for item in findings) for status in (*order, "ok", "skipped")},
        problems=sorted(problems, key=lambda item: (order.index(item["status"]), item["name"] not in UNDESERVED)),
        many=many,
        baselines=[
            (name, measured["baselines"], _baseline_plot(name if many else "", measured["baselines"]))
            for name, measured in report["measured"].items()
        ],
        sections=[(heading, list(_lines(findings, module))) for module, heading in SECTIONS.items()],
        others=[item for item in findings if item["environment"] is None],
        version=__version__,
    )
    return standalone(f"{title}: safe to train on?", body)


def _baseline_plot(environment: str, baselines: Mapping[str, Any]) -> list[tuple[str, Any]]:
    rows = [
        Bar(shown(label), item["mean"], item["low"], item["high"], f"n = {item['n']}")
        for label, item in baselines.items()
    ]
    if not any(row.value for row in rows):
        return []
    return bar_plot(": ".join(filter(None, ("Mean reward with 95 % interval", environment))), rows)


def _lines(findings: Sequence[Mapping[str, Any]], module: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what each check of a module states, with the finding."""
    sentences = {item.name: item.sentence for item in CHECKS if item.function.__module__.endswith(f".{module}")}
    for item in findings:
        if item["environment"] is not None and item["name"] in sentences:
            yield sentences[item["name"]], item


# -- SARIF --------------------------------------------------------------------------------------------------------------


def sarif(report: Mapping[str, Any]) -> dict[str, Json]:
    """Return the findings that are wrong, warnings or accepted as a SARIF 2.1.0 log. report: The report's JSON."""
    problems = [item for item in report["findings"] if item["status"] in ("wrong", "warning", "allowed")]
    sentences = {item.name: item.sentence for item in CHECKS}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "taskapp doctor",
                        "version": __version__,
                        "rules": [
                            {"id": name, "shortDescription": {"text": sentences.get(name, name)}}
                            for name in dict.fromkeys(item["name"] for item in problems)
                        ],
                    }
                },
                "results": [_result(item) for item in problems],
            }
        ],
    }


def _result(item: Mapping[str, Any]) -> dict[str, Json]:
    text = " ".join(filter(None, (item["found"], item["do"])))
    result: dict[str, Json] = {"ruleId": item["name"], "message": {"text": text}}
    result["level"] = "error" if item["status"] == "wrong" else "warning"
    if item["status"] == "allowed":
        result["suppressions"] = [{"kind": "external"}]
    file, _, line = item["place"].rpartition(":")
    if file and line.isdecimal():
        uri = Path(file).as_uri() if Path(file).is_absolute() else quote(PurePath(file).as_posix())
        location = {"artifactLocation": {"uri": uri}, "region": {"startLine": int(line)}}
        result["locations"] = [{"physicalLocation": location}]
    if item["environment"] is not None:
        result["properties"] = {"environment": item["environment"]}
    return result
