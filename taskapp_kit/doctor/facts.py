"""What a doctor's report states about an app: facts, which are equal for equal input, and measured values."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from taskapp_kit.declare.specs import AppSpec, FunctionSpec, JudgeSpec
from taskapp_kit.declare.tasks import row_hash
from taskapp_kit.doctor.finding import DoctorFinding
from taskapp_kit.doctor.resources import durations
from taskapp_kit.doctor.rollouts import LATE_CODES
from taskapp_kit.doctor.subject import GOLD, Attempt, EnvironmentUnderTest, kind_of
from taskapp_kit.errors import RolloutFailed
from taskapp_kit.records.content import Json, json_hash
from taskapp_kit.records.score_ranges import ScoreRanges
from taskapp_kit.records.statistics import mean_interval
from taskapp_kit.rollout.describe import Description
from taskapp_kit.version import __version__

MEASURING = frozenset({"cost", "memory", "in-time"})
"""Checks whose result depends on the machine's speed or memory."""
MOST_ROWS = 1000
"""How many rows of a split have a separate hash, so that a changed row can be named."""
HASH_CHARACTERS = 16
DIGITS = 9
"""Rewards and scores are rounded to this number of decimal places, because sums of floats differ between platforms."""


def examiner_facts() -> dict[str, Json]:
    """Return the versions of the kit and of Python that examine an app."""
    return {"kit": __version__, "python": ".".join(map(str, sys.version_info[:2]))}


def app_facts(spec: AppSpec) -> dict[str, Json]:
    """Return the app's name and version, and the hash of its declarations."""
    return {"app": spec.name, "version": spec.version, "spec_hash": spec.hash}


def statuses(findings: Sequence[DoctorFinding], environment: str | None) -> dict[str, Json]:
    """Return the statuses of an environment's checks, or of the app's checks. The worst of several findings counts.

    Skipped checks are left out, because on a slow machine more checks run out of time. MEASURING is also left out.
    """
    chosen = [item for item in findings if item.environment == environment and item.name not in MEASURING]
    chosen = [item for item in chosen if item.status != "skipped"]
    return {item.name: item.status for item in sorted(chosen, key=lambda item: item.status != "ok")}


def environment_facts(subject: EnvironmentUnderTest) -> dict[str, Json]:
    """Return the hashes of an environment's code and rows, and its first episodes of each policy that needs no model.

    Constant policies are left out, because their actions are the most frequent ones of the rollouts that were played.
    """
    environment, spec, hashes = subject.environment, subject.spec, dict[str, list[Json]]()
    for split, _, row in subject.rows():
        hashes.setdefault(split, []).append(row_hash(row))
    functions: list[FunctionSpec | JudgeSpec] = [*spec.criteria, *spec.judges, *spec.policies]
    return {
        "version": environment.version,
        "source": _source(environment.cls),
        "rows": {
            split: {"count": len(found), "all": json_hash(found), "each": [*map(_short, found[:MOST_ROWS])]}
            for split, found in hashes.items()
        },
        "functions": {item.name: _source(item.function) for item in functions if item.applies_to(subject.name)},
        "episodes": {
            label: {f"{item.split} {item.seed}": fact for item in attempts if (fact := _episode(item)) is not None}
            for label, attempts in subject.attempts.items()
            if kind_of(label) != "constant"
        },
    }


def _short(sha256: str) -> str:
    return sha256[:HASH_CHARACTERS]


def _source(target: Callable[..., Any] | None) -> str | None:
    """Return the hash of the source code of a function or class, or None if it has no source code."""
    while isinstance(target, functools.partial):
        target = target.func
    target = inspect.unwrap(target) if target is not None else None
    try:
        code = target if inspect.isclass(target) or inspect.isroutine(target) else type(target)
        return _short(json_hash(inspect.getsource(code)))
    except (OSError, TypeError):  # a class that the kit creates, such as the class of `app.tasks`
        return None


def _episode(attempt: Attempt) -> Json:
    """Return what must be equal each time an episode is played, or None if a model or the machine influences it."""
    rollout, error = attempt.rollout, attempt.error
    if isinstance(error, RolloutFailed) and error.failure.code not in LATE_CODES:
        return {"failed": error.failure.code}
    if rollout is None or rollout.auxiliary_calls or rollout.judging:
        return None
    scores: dict[str, Json] = {item.name: _rounded(item.score) for item in rollout.scorecard.criteria}
    return {"digest": _short(rollout.digest or ""), "reward": _rounded(rollout.reward), "scores": scores}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def measurements(subject: EnvironmentUnderTest) -> dict[str, Json]:
    """Return the mean reward of each policy with its interval, and the median durations of a reset and a step."""
    described = Description(subject.spec, max_time_seconds=1, max_concurrent=1, max_body_bytes=1)
    ranges = ScoreRanges.of_task_info(described.taskset(subject.environment), subject.spec.aggregation)
    baselines: dict[str, Json] = {}
    for label in sorted(subject.attempts, key=lambda label: (label != GOLD, kind_of(label) == "constant")):
        scored = [item for item in subject.scored(label) if item.reward is not None]
        rewards = [item.reward for item in scored if item.reward is not None]
        interval = mean_interval(rewards, [(item.split, item.seed) for item in scored], bounds=ranges.reward)
        action = subject.players[label].config.get("action")
        baselines[label] = {**interval.to_json(), "action": action}
    resets, steps = durations(subject)
    seconds: dict[str, Json] = {name: median(values) for name, values in (("reset", resets), ("step", steps)) if values}
    return {"baselines": baselines, "seconds": seconds}
