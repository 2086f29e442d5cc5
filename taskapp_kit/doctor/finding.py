"""A check of the doctor, and its result: a status, the evidence, the line in the author's file, and what to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from taskapp_kit.client.checks import Finding

if TYPE_CHECKING:
    from taskapp_kit.doctor.subject import EnvironmentUnderTest

Status = Literal["ok", "warning", "wrong", "skipped", "allowed"]
"""`allowed` is a warning or an error that the caller accepts by the check's name."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check of one environment. found: a sentence with the evidence. place: `file:line`, or ""."""

    status: Status
    found: str
    do: str = ""
    place: str = ""


def passed(found: str) -> CheckResult:
    """Return the result of a check that passed."""
    return CheckResult("ok", found)


def skipped(found: str, do: str = "") -> CheckResult:
    """Return the result of a check that did not run. found: the reason."""
    return CheckResult("skipped", found, do)


def warning(found: str, do: str, place: str = "") -> CheckResult:
    """Return the result of a check that found something which may be intended."""
    return CheckResult("warning", found, do, place)


def wrong(found: str, do: str, place: str = "") -> CheckResult:
    """Return the result of a check that failed."""
    return CheckResult("wrong", found, do, place)


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One finding of the doctor.

    Attributes:
        name: The check's name.
        part: `task app`, `rollout`, or a part of a running server (`key`, `contract`, `backend`).
        status: `allowed` is a warning or an error that the caller or the declaration accepts.
        found: A sentence with the evidence.
        do: What to do about it; "" if nothing.
        place: `file:line` in the author's code, or "".
        environment: None for a finding about the app or a server.
        seconds: How long the check took.
    """

    name: str
    part: str
    status: Status
    found: str
    do: str = ""
    place: str = ""
    environment: str | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """False for an error that was not accepted."""
        return self.status != "wrong"

    def to_json(self) -> dict[str, Any]:
        """Return the finding as an object of `taskapp doctor --json`."""
        return {
            "part": self.part,
            "ok": self.ok,
            "found": self.found,
            "do": self.do,
            "name": self.name,
            "status": self.status,
            "environment": self.environment,
            "place": self.place,
            "seconds": round(self.seconds, 3),
        }

    def accepted(self, reason: str = "") -> DoctorFinding:
        """Return the finding as accepted; unchanged if its check passed or was skipped."""
        if self.status not in ("warning", "wrong"):
            return self
        return replace(self, status="allowed", found=f"{self.found} Accepted: {reason}" if reason else self.found)


def of_server(finding: Finding) -> DoctorFinding:
    """Return a finding about a running server as a finding of the doctor."""
    name = finding.part.replace(" ", "-")
    return DoctorFinding(name, finding.part, "ok" if finding.ok else "wrong", finding.found, finding.do)


CheckFunction = Callable[["EnvironmentUnderTest"], Awaitable[CheckResult]]


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One check of one environment.

    Attributes:
        name: The check's name.
        sentence: What is true if the check passes.
        function: Runs the check.
        plays: Whether it plays further rollouts. Then it is skipped if the base policy's rollouts fail, and if an episode
            calls a model.
        after: Names of checks. If one of them fails, this check would only repeat its finding, so it is skipped.
    """

    name: str
    sentence: str
    function: CheckFunction
    plays: bool
    after: tuple[str, ...]


def check(
    name: str, sentence: str, *, plays: bool = False, after: tuple[str, ...] = ()
) -> Callable[[CheckFunction], DoctorCheck]:
    """Turn a function into a check; see `DoctorCheck`."""

    def decorate(function: CheckFunction) -> DoctorCheck:
        return DoctorCheck(name, sentence, function, plays, after)

    return decorate
