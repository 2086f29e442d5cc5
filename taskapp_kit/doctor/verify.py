"""Compares two reports of the doctor: facts must be equal, and measured values similar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from taskapp_kit.doctor.doctor_options import DoctorOptions
from taskapp_kit.doctor.report import FORMAT
from taskapp_kit.errors import ConfigError
from taskapp_kit.records.content import Json

MISSING = "missing"
"""Stands for a value that only the other report has."""
APART = 0.05
"""Mean rewards differ if their intervals are further apart than this share of the larger mean."""
TIMES, LEAST_SECONDS = 10.0, 0.01
"""Durations differ if one is this many times as long, and the difference is at least LEAST_SECONDS."""


@dataclass(frozen=True, slots=True)
class ReportDifference:
    """A value in which two reports differ.

    Attributes:
        path: The keys and indexes that lead to the value.
        before: The value in the saved report, or MISSING.
        after: The value in the new report, or MISSING.
    """

    path: tuple[str, ...]
    before: Json
    after: Json

    def to_json(self) -> dict[str, Json]:
        """Return the difference as JSON."""
        return {"path": ".".join(self.path), "before": self.before, "after": self.after}


def read_report(file: Path) -> dict[str, Any]:
    """Read a saved report.

    Raises ConfigError if the file cannot be read or is not a report of this format.
    """
    hint = "Pass a file that `taskapp doctor APP --json` of this version of the kit printed."
    try:
        report = orjson.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"The report {file} cannot be read: {error.strerror}.", hint=hint) from None
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"The report {file} is not JSON: {error}.", hint=hint) from None
    known = isinstance(report, dict) and report.get("format") == FORMAT
    if not known or not all(isinstance(report.get(name), dict) for name in ("facts", "measured", "options")):
        raise ConfigError(f"{file} is not a report of the doctor in format {FORMAT}.", hint=hint)
    return dict(report)


def options_again(report: Mapping[str, Any], given: DoctorOptions) -> DoctorOptions:
    """Return the options with which a saved report was made. given: The options of the command line.

    Raises ConfigError if the report's options are invalid, if other options are given, and if the report has called judges but
    the command line does not allow it, because the report may come from someone else.
    """
    options = report["options"]
    allow, environment = options.get("allow"), options.get("environment")
    texts = [*allow, environment or ""] if isinstance(allow, list) else [allow]
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError("The `options` of the report are invalid.", hint="Make the report again.")
    judges = options.get("judges") is True
    if judges and not given.judges:
        raise ConfigError("The report was made with --judges, which calls models.", hint="Pass --judges again.")
    if given != DoctorOptions(judges=judges):
        raise ConfigError("--verify uses the options of the report.", hint="Omit --quick, --env, --allow and --judges.")
    return DoctorOptions(options.get("quick") is True, judges, environment, tuple(allow))


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[ReportDifference]:
    """Compare a saved report with a new one. Both are JSON.

    Facts must be equal. Episodes and checks are compared if both reports have them, because a slower machine plays fewer
    rollouts. Mean rewards may differ by chance, and durations by the machine. Raises ConfigError if a measured value of the
    saved report is invalid.
    """
    found = [*_facts((), before["facts"], after["facts"])]
    if before.get("safe") != after["safe"]:
        found.insert(0, ReportDifference(("safe",), before.get("safe", MISSING), after["safe"]))
    for name, one in before["measured"].items():
        other = after["measured"].get(name)
        if other is not None:  # a missing environment is also missing from the facts
            try:
                found += _measured(("measured", name), one, other)
            except (AttributeError, KeyError, TypeError, ValueError):
                problem = f"The measured values of {name!r} in the saved report are invalid."
                raise ConfigError(problem, hint="Make the report again with `taskapp doctor APP --json`.") from None
    return found


def _facts(path: tuple[str, ...], before: Json, after: Json) -> Iterator[ReportDifference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in [name for name in {**before, **after} if not _partial(path) or (name in before and name in after)]:
            yield from _facts((*path, name), before.get(name, MISSING), after.get(name, MISSING))
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            one, other = (part[index] if index < len(part) else MISSING for part in (before, after))
            yield from _facts((*path, str(index)), one, other)
    elif before != after:
        yield ReportDifference(path, before, after)


def _partial(path: tuple[str, ...]) -> bool:
    """Return whether the reports need not have the same keys at this path: the checks, and a policy's episodes."""
    return path == ("checks",) or path[2:] == ("checks",) or (path[2:3] == ("episodes",) and len(path) == 4)


def _measured(path: tuple[str, ...], before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ReportDifference]:
    for label, one in _both(before, after, "baselines"):
        other = after["baselines"][label]
        if one.get("action") != other["action"] or one.get("low") is None or other["low"] is None:
            continue  # another action is another policy, and few rollouts have no interval
        gap = max(one["low"] - other["high"], other["low"] - one["high"])
        if gap > APART * max(abs(one["mean"]), abs(other["mean"])):
            yield ReportDifference((*path, "baselines", label, "mean"), one["mean"], other["mean"])
    for name, seconds in _both(before, after, "seconds"):
        short, long = sorted((seconds, after["seconds"][name]))
        if long > TIMES * short and long - short > LEAST_SECONDS:
            yield ReportDifference((*path, "seconds", name), seconds, after["seconds"][name])


def _both(before: Mapping[str, Any], after: Mapping[str, Any], part: str) -> Iterator[Any]:
    yield from ((name, value) for name, value in before.get(part, {}).items() if name in after[part])
