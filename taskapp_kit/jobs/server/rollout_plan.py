"""The rollouts engine's plan of a job: the number of rollouts, their seeds, and the policy in each request.

The plan depends only on the job. A backend that restarts after being killed therefore requests the same rollouts again,
with the same idempotency keys. The RL config's schema checks each key; this module checks the engine's limits.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskapp_kit.jobs.client.config.review import Review, read_document
from taskapp_kit.jobs.client.config.schema import RlDocument, from_section, value_at
from taskapp_kit.jobs.client.config.value_types import AGENT_WORDS
from taskapp_kit.jobs.client.config.values import Place
from taskapp_kit.jobs.server.engine import JobDocument, Phase
from taskapp_kit.jobs.server.rewards import RewardBlend
from taskapp_kit.records.seeds import SEED_LIMIT, derived_rng, size
from taskapp_kit.wire.rollout import NO_CONTROL_CHARACTERS

MAX_ROLLOUTS = 1_000_000
MAX_AT_A_TIME = 100_000
"""The maximum number of rollouts in an iteration or evaluation, because all of them are in memory at the same time."""
MAX_OPS = 200_000
MAX_AT_ONCE = 1024
MAX_TURNS = 100_000
LIMITS: dict[tuple[str, ...], int] = {
    ("training", "num_epochs"): 100_000,
    ("training", "iterations_per_epoch"): MAX_ROLLOUTS,
    ("training", "batch_size"): 10_000,
    ("trainer", "batch_size"): 10_000,
    ("training", "group_size"): 1_000,
    ("trainer", "group_size"): 1_000,
    ("training", "async_semaphore_max"): 1_000_000,
    ("rollout", "max_concurrent_rollouts"): 1_000_000,
    ("rollout", "max_turns"): MAX_TURNS,
    ("training", "max_turns"): MAX_TURNS,
    ("env", "max_steps_per_episode"): MAX_TURNS,
    ("rollout", "episodes_per_batch"): MAX_AT_A_TIME,
    ("evaluation", "every_n_iters"): MAX_ROLLOUTS,
    ("evaluation", "instances"): MAX_ROLLOUTS,
    ("judge", "reward_blend", "env"): 10**9,
    ("judge", "reward_blend", "event"): 10**9,
    ("judge", "reward_blend", "outcome"): 10**9,
}
"""The largest values of some keys."""
MAX_NAME = 512
DEFAULT_AT_ONCE = 8
DEFAULT_BATCH, DEFAULT_GROUP = 2, 2
SAMPLING = tuple(
    """temperature top_p top_k max_tokens repetition_penalty min_p presence_penalty frequency_penalty""".split()
)
"""Fields of `[policy]` that are copied to the model's requests."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The training rollouts of an iteration, or the evaluation after an iteration.

    `number` (of the iteration) and `epoch` start at 1.
    """

    phase: Phase
    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The rollouts of a job.

    Attributes:
        groups: Groups per iteration.
        samples: Rollouts per group.
        at_once: Concurrent rollouts.
        policy_name: The policy's name in each request.
        policy_config: The policy's config in each request, without `sample`.
        seeds: The seeds of training, or None to draw them (`draw`).
        eval_every: Iterations between evaluations, or 0 for no evaluations.
        eval_seeds: The seeds of evaluations, or None to draw them.
        record_tokens: Whether the task app stores token ids and log-probabilities.
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
    record_tokens: bool = False
    blend: RewardBlend | None = None

    @property
    def names_a_player(self) -> bool:
        """Whether the job names a policy or a model's address."""
        return bool(self.policy_name or self.policy_config.get("inference_url") or self.policy_config.get("policy"))

    @property
    def evaluations(self) -> int:
        """The number of evaluations."""
        return self.iterations // self.eval_every if self.eval_every else 0

    @property
    def units(self) -> int:
        """The number of iterations and evaluations."""
        return self.iterations + self.evaluations

    def unit(self, index: int) -> Unit:
        """Return the unit with this index, counted from 0. An evaluation follows its iteration."""
        if not self.eval_every:
            return self._unit("train", index + 1)
        block, offset = divmod(index, self.eval_every + 1)
        if offset == self.eval_every:
            return self._unit("eval", (block + 1) * self.eval_every)
        return self._unit("train", block * self.eval_every + offset + 1)

    def _unit(self, phase: Phase, number: int) -> Unit:
        return Unit(phase, number, (number - 1) // self.per_epoch + 1)

    def size(self, unit: Unit) -> int:
        """Return the number of rollouts of this unit."""
        return self.groups * self.samples if unit.phase == "train" else self.eval_instances

    @property
    def total(self) -> int:
        """The number of rollouts of the job."""
        return self.iterations * self.groups * self.samples + self.evaluations * self.eval_instances


def read_plan(job: JobDocument) -> tuple[JobPlan | None, dict[Place, str]]:
    """Return the plan, or None if there are problems, and a sentence for each problem by the key's path."""
    config, unfit = job.typed_config
    second_form, unfit_there = read_document(
        RlDocument, {"trainer": {name: value for name, value in job.trainer.items() if value is not None}}
    )
    review = Review({**unfit, **unfit_there})
    for place, limit in LIMITS.items():
        for value in (value_at(config, place), value_at(second_form, place)):
            if value is not None and value > limit:
                review.mismatch(place, value, f"at most {limit}", "Lower it.")
    training, rollout, trainer = config.training, config.rollout, config.trainer
    per_epoch = training.iterations_per_epoch or 1
    at_once = [each for each in (training.async_semaphore_max, rollout.max_concurrent_rollouts) if each is not None]
    samples = second_form.trainer.group_size or training.group_size or trainer.group_size or DEFAULT_GROUP
    groups = second_form.trainer.batch_size or training.batch_size or trainer.batch_size
    turns = rollout.max_turns or training.max_turns or config.env.max_steps_per_episode or 0
    evaluation, eval_seeds = config.evaluation, _seeds(review, ("evaluation", "seeds"), config.evaluation.seeds)
    instances = evaluation.instances or len(eval_seeds or ())
    blended = "reward_blend" in config.judge.model_fields_set and config.judge.enabled is not False
    plan = JobPlan(
        iterations=(training.num_epochs or 1) * per_epoch,
        per_epoch=per_epoch,
        groups=groups or math.ceil((rollout.episodes_per_batch or 0) / samples) or DEFAULT_BATCH,
        samples=samples,
        at_once=min([*at_once, MAX_AT_ONCE]) if at_once else DEFAULT_AT_ONCE,
        env_name=_name(review, ("rollout", "env_name"), rollout.env_name),
        env_config=dict(rollout.env_config or {}),
        policy_name=_name(review, ("rollout", "policy_name"), rollout.policy_name),
        policy_config=_policy_config(review, config, job.model),
        ops=_ops(review, rollout.ops, turns),
        seeds=_seeds(review, ("data", "seeds"), config.data.seeds),
        eval_every=(evaluation.every_n_iters or 1) if instances else 0,
        eval_instances=instances,
        eval_seeds=eval_seeds if instances else None,
        record_tokens=bool(rollout.record_tokens),
        blend=from_section(RewardBlend, config.judge.reward_blend) if blended else None,
    )
    if not review.problems and plan.total > MAX_ROLLOUTS:
        review.problem(
            (),
            f"the job has {plan.total} rollouts (iterations x groups x group size, plus evaluations), but the limit is "
            f"{MAX_ROLLOUTS}. Lower one of these numbers.",
        )
    if not review.problems and max(plan.groups * plan.samples, plan.eval_instances) > MAX_AT_A_TIME:
        review.problem(
            (),
            f"an iteration (groups x group size) or an evaluation has more than {MAX_AT_A_TIME} rollouts. Use more, "
            "but smaller, iterations or evaluations.",
        )
    return (None if review.problems else plan), review.problems


def _name(review: Review, place: Place, value: str | None) -> str | None:
    if value is not None and (len(value) > MAX_NAME or not re.fullmatch(NO_CONTROL_CHARACTERS, value)):
        expectation = f"a name of at most {MAX_NAME} characters, without control characters"
        review.mismatch(place, value, expectation, "Use another name.")
    return value


def _seeds(review: Review, place: Place, value: list[int] | None) -> list[int] | None:
    if value is not None and not 0 < len(value) <= MAX_ROLLOUTS:
        review.mismatch(place, value, f"1 to {MAX_ROLLOUTS} seeds", "Remove the key to draw seeds.")
    return value


def _policy_config(review: Review, config: RlDocument, model: str) -> Mapping[str, Any]:
    """Return `policy.config` for every request.

    It contains `[policy]`, overridden by `[rollout.policy_config]`. If a model's address is set, it also contains the
    model.
    """
    policy = config.policy
    members = {name: value for name in SAMPLING if (value := getattr(policy, name, None)) is not None}
    if policy.stop_sequences:
        members["stop"] = policy.stop_sequences
    for name, value in (("inference_url", policy.inference_url), ("model", policy.model_name)):
        key = ("policy", "model_name" if name == "model" else name)
        if _name(review, key, value) is not None:
            members[name] = value
    members.update(config.rollout.policy_config or {})
    if members.get("inference_url") and model:
        members.setdefault("model", model)
    members.pop("sample", None)  # the engine numbers the rollouts of a group itself
    return members


def _ops(review: Review, ops: list[Any] | None, turns: int) -> list[Any]:
    """Return the ops of one rollout: a pattern such as ["agent", "env"] is repeated up to `turns` policy turns.

    A list with scripted actions is used as written. turns: The limit, or 0 for no limit.
    """
    place = ("rollout", "ops")
    if not ops:
        return ["agent", "env"] * min(turns, MAX_TURNS)
    if len(ops) > MAX_OPS:
        review.mismatch(place, ops, f"at most {MAX_OPS} ops", "Write a pattern. It is repeated for max_turns turns.")
        return []
    is_agent = [(op if isinstance(op, str) else op["type"]) in AGENT_WORDS for op in ops]
    if not turns or not any(is_agent) or any(isinstance(op, Mapping) and "tool" in op for op in ops):
        return list(ops)
    times = math.ceil(turns / sum(is_agent))
    if len(ops) * times > MAX_OPS:
        review.problem(
            place, f"[rollout] ops: found over {MAX_OPS} ops when repeated for {turns} turns. Use fewer ops."
        )
        return []
    turn_of = list(itertools.accumulate(is_agent * times))
    return (list(ops) * times)[: bisect.bisect_right(turn_of, turns)]


# Seeds are drawn from the task app's ranges. The same job and iteration always draw the same seeds.

UNKNOWN_SEEDS = range(1000)
"""The seeds of a task app that does not report how many tasks it has."""
MAX_SPLITS, MAX_SPLIT_NAME = 1000, 128
EVALUATION_SPLITS = ("test", "eval", "validation", "val", "dev")


@dataclass(frozen=True, slots=True)
class SeedRange:
    """The seeds of a split. split: The split's name, or "" if the seed alone identifies the task."""

    split: str
    start: int
    stop: int
    step: int = 1

    @property
    def seeds(self) -> range:
        """The seeds."""
        return range(self.start, self.stop, self.step)


def ranges_of(task_info: Any, wanted_split: str | None = None) -> tuple[SeedRange, SeedRange]:
    """Return the seed ranges for training and for evaluation, given the response of `GET /task_info`.

    wanted_split: The split in the job's env_config. If the task app has this split, both ranges are from it.
    """
    described = task_info if isinstance(task_info, Mapping) else {}
    dataset = described.get("taskset") or described.get("dataset")
    dataset = dataset if isinstance(dataset, Mapping) else {}
    by_split = dataset.get("seeds")
    found: dict[str, range] = {}
    for split, bounds in by_split.items() if isinstance(by_split, Mapping) else ():
        read = bounds_of(bounds)
        if read is not None and isinstance(split, str) and len(split) <= MAX_SPLIT_NAME and len(found) < MAX_SPLITS:
            found[split] = read
    if not found:
        count = dataset.get("cardinality")
        whole = range(count) if type(count) is int and 0 < count < SEED_LIMIT else UNKNOWN_SEEDS
        only = SeedRange("", whole.start, whole.stop)
        return only, only
    rows = dataset.get("kind") == "rows"
    default = dataset.get("default_split")
    train = next((name for name in (wanted_split, "train", default) if name in found), next(iter(found)))
    evaluation = next((name for name in (wanted_split, *EVALUATION_SPLITS) if name in found), train)
    made = [
        SeedRange(name if rows and not wanted_split else "", found[name].start, found[name].stop, found[name].step)
        for name in (train, evaluation)
    ]
    return made[0], made[1]


def bounds_of(bounds: Any) -> range | None:
    """Return the seeds of `[start, stop]` or `[start, stop, step]`. Return None if the range is empty or invalid."""
    if not isinstance(bounds, list) or len(bounds) not in (2, 3) or any(type(item) is not int for item in bounds):
        return None
    if len(bounds) == 3 and bounds[2] == 0:
        return None
    seeds = range(*bounds)
    return seeds if seeds and min(seeds[0], seeds[-1]) >= 0 and max(seeds[0], seeds[-1]) < SEED_LIMIT else None


def draw(seeds: range, count: int, *purpose: str | int) -> list[int]:
    """Draw `count` seeds. A seed is not repeated until all seeds were drawn.

    purpose: Identifies the draw. The same purpose always draws the same seeds.
    """
    rng = derived_rng("backend seeds", *purpose)
    total = size(seeds)
    drawn: list[int] = []
    while len(drawn) < count:
        missing = count - len(drawn)
        if missing * 2 <= total:  # the range may be too long to shuffle
            chosen: dict[int, None] = {}
            while len(chosen) < missing:
                chosen[rng.randrange(total)] = None
            drawn += [seeds.start + index * seeds.step for index in chosen]
        else:
            indices = list(range(total))
            rng.shuffle(indices)
            drawn += [seeds.start + index * seeds.step for index in indices[:missing]]
    return drawn


def cycled(seeds: Sequence[int], first: int, count: int) -> list[int]:
    """Return `count` seeds from index `first` on. The list is repeated endlessly."""
    return [seeds[(first + offset) % len(seeds)] for offset in range(count)]
