"""How a job's rollouts and updates follow each other, beyond *play, update, repeat*: each class is one way, without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from taskapp_kit.jobs.server.rollout_plan import JobPlan

LARGEST_WEIGHT = 1000


@dataclass(frozen=True, slots=True)
class EnvironmentShare:
    """One environment of a job.

    name: in points and events, unique. weight: of so many groups in the sum of all weights. task_url: None for the job's
    own task app. env_name, env_config, seeds, eval_seeds: over the job's.
    """

    name: str
    weight: int
    env_name: str | None = None
    task_url: str | None = None
    env_config: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] | None = None
    eval_seeds: tuple[int, ...] | None = None

    def plan(self, job: JobPlan) -> JobPlan:
        """Return the job's plan for this environment's rollouts."""
        return replace(
            job,
            env_name=self.env_name or job.env_name,
            env_config={**job.env_config, **self.env_config},
            seeds=job.seeds if self.seeds is None else self.seeds,
            eval_seeds=job.eval_seeds if self.eval_seeds is None else self.eval_seeds,
        )


def turn_order(weights: Sequence[int]) -> list[int]:
    """Return indices of weights, each as often as its weight, spread as evenly as possible: [3, 1] gives [0, 0, 1, 0]."""
    total, credit, order = sum(weights), [0] * len(weights), list[int]()
    for _ in range(total):
        credit = [each + weight for each, weight in zip(credit, weights, strict=True)]
        chosen = credit.index(max(credit))
        credit[chosen] -= total
        order.append(chosen)
    return order


def divided(weights: Sequence[int], first: int, count: int) -> list[tuple[int, list[int]]]:
    """Return for each weight the number of places that it had before `first`, and its places among the next `count`.

    Places are numbered from 0 throughout the job, and returned counted from `first`. Every sum(weights) of them are divided
    exactly.
    """
    # A group's place in the job decides whose it is, so neither a draw nor the past is needed.
    order = turn_order(weights)
    rounds, rest = divmod(first, len(order))
    found = []
    for index, weight in enumerate(weights):
        places = [place for place in range(count) if order[(rest + place) % len(order)] == index]
        found.append((rounds * weight + order[:rest].count(index), places))
    return found


Level = str | int


@dataclass(frozen=True, slots=True)
class Curriculum:
    """levels: values of a task's `difficulty`, the easiest first; a job begins with it. Without levels nothing is chosen.

    up, down: the mean reward of `window` iterations in a row at one level from which, and up to which, the next one is
    played. down: None never goes back.
    """

    levels: tuple[Level, ...] = ()
    up: float = 0.8
    down: float | None = None
    window: int = 1

    def level(self, seen: Mapping[str, Any]) -> Level | None:
        """Return the level to play; None without levels. seen: what `after` returned last, {} at first."""
        return self.levels[seen.get("level", 0)] if self.levels else None

    def after(self, reward: float | None, played: Level | None, seen: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is known after an iteration: `level`, the index of the next one, and `rewards` at it so far.

        reward: None changes nothing. played: the level of the iteration; with rollouts ahead it may be an earlier one, which
        changes nothing either.
        """
        index, rewards = int(seen.get("level", 0)), list(seen.get("rewards", ()))
        known: dict[str, Any] = {"level": index, "rewards": rewards}
        if reward is None or played != self.level(seen):
            return known
        rewards = [*rewards, reward][-self.window :]
        mean = sum(rewards) / len(rewards)
        if len(rewards) == self.window and mean >= self.up and index + 1 < len(self.levels):
            return {"level": index + 1, "rewards": []}
        if len(rewards) == self.window and self.down is not None and mean <= self.down and index > 0:
            return {"level": index - 1, "rewards": []}
        return {"level": index, "rewards": rewards}


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """Ends a job by its evaluations: when one is good enough, or when several in a row were no better than the best.

    stop_at: the mean reward of an evaluation that ends the job. patience: evaluations in a row without a
    better one. None: that rule ends nothing.
    """

    stop_at: float | None = None
    patience: int | None = None

    def after(self, reward: float | None, seen: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is known after an evaluation: `best`, `without_better`, and `reason` where it ends the job.

        seen: what was known before it, {} at first. reward: None changes nothing, for it says nothing.
        """
        best, idle = seen.get("best"), int(seen.get("without_better", 0))
        if reward is None:
            return {"best": best, "without_better": idle}
        better = best is None or reward > best
        idle = 0 if better else idle + 1
        known: dict[str, Any] = {"best": reward if better else best, "without_better": idle}
        if self.stop_at is not None and reward >= self.stop_at:
            known["reason"] = f"its reward {reward:.4g} reached {self.stop_at:g}"
        elif self.patience is not None and idle >= self.patience:
            known["reason"] = f"{idle} in a row were no better than {best:.4g}"
        return known


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """stopping: whether evaluations end the job. environments: () for the one that the job's plan names.

    ahead: iterations whose rollouts may begin before the updates of the iterations before them: that many versions the
    weights of a rollout may be behind. 0: play and update take turns.
    """

    stopping: EarlyStopping = field(default_factory=EarlyStopping)
    curriculum: Curriculum = field(default_factory=Curriculum)
    ahead: int = 0
    environments: tuple[EnvironmentShare, ...] = ()
