"""A check of the doctor: a name, the sentence that it proves, and a function that returns its verdict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from taskapp_kit.doctor.finding import CheckResult
from taskapp_kit.doctor.subject import EnvironmentUnderTest

CheckFunction = Callable[[EnvironmentUnderTest], Awaitable[CheckResult]]


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One check of one environment.

    sentence: what holds when it passes. plays: it plays further rollouts, so it is left out where the base policy's fail,
    and where an episode asks a model. after: names of checks; when one of them is wrong, this one would only repeat it.
    """

    name: str
    sentence: str
    function: CheckFunction
    plays: bool
    after: tuple[str, ...]


def check(
    name: str, sentence: str, *, plays: bool = False, after: tuple[str, ...] = ()
) -> Callable[[CheckFunction], DoctorCheck]:
    """Make a check of a function; see `DoctorCheck`."""

    def decorate(function: CheckFunction) -> DoctorCheck:
        return DoctorCheck(name, sentence, function, plays, after)

    return decorate
