"""Requests the rollouts of a unit and reads their results.

The body and the idempotency key of a request depend only on the rollout's place in the job, so a task app of this kit
recognizes a repeated request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from taskapp_kit.errors import JobTimeout, TaskAppError, TaskAppUnreachable
from taskapp_kit.jobs.server.engine import Phase, RolloutOutcome
from taskapp_kit.jobs.server.rewards import UnreadableRollout, check_echo, reward_of, scores_of
from taskapp_kit.jobs.server.rollout_plan import JobPlan, SeedRange, Unit, cycled, draw, ranges_of
from taskapp_kit.records.formatting import cut

if TYPE_CHECKING:
    from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp

STATUSES = ("terminated", "truncated")
UNREACHABLE = "unreachable"
"""The error code of a rollout that got no response because the connection failed or broke."""
UNREADABLE = "unreadable_answer"
"""The error code of a rollout whose response is invalid."""
MAX_MESSAGE = 1000
MAX_ID = 128


@dataclass(frozen=True, slots=True)
class RolloutTarget:
    """One rollout to run: its place in the unit, and its seed.

    config: Environment settings that override the plan's.
    """

    place: int
    sample: int
    seed: int
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RolloutRequester:
    """Requests the rollouts of one job.

    Attributes:
        ranges: The seed ranges of training and evaluation, or None if the job specifies all seeds.
        trial: Whether the rollouts only test that the task app works. They are then not stored.
    """

    job_id: str
    plan: JobPlan
    task_app: OpenedTaskApp
    ranges: tuple[SeedRange, SeedRange] | None
    trial: bool = False

    async def play(
        self,
        unit: Unit,
        asked: RolloutTarget,
        *,
        key: str | None = None,
        inference_url: str | None = None,
        timeout_seconds: float | None = None,
        once: bool = False,
        submit: bool = False,
        read: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> RolloutOutcome:
        """Request the rollout and return its outcome, which may be a failure.

        Args:
            unit: The unit of the rollout.
            asked: The rollout.
            key: The idempotency key. Defaults to a key for the rollout's place.
            inference_url: The model's address. Defaults to the plan's.
            timeout_seconds: The time limit. Defaults to the client's.
            once: See `TaskAppClient.rollout`.
            submit: See `TaskAppClient.rollout`.
            read: Called with each valid response. If it is set, responses also contain steps and events.
        """
        began = time.monotonic()
        blank = blank_outcome(unit, asked)
        key = key or f"{self.job_id}.{unit.phase}.{unit.number}.{asked.place}.{asked.seed}.{asked.sample}"
        try:
            answer = await self.task_app.rollout(
                self._request(unit, asked, key, inference_url, whole=read is not None),
                idempotency_key=key,
                timeout_seconds=timeout_seconds,
                once=once,
                submit=submit,
            )
            check_echo(answer, self.job_id, key)
            reward = reward_of(answer, self.plan.blend)
            if read is not None:
                read(answer)
        except TaskAppError as found:
            error = self.task_app.cleaned_error(found)
            code = error.code or (UNREACHABLE if isinstance(error, TaskAppUnreachable) else f"http_{error.status}")
            played = replace(
                blank, boundary=error.boundary, code=code, rollout_id=error.rollout_id, message=shortened(str(error))
            )
        except JobTimeout as error:
            played = replace(blank, boundary="timeout", code="too_long", message=shortened(error.message))
        except UnreadableRollout as error:
            played = replace(blank, code=UNREADABLE, message=f"A rollout cannot be read: {error}.")
        else:
            status, named = answer.get("status"), answer.get("rollout_id")
            rollout_id = self.task_app.cleaned(named) if isinstance(named, str) and len(named) <= MAX_ID else ""
            played = replace(
                blank,
                status=status if status in STATUSES else "completed",
                reward=reward,
                rollout_id=rollout_id,
                scores={self.task_app.cleaned(name)[:MAX_ID]: value for name, value in scores_of(answer).items()},
            )
        return replace(played, seconds=time.monotonic() - began)

    def _request(
        self, unit: Unit, asked: RolloutTarget, key: str, inference_url: str | None, *, whole: bool
    ) -> dict[str, Any]:
        """Return the body of `POST /rollout`. It is always the same for the same place, key and address."""
        plan = self.plan
        config = {**plan.env_config, **asked.config}
        drawn_from = self._range(unit.phase)
        if drawn_from is not None and drawn_from.split:
            config.setdefault("split", drawn_from.split)
        env: dict[str, Any] = {"seed": asked.seed, "config": config}
        if plan.env_name is not None:
            env["env_name"] = plan.env_name
        policy_config = {**plan.policy_config, "sample": asked.sample, "trace_correlation_id": key}
        if inference_url is not None:
            policy_config["inference_url"] = inference_url
        if plan.record_tokens:
            policy_config["return_token_ids"] = True
        policy: dict[str, Any] = {"config": policy_config}
        if plan.policy_name is not None:
            policy["policy_name"] = plan.policy_name
        return {
            "run_id": self.job_id,
            "env": env,
            "policy": policy,
            "ops": list(plan.ops),
            "record": {
                "trajectories": whole,
                "return_trace": whole,
                **({"logprobs": True} if plan.record_tokens else {}),
                **({"store": False} if self.trial else {}),
            },
            "on_done": "reset",
            "mode": "rl" if unit.phase == "train" else "eval",
            "group_id": f"{self.job_id}.{unit.phase}.{unit.number}.{asked.place}",
            "trace_correlation_id": key,
        }

    def asked(self, unit: Unit, places: Sequence[int] | None = None, before: int | None = None) -> list[RolloutTarget]:
        """Return every rollout of the unit.

        In a job with several environments, `places` are the places of this environment, and `before` is the number of
        groups that the environment had in earlier iterations.
        """
        plan = self.plan
        if unit.phase == "train":
            places = range(plan.groups) if places is None else places
            if plan.seeds is not None:
                first = (unit.number - 1) * plan.groups if before is None else before
                seeds = cycled(plan.seeds, first, len(places))
            else:
                seeds = draw(self._known_range("train").seeds, len(places), self.job_id, unit.number)
            return [
                RolloutTarget(place, sample, seed)
                for place, seed in zip(places, seeds, strict=True)
                for sample in range(plan.samples)
            ]
        places = range(plan.eval_instances) if places is None else places
        known = plan.eval_seeds
        if known is None:  # always the same seeds, so that evaluations can be compared
            known = draw(self._known_range("eval").seeds, len(places), self.job_id, "evaluation")
        return [
            RolloutTarget(place, number // len(known), known[number % len(known)])
            for number, place in enumerate(places)
        ]

    def shared_seeds(self) -> list[int]:
        """Return the seeds that both training and evaluations use or may draw.

        Different splits have no seeds in common.
        """
        if not self.plan.eval_instances:
            return []
        train, evaluation = self._range("train"), self._range("eval")
        if (train.split if train else "") != (evaluation.split if evaluation else ""):
            return []
        trained = self._known_range("train").seeds if self.plan.seeds is None else frozenset(self.plan.seeds)
        return sorted({asked.seed for asked in self.asked(Unit("eval", 0, 1)) if asked.seed in trained})

    def _range(self, phase: Phase) -> SeedRange | None:
        given = self.plan.seeds if phase == "train" else self.plan.eval_seeds
        return None if given is not None else self._known_range(phase)

    def _known_range(self, phase: Phase) -> SeedRange:
        assert self.ranges is not None, "they are requested when the job begins"
        return self.ranges[0 if phase == "train" else 1]


def blank_outcome(unit: Unit, asked: RolloutTarget) -> RolloutOutcome:
    """Return the outcome of a rollout without a response. It counts as failed."""
    return RolloutOutcome(unit.phase, unit.number, asked.place, asked.sample, asked.seed, "failed")


async def environment_info(plan: JobPlan, task_app: OpenedTaskApp) -> Any:
    """Return `GET /task_info` for the job's environment. Raises TaskAppError if the request fails."""
    return await task_app.task_info((), **({"environment": plan.env_name} if plan.env_name else {}))


async def seed_ranges(plan: JobPlan, task_app: OpenedTaskApp) -> tuple[SeedRange, SeedRange] | None:
    """Return the seed ranges of training and evaluation, or None if the job specifies all seeds.

    Raises TaskAppError if the task app's description cannot be fetched.
    """
    if plan.seeds is not None and (not plan.eval_instances or plan.eval_seeds is not None):
        return None
    wanted = plan.env_config.get("split")
    found = ranges_of(await environment_info(plan, task_app), wanted if isinstance(wanted, str) else None)
    train, evaluation = (replace(each, split=task_app.cleaned(each.split)) for each in found)
    return train, evaluation


def shortened(text: str) -> str:
    """Return the text, shortened to the maximum length of a message."""
    return cut(text, MAX_MESSAGE)
