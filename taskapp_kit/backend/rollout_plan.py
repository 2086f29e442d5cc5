"""What the rollouts engine reads of a job: how many rollouts, of which seeds, how each is asked for.

All of it follows from the job alone, so that a backend that was killed asks the task app for the very same rollouts
under the very same keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taskapp_kit.backend.engine import JobDocument, Phase
from taskapp_kit.backend.rewards import RewardBlend, read_blend
from taskapp_kit.contract.identity import SEED_LIMIT
from taskapp_kit.contract.wire import NO_CONTROL_CHARACTERS

MAX_ROLLOUTS = 1_000_000
MAX_AT_A_TIME = 100_000
"""Rollouts of one iteration or evaluation, all of which are looked at together."""
MAX_OPS = 200_000
MAX_AT_ONCE = 1024
DEFAULT_AT_ONCE = 8
DEFAULT_BATCH, DEFAULT_GROUP = 2, 2
SAMPLING = (
    "temperature", "top_p", "top_k", "max_tokens", "repetition_penalty", "min_p", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip
"""Members of `[policy]` that a model's requests take over."""
AGENT_WORDS = ("agent", "policy", "model")


@dataclass(frozen=True, slots=True)
class Unit:
    """One iteration's training part, or the evaluation after it. number: of the iteration, from 1. epoch: from 1."""

    phase: Phase
    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job, read. Seeds of None are still to be drawn (`seeds.py`).

    groups, samples: groups of an iteration, rollouts of a group. at_once: rollouts in flight. policy_name,
    policy_config: as each request carries them, without `sample`. eval_every: 0 for no evaluation.
    """

    iterations: int
    per_epoch: int
    groups: int
    samples: int
    at_once: int
    env_name: str | None
    env_config: Mapping[str, Any]
    policy_name: str | None
    policy_config: Mapping[str, Any]
    ops: Sequence[Any]
    seeds: Sequence[int] | None
    eval_every: int = 0
    eval_instances: int = 0
    eval_seeds: Sequence[int] | None = None
    blend: RewardBlend | None = None

    @property
    def names_a_player(self) -> bool:
        """Whether the job says who acts: a policy or a model's address."""
        return bool(self.policy_name or self.policy_config.get("inference_url") or self.policy_config.get("policy"))

    @property
    def evaluations(self) -> int:
        """How many there are."""
        return self.iterations // self.eval_every if self.eval_every else 0

    @property
    def units(self) -> int:
        """How many iterations and evaluations there are to do."""
        return self.iterations + self.evaluations

    def unit(self, index: int) -> Unit:
        """The one at this place, from 0: an evaluation stands behind its iteration."""
        if not self.eval_every:
            return self._unit("train", index + 1)
        block, place = divmod(index, self.eval_every + 1)
        if place == self.eval_every:
            return self._unit("eval", (block + 1) * self.eval_every)
        return self._unit("train", block * self.eval_every + place + 1)

    def _unit(self, phase: Phase, number: int) -> Unit:
        return Unit(phase, number, (number - 1) // self.per_epoch + 1)

    def size(self, unit: Unit) -> int:
        """Rollouts of this unit."""
        return self.groups * self.samples if unit.phase == "train" else self.eval_instances

    @property
    def total(self) -> int:
        """Rollouts of the whole job."""
        return self.iterations * self.groups * self.samples + self.evaluations * self.eval_instances


@dataclass(slots=True)
class _PlanReader:
    """Reads members of one document and notes what is wrong with them."""

    config: Mapping[str, Any]
    problems: list[str] = field(default_factory=list)

    def section(self, name: str) -> Mapping[str, Any]:
        found = self.config.get(name)
        if found is None:
            return {}
        if not isinstance(found, Mapping):
            self.problems.append(f"[{name}] should be a table.")
            return {}
        return found

    def table(self, place: str, section: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        found = section.get(name)
        if found is None:
            return {}
        if not isinstance(found, Mapping):
            self.problems.append(f"{place}.{name} should be a table.")
            return {}
        return found

    def whole(self, *given: tuple[str, Any], low: int, high: int, default: int) -> int:
        """The first of the given (place, value) that is there."""
        for place, value in given:
            if value is None:
                continue
            if type(value) is not int or not low <= value <= high:
                self.problems.append(f"{place} should be a whole number from {low} to {high}.")
                return default
            return value
        return default

    def word(self, place: str, value: Any) -> str | None:
        if value is None or (
            isinstance(value, str) and 0 < len(value) <= 512 and re.fullmatch(NO_CONTROL_CHARACTERS, value)
        ):
            return value
        self.problems.append(f"{place} should be a name of 1 to 512 letters, without control characters.")
        return None

    def seeds(self, place: str, value: Any) -> list[int] | None:
        if value is None:
            return None
        fits = (
            isinstance(value, list)
            and 0 < len(value) <= MAX_ROLLOUTS
            and all(type(item) is int and 0 <= item < SEED_LIMIT for item in value)
        )
        if not fits:
            self.problems.append(f"{place} should be a list of whole numbers from 0 to 2^63 - 1, at least one.")
            return None
        return list(value)


def read_plan(job: JobDocument) -> tuple[JobPlan | None, list[str]]:
    """The plan, and every problem in one sentence each; no plan when there are problems."""
    read = _PlanReader(job.config)
    training, rollout, data = read.section("training"), read.section("rollout"), read.section("data")
    evaluation, policy, trainer = read.section("evaluation"), read.section("policy"), read.section("trainer")
    env = read.section("env")
    epochs = read.whole(("training.num_epochs", training.get("num_epochs")), low=1, high=100_000, default=1)
    per_epoch = read.whole(
        ("training.iterations_per_epoch", training.get("iterations_per_epoch")), low=1, high=MAX_ROLLOUTS, default=1
    )
    groups = read.whole(
        ("trainer.batch_size", job.trainer.get("batch_size")),
        ("training.batch_size", training.get("batch_size")),
        ("trainer.batch_size", trainer.get("batch_size")),
        ("rollout.episodes_per_batch", rollout.get("episodes_per_batch")),
        low=1,
        high=10_000,
        default=DEFAULT_BATCH,
    )
    samples = read.whole(
        ("trainer.group_size", job.trainer.get("group_size")),
        ("training.group_size", training.get("group_size")),
        ("trainer.group_size", trainer.get("group_size")),
        low=1,
        high=1_000,
        default=DEFAULT_GROUP,
    )
    limits = [
        read.whole((place, value), low=1, high=1_000_000, default=DEFAULT_AT_ONCE)
        for place, value in (
            ("training.async_semaphore_max", training.get("async_semaphore_max")),
            ("rollout.max_concurrent_rollouts", rollout.get("max_concurrent_rollouts")),
        )
        if value is not None
    ]
    turns = read.whole(
        ("rollout.max_turns", rollout.get("max_turns")),
        ("training.max_turns", training.get("max_turns")),
        ("env.max_steps_per_episode", env.get("max_steps_per_episode")),
        low=1,
        high=100_000,
        default=0,
    )
    every, instances, eval_seeds = _evaluation(read, evaluation)
    plan = JobPlan(
        iterations=epochs * per_epoch,
        per_epoch=per_epoch,
        groups=groups,
        samples=samples,
        at_once=min([*limits, MAX_AT_ONCE]) if limits else DEFAULT_AT_ONCE,
        env_name=read.word("rollout.env_name", rollout.get("env_name")),
        env_config=dict(read.table("rollout", rollout, "env_config")),
        policy_name=read.word("rollout.policy_name", rollout.get("policy_name")),
        policy_config=_policy_config(read, rollout, policy, job.model),
        ops=_ops(read, rollout.get("ops"), turns),
        seeds=read.seeds("data.seeds", data.get("seeds")),
        eval_every=every,
        eval_instances=instances,
        eval_seeds=eval_seeds,
        blend=read_blend(read.section("judge"), read.problems),
    )
    if not read.problems and plan.total > MAX_ROLLOUTS:
        read.problems.append(
            f"the job has {plan.total} rollouts (iterations x groups x group size, and evaluations); at most "
            f"{MAX_ROLLOUTS} are played."
        )
    if not read.problems and max(plan.groups * plan.samples, plan.eval_instances) > MAX_AT_A_TIME:
        read.problems.append(
            f"an iteration (groups x group size) or an evaluation has more than {MAX_AT_A_TIME} rollouts; make it "
            "smaller, and play more of them."
        )
    return (None if read.problems else plan), read.problems


def _evaluation(read: _PlanReader, evaluation: Mapping[str, Any]) -> tuple[int, int, list[int] | None]:
    if not evaluation:
        return 0, 0, None
    seeds = read.seeds("evaluation.seeds", evaluation.get("seeds"))
    every = read.whole(
        ("evaluation.every_n_iters", evaluation.get("every_n_iters")), low=0, high=MAX_ROLLOUTS, default=1
    )
    instances = read.whole(
        ("evaluation.instances", evaluation.get("instances")),
        low=0,
        high=MAX_ROLLOUTS,
        default=len(seeds) if seeds else 0,
    )
    return (every, instances, seeds) if every and instances else (0, 0, None)


def _policy_config(
    read: _PlanReader, rollout: Mapping[str, Any], policy: Mapping[str, Any], model: str
) -> Mapping[str, Any]:
    """`policy.config` of each request: `[rollout.policy_config]` over `[policy]`, and the model's name with an address."""
    config: dict[str, Any] = {name: policy[name] for name in SAMPLING if policy.get(name) is not None}
    if policy.get("stop_sequences"):
        config["stop"] = policy["stop_sequences"]
    for name in ("inference_url", "model_name"):
        value = read.word(f"policy.{name}", policy.get(name))
        if value is not None:
            config["model" if name == "model_name" else name] = value
    config.update(read.table("rollout", rollout, "policy_config"))
    if config.get("inference_url") and model:
        config.setdefault("model", model)
    config.pop("sample", None)  # the group's numbering
    return config


def _ops(read: _PlanReader, ops: Any, turns: int) -> list[Any]:
    """The ops of one rollout: a pattern such as ["agent", "env"] is repeated until it has `turns` policy turns.

    A list with scripted actions is played as it stands. turns: 0 for no limit.
    """
    if ops is None or ops == []:
        return ["agent", "env"] * turns
    fits = isinstance(ops, list) and len(ops) <= MAX_OPS and all(isinstance(item, str | Mapping) for item in ops)
    if not fits:
        read.problems.append('rollout.ops should be a list such as ["agent", "env"].')
        return []
    words = [item if isinstance(item, str) else str(item.get("type", "")) for item in ops]
    agents = sum(word.lower() in AGENT_WORDS for word in words)
    if not turns or not agents or any(isinstance(item, Mapping) and "tool" in item for item in ops):
        return list(ops)
    times = math.ceil(turns / agents)
    if len(ops) * times > MAX_OPS:
        read.problems.append(f"rollout.ops, repeated for {turns} turns, has more than {MAX_OPS} members.")
        return []
    repeated = list(ops) * times
    seen = 0
    for index, item in enumerate(repeated):
        word = item if isinstance(item, str) else str(item.get("type", ""))
        seen += word.lower() in AGENT_WORDS
        if seen > turns:
            return repeated[:index]
    return repeated
