"""Examines an app: its declarations, then every check of each environment."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from taskapp_kit.config import Settings, load
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.doctor import (
    action_attack,
    answers,
    attack,
    descriptions,
    privacy,
    repeats,
    resources,
    rollouts,
    scores,
)
from taskapp_kit.doctor.doctor_options import DoctorOptions, settings_words
from taskapp_kit.doctor.finding import CheckResult, DoctorCheck, DoctorFinding, skipped, wrong
from taskapp_kit.doctor.subject import EnvironmentUnderTest, OutOfTime
from taskapp_kit.errors import ConfigError, DeclarationError, KitError, RolloutFailed, closest
from taskapp_kit.rollout.episode.environment import prepare_to_serve
from taskapp_kit.rollout.service import Service

CHECKS: tuple[DoctorCheck, ...] = tuple(
    item
    for module in (rollouts, repeats, privacy, answers, attack, action_attack, descriptions, scores, resources)
    for item in vars(module).values()
    if isinstance(item, DoctorCheck)
)
"""All checks in the order in which they run and are reported: by module, and within a module by line."""
DECLARATIONS = "declarations"
SETUP = "setup"
THREADS = 32


def names() -> list[str]:
    """Return the names of all checks of an app."""
    return [DECLARATIONS, SETUP, *(item.name for item in CHECKS)]


NOTHING: Mapping[str, str] = {}


async def examine(
    app: TaskApp,
    options: DoctorOptions | None = None,
    settings: Settings | None = None,
    examined: Callable[[EnvironmentUnderTest], None] | None = None,
) -> AsyncIterator[DoctorFinding]:
    """Examine an app, and yield each finding as soon as it is known.

    The findings about the declarations come first, then the findings about each environment in the order of the checks.
    Rollouts are played in this process, and nothing is stored.

    Args:
        app: The app.
        options: What to check, and how many rollouts to play. By default all environments are examined and no model is
            called.
        settings: The settings that configure the models of judges and environments, which are called only with
            `options.judges`. Defaults to the process environment and `taskapp.toml`, without `.env`.
        examined: Called with each environment and its rollouts after the last check of the environment.

    Yields:
        A finding for each check.

    Raises:
        ConfigError: `allow` or `environment` has a name that does not exist.
        Unavailable: `judges` is set, but a judge has no model.
    """
    options = options or DoctorOptions()
    _check_names(options.allow)
    try:
        spec = app.freeze()
    except DeclarationError as error:
        for problem in error.problems:
            found = f"{problem.place}: {problem.found}; expected {problem.expected}."
            yield _allowed(DoctorFinding(DECLARATIONS, "task app", "wrong", found, problem.fix, problem.place), options)
        return
    settings = settings or load(dot_env=False)
    if not options.judges:
        settings = settings.without_models()
    yield _declared(spec)
    yield DoctorFinding(DECLARATIONS, "task app", "ok", settings_words(settings, judges=options.judges))
    for text in spec.warnings:
        yield DoctorFinding(DECLARATIONS, "task app", "ok", f"{_capital(text).rstrip('.')}.")
    if options.environment is not None and options.environment not in spec.environments:
        raise ConfigError(
            f"The environment {options.environment!r} does not exist. The app has {', '.join(spec.environments)}."
        )
    chosen = [item for item in spec.environments.values() if options.environment in (None, item.name)]
    for item in chosen:
        _check_names(item.accept)
    service = Service.of(app, settings, max_concurrent=THREADS, threads=THREADS, skip_judges=not options.judges)
    try:
        for environment in chosen:
            subject = EnvironmentUnderTest(app, spec, environment, service, options)
            async for finding in _examined(subject, None if options.seconds is None else options.seconds / len(chosen)):
                yield finding
            if examined is not None:
                examined(subject)
    finally:
        await service.close()


async def _examined(subject: EnvironmentUnderTest, seconds: float | None) -> AsyncIterator[DoctorFinding]:
    """Yield the findings about one environment. seconds: The time for the checks, not including the setup."""
    if subject.in_this_process:
        try:
            await asyncio.to_thread(prepare_to_serve, subject.environment)
        except KitError as error:
            finding = DoctorFinding(SETUP, "rollout", "wrong", error.message, error.hint, subject.place, subject.name)
            yield _allowed(finding, subject.options, subject.environment.accept)
            return
    subject.service.models.called.clear()
    subject.until = None if seconds is None else time.monotonic() + seconds
    with contextlib.suppress(OutOfTime):
        await subject.sample()
    statuses: dict[str, str] = {}
    for item in CHECKS:
        began = time.monotonic()
        made = await _verdict(subject, item, statuses)
        statuses[item.name] = made.status
        seconds, name = time.monotonic() - began, subject.name
        finding = DoctorFinding(
            item.name, "rollout", made.status, made.found, made.do, made.place, name, seconds, made.episode
        )
        yield _allowed(finding, subject.options, subject.environment.accept)


async def _verdict(subject: EnvironmentUnderTest, item: DoctorCheck, statuses: dict[str, str]) -> CheckResult:
    """Run one check, or return the reason why it is skipped."""
    broken = next((name for name in item.after if statuses.get(name) in ("wrong", "warning")), None)
    if broken is not None:
        return skipped(f"Not checked, because {broken} found a problem.")
    if item.plays and not subject.base_rollouts():
        return skipped("Not checked, because no rollout of the base policy was scored.")
    if item.plays and subject.asks_models:
        return skipped("Not checked, because episodes call a model. Only the first rollout was played.")
    try:
        return await item.function(subject)
    except OutOfTime:
        return skipped("Not checked, because the time was up.", subject.options.hint_for_time)
    except RolloutFailed as failed:
        late = rollouts.LATE_CODES if subject.options.quick else rollouts.LATE_CODES - {"environment_hung"}
        if failed.failure.code in late and item is not repeats.at_once:
            return skipped(f"Not checked: {failed.message.rstrip('.')}.", subject.options.hint_for_time)
        place = rollouts.raised_at(failed, str(subject.app.file.parent)) or subject.place
        said = failed.message.rstrip(".")
        found = f"A rollout of this check failed at boundary {failed.boundary} ({failed.failure.code}): {said}."
        return wrong(found, failed.hint or "Fix the environment.", place)
    except KitError as error:
        return skipped(f"Not checked: {error.message}", error.hint)


def _declared(spec: AppSpec) -> DoctorFinding:
    count = "1 environment" if len(spec.environments) == 1 else f"{len(spec.environments)} environments"
    found = f"{spec.name} {spec.version} declares {count}. Nothing is stored."
    return DoctorFinding(DECLARATIONS, "task app", "ok", found)


def _allowed(finding: DoctorFinding, options: DoctorOptions, accept: Mapping[str, str] = NOTHING) -> DoctorFinding:
    if finding.name in accept:
        return finding.accepted(accept[finding.name])
    return finding.accepted() if finding.name in options.allow else finding


def _check_names(given: Iterable[str]) -> None:
    known = names()
    for name in given:
        if name not in known:
            close = closest(name, known)
            hint = f"Did you mean {close!r}?" if close else f"The checks are {', '.join(known)}."
            raise ConfigError(f"The check {name!r} does not exist.", hint=hint)


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
