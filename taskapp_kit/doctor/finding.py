"""The doctor's checks and their results: a status, the evidence, the line in the author's file, and what to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from taskapp_kit.client.checks import Finding

if TYPE_CHECKING:
    from taskapp_kit.doctor.subject import EnvironmentUnderTest

Status = Literal["ok", "warning", "wrong", "skipped", "allowed"]
"""`allowed` is a warning or an error that the caller accepted by naming the check."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check of one environment.

    found: A sentence with the evidence. do: What to do, or "". place: `file:line` in the author's code, or "".
    """

    status: Status
    found: str
    do: str = ""
    place: str = ""


def passed(found: str) -> CheckResult:
    """Return the result of a check that passed."""
    return CheckResult("ok", found)


def skipped(found: str, do: str = "") -> CheckResult:
    """Return the result of a check that did not run. found: The reason."""
    return CheckResult("skipped", found, do)


def warning(found: str, do: str, place: str = "") -> CheckResult:
    """Return the result of a check that found something that may be intentional."""
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
        status: The result. `allowed` is a warning or an error that the caller or a declaration accepts.
        found: A sentence with the evidence.
        do: What to do about it, or "".
        place: `file:line` in the author's code, or "".
        environment: The environment, or None for a finding about the app or a server.
        seconds: The duration of the check.
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
        """Whether the status is not `wrong`. An accepted error has the status `allowed` and is also ok."""
        return self.status != "wrong"

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON for `taskapp doctor --json`."""
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
        """Return the finding with the status `allowed`. If its check passed or was skipped, return it unchanged."""
        if self.status not in ("warning", "wrong"):
            return self
        return replace(self, status="allowed", found=f"{self.found} Accepted: {reason}" if reason else self.found)


def of_server(finding: Finding) -> DoctorFinding:
    """Convert a finding of the server checks in `client` to a DoctorFinding."""
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
        plays: Whether the check plays rollouts. Such a check is skipped if the base policy's rollouts fail, or if episodes
            call a model.
        after: The names of other checks. If one of them finds a problem, this check is skipped, because it would only
            repeat the finding.
    """

    name: str
    sentence: str
    function: CheckFunction
    plays: bool
    after: tuple[str, ...]


def check(
    name: str, sentence: str, *, plays: bool = False, after: tuple[str, ...] = ()
) -> Callable[[CheckFunction], DoctorCheck]:
    """Turn a function into a check. See `DoctorCheck`."""

    def decorate(function: CheckFunction) -> DoctorCheck:
        return DoctorCheck(name, sentence, function, plays, after)

    return decorate
