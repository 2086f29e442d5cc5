"""Variations of the loop *play, update, repeat*. Each variation is a class, and the classes do no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from taskapp_kit.jobs.server.rollout_plan import JobPlan

LARGEST_WEIGHT = 1000


@dataclass(frozen=True, slots=True)
class EnvironmentShare:
    """One environment of a job.

    Attributes:
        name: The unique name in metrics and events.
        weight: The environment's share of the groups, relative to the sum of all weights.
        env_name: The environment's `env_name`, or None for the job's `env_name`.
        task_url: The address of another task app, or None for the job's task app.
        env_config: Values that are merged into the job's `env_config`.
        seeds: The training seeds, or None for the job's seeds.
        eval_seeds: The evaluation seeds, or None for the job's evaluation seeds.
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
    """Return each index as often as its weight, evenly distributed. For [3, 1], return [0, 0, 1, 0]."""
    total, credit, order = sum(weights), [0] * len(weights), list[int]()
    for _ in range(total):
        credit = [each + weight for each, weight in zip(credit, weights, strict=True)]
        chosen = credit.index(max(credit))
        credit[chosen] -= total
        order.append(chosen)
    return order


def divided(weights: Sequence[int], first: int, count: int) -> list[tuple[int, list[int]]]:
    """Divide a job's places (the positions of its groups) among environments in proportion to their weights.

    For each environment, return how many of the places before `first` it has, and which of the `count` places from
    `first` on. `first` counts from the start of the job; the returned places count from `first`. Any sum(weights)
    consecutive places are divided exactly in proportion to the weights.
    """
    # The place of a group in the job determines its environment, so no random draw and no history are needed.
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
    """Selects the difficulty of tasks by the mean reward of the last `window` iterations at one level.

    Attributes:
        levels: Values of a task's `difficulty`, the easiest first. () disables the curriculum.
        up: If the mean reward is at least this value, the next level follows.
        down: If the mean reward is at most this value, the previous level follows. None disables this rule.
        window: The number of iterations in the mean reward.
    """

    levels: tuple[Level, ...] = ()
    up: float = 0.8
    down: float | None = None
    window: int = 1

    def level(self, seen: Mapping[str, Any]) -> Level | None:
        """Return the level to play, or None if `levels` is empty. `seen` is the last result of `after`, initially {}."""
        return self.levels[seen.get("level", 0)] if self.levels else None

    def after(self, reward: float | None, played: Level | None, seen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state after an iteration: the index of the next `level`, and the `rewards` so far at this level.

        The state does not change if `reward` is None, or if `played`, the level of the iteration, is not the current
        level, which may happen if rollouts are played ahead.
        """
        index, rewards = int(seen.get("level", 0)), list(seen.get("rewards", ()))
        if reward is None or played != self.level(seen):
            return {"level": index, "rewards": rewards}
        rewards = [*rewards, reward][-self.window :]
        mean = sum(rewards) / len(rewards)
        if len(rewards) == self.window and mean >= self.up and index + 1 < len(self.levels):
            return {"level": index + 1, "rewards": []}
        if len(rewards) == self.window and self.down is not None and mean <= self.down and index > 0:
            return {"level": index - 1, "rewards": []}
        return {"level": index, "rewards": rewards}


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """Ends a job if an evaluation is good enough, or if several in a row are not better than the best evaluation so far.

    Attributes:
        stop_at: An evaluation with at least this mean reward ends the job. None disables this rule.
        patience: This many evaluations in a row without an improvement end the job. None disables this rule.
    """

    stop_at: float | None = None
    patience: int | None = None

    def after(self, reward: float | None, seen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state after an evaluation: `best`, `without_better`, and `reason` if the evaluation ends the job.

        `seen` is the last result, initially {}. A `reward` of None does not change the state.
        """
        best, idle = seen.get("best"), int(seen.get("without_better", 0))
        if reward is None:
            return {"best": best, "without_better": idle}
        better = best is None or reward > best
        idle = 0 if better else idle + 1
        after: dict[str, Any] = {"best": reward if better else best, "without_better": idle}
        if self.stop_at is not None and reward >= self.stop_at:
            after["reason"] = f"its reward {reward:.4g} reached {self.stop_at:g}"
        elif self.patience is not None and idle >= self.patience:
            after["reason"] = f"{idle} in a row were not better than {best:.4g}"
        return after


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The variations of a job's loop.

    Attributes:
        stopping: When an evaluation ends the job early.
        curriculum: Which level is played.
        ahead: How many iterations the rollouts may be ahead of updates. This also limits how many versions old the
            weights of a rollout may be. With 0, rollouts and updates alternate.
        environments: The environments, or () for the environment in the job's plan.
    """

    stopping: EarlyStopping = field(default_factory=EarlyStopping)
    curriculum: Curriculum = field(default_factory=Curriculum)
    ahead: int = 0
    environments: tuple[EnvironmentShare, ...] = ()
