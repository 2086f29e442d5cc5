"""Runs the doctor's checks as pytest tests: one test for each check of each environment."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator

import pytest

from taskapp_kit.client.blocking_portal import run
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.doctor.doctor_options import DoctorOptions
from taskapp_kit.doctor.examine import CHECKS, DECLARATIONS, SETUP, examine
from taskapp_kit.doctor.finding import DoctorFinding
from taskapp_kit.errors import DeclarationError


class DoctorWarning(UserWarning):
    """A finding of the doctor that may be intentional."""


class Examination:
    """The findings about an app. All rollouts are played when the first test reads the findings."""

    def __init__(self, app: TaskApp, options: DoctorOptions) -> None:
        self._app = app
        self._options = options
        self._findings: list[DoctorFinding] | None = None

    def findings(self) -> list[DoctorFinding]:
        """Return the findings of all checks."""
        if self._findings is None:
            log = logging.getLogger("taskapp_kit")
            level = log.level
            log.setLevel(logging.CRITICAL)  # the doctor reports failures, so they are not logged
            try:
                self._findings = run(_all(self._app, self._options))
            finally:
                log.setLevel(level)
        return self._findings


async def _all(app: TaskApp, options: DoctorOptions) -> list[DoctorFinding]:
    return [finding async for finding in examine(app, options)]


class DoctorItem(pytest.Item):
    """One check of one environment, or of the app if the environment is None."""

    def __init__(self, *, examination: Examination, check: str, environment: str | None, **given: object) -> None:
        super().__init__(**given)  # type: ignore[arg-type]
        self._examination = examination
        self._check = check
        self._environment = environment

    def runtest(self) -> None:
        """Fail, warn or skip, depending on the finding."""
        for finding in self._examination.findings():
            if (finding.name, finding.environment) != (self._check, self._environment):
                continue
            said = " ".join(filter(None, (f"{finding.place}:" if finding.place else "", finding.found, finding.do)))
            if finding.status == "wrong":
                pytest.fail(said, pytrace=False)
            if finding.status == "skipped":
                pytest.skip(said)
            if finding.status in ("warning", "allowed"):
                warnings.warn(f"{finding.name} ({finding.status}): {said}", DoctorWarning, stacklevel=1)

    def reportinfo(self) -> tuple[str, None, str]:
        """Return the location that pytest shows in a report: the test has no file and no line."""
        return "taskapp-doctor", None, self.name


class DoctorCollector(pytest.Collector):
    """The doctor's tests of one app."""

    app: TaskApp
    options: DoctorOptions

    def collect(self) -> Iterator[DoctorItem]:
        """Yield a test for each check of each environment. If the declarations are invalid, yield only one test."""
        examination = Examination(self.app, self.options)

        def item(check: str, environment: str | None) -> DoctorItem:
            name = f"doctor[{check}]" if environment is None else f"doctor[{environment}-{check}]"
            return DoctorItem.from_parent(
                self, name=name, examination=examination, check=check, environment=environment
            )

        yield item(DECLARATIONS, None)
        try:
            environments = list(self.app.freeze().environments)
        except DeclarationError:
            return
        for environment in environments:
            yield item(SETUP, environment)
            for check in CHECKS:
                yield item(check.name, environment)


def collected(session: pytest.Session, app: TaskApp, options: DoctorOptions) -> list[pytest.Item]:
    """Return the tests of an app."""
    collector = DoctorCollector.from_parent(session, name="taskapp-doctor", nodeid="taskapp-doctor")
    collector.app, collector.options = app, options
    return list(collector.collect())
