"""The doctor's checks and their results: a status, the evidence, the line in the author's file, and what to do."""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from taskapp_kit.client.checks import Finding
from taskapp_kit.records.content import Json

if TYPE_CHECKING:
    from taskapp_kit.doctor.subject import EnvironmentUnderTest

Status = Literal["ok", "warning", "wrong", "skipped", "allowed"]
"""`allowed` is a warning or an error that the caller accepted by naming the check."""


@dataclass(frozen=True, slots=True)
class FindingEpisode:
    """An episode that shows a finding. `taskapp rollout` can play it again.

    Attributes:
        split: The split.
        seed: The seed.
        action: What the policy does: a text reply, `{"tool": {args}}`, or a list of such objects, which are done in order.
        earned: The episode's reward.
        good: The reward of good play, for comparison.
        once: Whether the policy acts only in the first turn. If not, it repeats `action` in each turn.
    """

    split: str
    seed: int
    action: Json
    earned: float | None = None
    good: float | None = None
    once: bool = False

    def command(self, app: str, environment: str, *, judges: bool) -> str:
        """Return the command that plays the episode again. judges: Whether it calls the app's judges."""
        line = ["taskapp", "rollout", app, "--env", environment, "--split", self.split, "--seed", str(self.seed)]
        line += [*(["--ops", "1"] if self.once else []), *([] if judges else ["--judges", "skip"])]
        return shlex.join([*line, "--action", json.dumps(self.action, ensure_ascii=False)])


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check of one environment.

    found: A sentence with the evidence. do: What to do, or "". place: `file:line` in the author's code, or "". episode: An
    episode that shows the finding.
    """

    status: Status
    found: str
    do: str = ""
    place: str = ""
    episode: FindingEpisode | None = None


def passed(found: str) -> CheckResult:
    """Return the result of a check that passed."""
    return CheckResult("ok", found)


def skipped(found: str, do: str = "") -> CheckResult:
    """Return the result of a check that did not run. found: The reason."""
    return CheckResult("skipped", found, do)


def warning(found: str, do: str, place: str = "", episode: FindingEpisode | None = None) -> CheckResult:
    """Return the result of a check that found something that may be intentional."""
    return CheckResult("warning", found, do, place, episode)


def wrong(found: str, do: str, place: str = "", episode: FindingEpisode | None = None) -> CheckResult:
    """Return the result of a check that failed."""
    return CheckResult("wrong", found, do, place, episode)


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
        episode: An episode that shows the finding, or None.
    """

    name: str
    part: str
    status: Status
    found: str
    do: str = ""
    place: str = ""
    environment: str | None = None
    seconds: float = 0.0
    episode: FindingEpisode | None = None

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
            "episode": None if self.episode is None else asdict(self.episode),
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
