"""The engine `rollouts`: it runs groups of rollouts and reports their rewards, but does not update weights.

Each iteration has `batch_size` groups. A group has `group_size` rollouts with the same seed. Evaluations run between
iterations. Every request has an idempotency key that is derived from the rollout's place in the job. If the backend was
killed and requests a rollout again, a task app of this kit returns the same episode without running it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from taskapp_kit.errors import JobError
from taskapp_kit.jobs.client.config.values import Place
from taskapp_kit.jobs.server import job_events
from taskapp_kit.jobs.server.engine import CurvePoint, Event, JobDocument, JobOutcome, Ledger, RolloutOutcome
from taskapp_kit.jobs.server.job_check import RANDOM, missing
from taskapp_kit.jobs.server.job_events import NAME, NOTE, facts, listed
from taskapp_kit.jobs.server.rewards import causes, summarise, too_many_failed
from taskapp_kit.jobs.server.rollout_plan import JobPlan, SeedRange, Unit, read_plan
from taskapp_kit.jobs.server.rollout_requests import RolloutRequester, RolloutTarget, seed_ranges
from taskapp_kit.records.formatting import counted

if TYPE_CHECKING:
    from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp

FAILED_SHARE = 0.5
"""A job fails if a greater share of its rollouts fails."""
LISTED = 500
"""How many iterations the results contain, counted from the end. The events contain all iterations."""


class RolloutsEngine:
    """See `engine.Engine`. failed_share: A job fails if a greater share of its rollouts fails."""

    name = NAME
    description = "rollouts: plays and scores; no weights are updated"
    updates_weights = False
    restarts = False
    most_jobs: int | None = None

    def __init__(self, *, failed_share: float = FAILED_SHARE) -> None:
        self._failed_share = failed_share

    def problems(self, job: JobDocument) -> dict[Place, str]:
        """Return a sentence for each setting that the engine does not support, by its path in the config."""
        config, _ = job.typed_config
        _, problems = read_plan(job)
        left_to_local = "the engine `rollouts` does not support this. Remove it, or use the engine `local`."
        if config.rollout.environments:
            problems["rollout", "environments"] = f"[rollout] environments: {left_to_local}"
        if config.curriculum.model_fields_set:
            problems["curriculum",] = f"[curriculum]: {left_to_local}"
        return problems

    async def missing(self, job: JobDocument, task_app: OpenedTaskApp) -> list[str]:
        """See `engine.Engine.missing`."""
        plan, _ = read_plan(job)
        return [] if plan is None else await missing(plan, task_app)

    async def run(
        self, job: JobDocument, task_app: OpenedTaskApp, ledger: Ledger, state: Mapping[str, Any]
    ) -> JobOutcome:
        """Run the rest of the job. Raises JobError if the job is not supported or too many rollouts fail."""
        plan, problems = read_plan(job)
        if plan is None:
            raise JobError("The job cannot be run: " + " ".join(problems.values()))
        return await _Run(job, plan, task_app, ledger, dict(state), self._failed_share).outcome()


@dataclass(slots=True)
class _Run:
    """A running job.

    `state` has these fields:

    - done: the number of finished units
    - opened: whether the start of the next unit was reported
    - held: points of an iteration whose evaluation has not finished. They are reported with the evaluation's points,
      because a caller that requests the points after a step must not miss the rest of the step.
    - ranges: the seed ranges from the task app
    - policy: the chosen policy, if the job does not name a policy
    - failed: the number of failed rollouts
    - failures: the number of failed rollouts by cause
    - finished: the number of rollouts in finished units
    - metrics: the latest numbers
    """

    job: JobDocument
    plan: JobPlan
    task_app: OpenedTaskApp
    ledger: Ledger
    state: dict[str, Any]
    failed_share: float

    async def outcome(self) -> JobOutcome:
        if not self.state:
            await self._begin()
        if self.state.get("policy"):
            self.plan = replace(self.plan, policy_name=self.state["policy"])
        for index in range(self.state["done"], self.plan.units):
            evaluated_next = index + 1 < self.plan.units and self.plan.unit(index + 1).phase == "eval"
            await self._play(self.plan.unit(index), evaluated_next=evaluated_next)
        return await self._results()

    def _asking(self) -> RolloutRequester:
        stored = self.state.get("ranges")
        ranges = None if stored is None else (SeedRange(**stored[0]), SeedRange(**stored[1]))
        return RolloutRequester(self.job.job_id, self.plan, self.task_app, ranges)

    async def _begin(self) -> None:
        plan = self.plan
        state: dict[str, Any] = {
            "done": 0, "opened": False, "held": [], "failed": 0, "failures": {}, "finished": 0, "metrics": {},
        }  # fmt: skip
        events: list[Event] = []
        ranges = await seed_ranges(plan, self.task_app)
        if ranges is not None:
            state["ranges"] = [asdict(each) for each in ranges]
        if not plan.names_a_player:
            state["policy"] = RANDOM
            events.append(
                Event(
                    "rl.job.warning",
                    f"The job names neither a policy nor a model's address, so the task app's policy `{RANDOM}` plays.",
                    "warning",
                    facts(policy=RANDOM),
                )
            )
        player = state.get("policy") or plan.policy_name or plan.policy_config.get("policy") or "a model"
        events.append(job_events.begun(plan, player))
        await self.ledger.report(*events, state=state, total=plan.total)
        self.state = state

    async def _play(self, unit: Unit, *, evaluated_next: bool) -> None:
        asking = self._asking()
        asked = asking.asked(unit)
        if unit.phase == "eval" and not self.state["opened"]:
            state = {**self.state, "opened": True}
            start = Event(
                "rl.eval.started",
                f"Evaluation after iteration {unit.number}: {counted(len(asked), 'rollout')}.",
                data=facts(step=unit.number, iteration=unit.number, rollouts=len(asked)),
            )
            await self.ledger.report(start, state=state)
            self.state = state
        began = time.monotonic()
        over = await self.ledger.stored(unit.phase, unit.number)
        finished = {(outcome.place, outcome.sample) for outcome in over}
        left = [target for target in asked if (target.place, target.sample) not in finished]
        try:
            over += await self._all(asking, unit, left, over)
        except JobError:
            await self.ledger.report(points=[CurvePoint(**point) for point in self.state["held"]])
            raise
        await self._report(unit, over, time.monotonic() - began, evaluated_next=evaluated_next)

    async def _all(
        self, asking: RolloutRequester, unit: Unit, asked: Sequence[RolloutTarget], over: Sequence[RolloutOutcome]
    ) -> list[RolloutOutcome]:
        """Play the rollouts concurrently. Raises JobError as soon as the share of failures cannot become acceptable."""
        waiting = iter(asked)
        made: list[RolloutOutcome] = []
        failed = [outcome for outcome in over if outcome.failed]
        planned = self.state["finished"] + self.plan.size(unit)

        async def play_on() -> None:
            for target in waiting:
                played = await self.ledger.store(await asking.play(unit, target))
                made.append(played)
                if played.failed:
                    failed.append(played)
                    self._stop_when_hopeless(failed, planned)

        self._stop_when_hopeless(failed, planned)
        tasks = [asyncio.create_task(play_on()) for _ in range(min(self.plan.at_once, len(asked)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return made

    def _stop_when_hopeless(self, failed: Sequence[RolloutOutcome], planned: int) -> None:
        problem = too_many_failed(
            failed, self.state["failed"], self.state["failures"], planned=planned, share=self.failed_share
        )
        if problem is not None:
            raise JobError(problem)

    async def _report(
        self, unit: Unit, over: Sequence[RolloutOutcome], seconds: float, *, evaluated_next: bool
    ) -> None:
        found = summarise(over)
        metrics = job_events.metrics(unit, found, self.state["metrics"])
        points = [CurvePoint(**point) for point in self.state["held"]] + job_events.points(unit, found, seconds)
        state = {
            **self.state,
            "done": self.state["done"] + 1,
            "opened": False,
            "held": [asdict(point) for point in points] if evaluated_next else [],
            "failed": self.state["failed"] + found.failed,
            "failures": causes(self.state["failures"], found.failures),
            "finished": self.state["finished"] + len(over),
            "metrics": metrics,
        }
        event = job_events.over(unit, self.plan, found, seconds)
        await self.ledger.report(event, points=[] if evaluated_next else points, state=state, metrics=metrics)
        self.state = state

    async def _results(self) -> JobOutcome:
        steps = await self.ledger.last_data("rl.train.step", last=LISTED)
        evaluations = await self.ledger.last_data("rl.eval.summary", last=LISTED)
        last = (evaluations or steps)[-1]
        return JobOutcome(
            last["reward"],
            self.state["metrics"],
            {
                "note": NOTE,
                "final_reward": last["reward"],
                "final_reward_of": "the last evaluation" if evaluations else "the last iteration",
                "iterations": [listed(unit) for unit in steps],
                "evaluations": [listed(unit) for unit in evaluations],
                "rollouts": {
                    "played": self.state["finished"],
                    "failed": self.state["failed"],
                    "undefined": self.state["metrics"].get("undefined", 0),
                    "failures": self.state["failures"],
                },
            },
        )
