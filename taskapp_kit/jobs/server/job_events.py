"""The events, points and metrics of the rollouts engine. Each event states that no weights are updated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskapp_kit.jobs.server.engine import CurvePoint, Event
from taskapp_kit.jobs.server.rewards import Summary
from taskapp_kit.jobs.server.rollout_plan import JobPlan, Unit
from taskapp_kit.records.formatting import counted

NAME = "rollouts"
NOTE = "The engine `rollouts` plays and scores; no weights are updated."


def facts(**data: Any) -> dict[str, Any]:
    """Return an event's data, with two fields added: the engine's name, and whether it updates weights."""
    return {**data, "engine": NAME, "updates_weights": False}


def begun(plan: JobPlan, player: str) -> Event:
    """Return the event that reports the start of a job. player: The policy's name."""
    return Event(
        "rl.train.started",
        f"{plan.total} rollouts in {counted(plan.iterations, 'iteration')} of {counted(plan.groups, 'group')} of "
        f"{plan.samples}, at most {plan.at_once} at once. {NOTE}",
        data=facts(
            iterations=plan.iterations,
            groups=plan.groups,
            group_size=plan.samples,
            rollouts=plan.total,
            at_once=plan.at_once,
            policy=player,
            reward=plan.blend.words() if plan.blend else "the task app's own reward",
            evaluations=plan.evaluations,
        ),
    )


def over(unit: Unit, plan: JobPlan, found: Summary, seconds: float) -> Event:
    """Return the event that reports the end of an iteration or an evaluation."""
    what = "Evaluation after iteration" if unit.phase == "eval" else "Iteration"
    return Event(
        "rl.train.step" if unit.phase == "train" else "rl.eval.summary",
        f"{what} {unit.number} of {plan.iterations}: {found.words()}. No weights are updated.",
        "warning" if found.failed else "info",
        facts(
            step=unit.number,
            iteration=unit.number,
            epoch=unit.epoch,
            reward=found.mean,
            reward_stderr=found.stderr,
            seeds=found.seeds,
            reward_spread=found.spread,
            rollouts=found.rollouts,
            scored=found.scored,
            undefined=found.undefined,
            failed=found.failed,
            failures=dict(found.failures),
            groups_without_spread=found.flat_groups if unit.phase == "train" else None,
            seconds=round(seconds, 3),
        ),
    )


def metrics(unit: Unit, found: Summary, before: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the job's latest numbers. `failed` and `undefined` are counts over all rollouts so far."""
    latest = dict(before)
    if unit.phase == "eval":
        latest |= {"eval_reward": found.mean, "eval_reward_stderr": found.stderr}
    else:
        latest |= {"iteration": unit.number, "reward": found.mean, "reward_stderr": found.stderr}
        latest["groups_without_spread"] = found.flat_groups
    for name in ("failed", "undefined"):
        latest[name] = (before.get(name) or 0) + getattr(found, name)
    return latest


def points(unit: Unit, found: Summary, seconds: float) -> list[CurvePoint]:
    """Return the metric points of a unit. Undefined numbers are omitted."""
    prefix = "eval_" if unit.phase == "eval" else ""
    values: dict[str, float | None] = {
        "reward": found.mean,
        "reward_stderr": found.stderr,
        "rollouts": found.rollouts,
        "failed": found.failed,
        "undefined": found.undefined,
        "seconds": round(seconds, 3),
    }
    if unit.phase == "train":
        values["groups_without_spread"] = found.flat_groups
    values = {**found.scores, **values}
    return [
        CurvePoint(prefix + name, float(value), unit.number, unit.phase, unit.epoch)
        for name, value in values.items()
        if value is not None
    ]


def listed(unit: Mapping[str, Any]) -> dict[str, Any]:
    """Return a unit's entry in the results."""
    names = ("iteration", "reward", "reward_stderr", "rollouts", "undefined", "failed", "seconds")
    return {name: unit[name] for name in names}
