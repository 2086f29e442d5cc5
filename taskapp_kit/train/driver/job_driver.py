"""A training job: evaluation 0, then iterations that play groups of rollouts and make one update each.

    seeds -> rollouts at the gateway -> turns and rewards -> rows -> update -> the sampler's new weights

With `loops.ahead`, rollouts of later iterations start earlier (`_start`). `train/loops/` implements the other options
in `loops`. A failed rollout has no reward and does not count in its group. The ledger records each iteration and
evaluation that has ended, and the state from which `run` continues. A job with checkpoints returns to the last
checkpoint, which contains weights, optimizer and state from the same moment. Later ledger entries are superseded, and
their iterations and evaluations are played again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from taskapp_kit.errors import JobError
from taskapp_kit.jobs.server.engine import REPEATED, CurvePoint, Event, JobOutcome, Ledger, RolloutOutcome
from taskapp_kit.jobs.server.rewards import causes, summarise, too_many_failed
from taskapp_kit.jobs.server.rollout_plan import JobPlan, Unit
from taskapp_kit.train.checkpoints.facts import JobPosition
from taskapp_kit.train.driver import reports
from taskapp_kit.train.driver.driver_settings import DriverSettings, rollout_count, unit_at, unit_count
from taskapp_kit.train.driver.interfaces import CheckpointSink, Learner, SavedJob
from taskapp_kit.train.driver.rollouts import NO_MODEL_CALLS, GatewayRollouts, PlayedRollout
from taskapp_kit.train.driver.sources import EnvironmentSource, SourceRollouts, asked_rollouts, task_sources
from taskapp_kit.train.driver.stored_units import StoredUnits
from taskapp_kit.train.gateway.gateway_server import Gateway
from taskapp_kit.train.rows import TrainingBatch, TrainingEpisode, training_batch

if TYPE_CHECKING:
    from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp

FAILED, NO_REWARDS, NO_UPDATES = "too_many_failed", "no_rewards", "no_updates"
"""Codes of errors that end a job. NO_MODEL_CALLS also ends a job."""
LISTED = 500
"""Maximum number of iterations, and of evaluations, in the results. The events contain all of them."""


@dataclass(slots=True)
class JobDriver:
    """One job. The learner updates the policy that the gateway samples. At most `plan.at_once` attempts are open.

    If `stored` is set, the job trains on these stored rollouts and only plays evaluations.
    """

    job_id: str
    plan: JobPlan
    task_app: OpenedTaskApp
    gateway: Gateway
    learner: Learner
    ledger: Ledger
    settings: DriverSettings
    checkpoints: CheckpointSink | None = None
    stored: StoredUnits | None = None
    _state: dict[str, Any] = field(default_factory=dict, init=False)
    _sources: Sequence[SourceRollouts] = field(default=(), init=False)
    _measured: tuple[float, int] = field(default=(0.0, 0), init=False)

    async def run(self, state: Mapping[str, Any]) -> JobOutcome:
        """Run the job from a state to its end.

        A job that saves checkpoints continues from the state in its last checkpoint, or starts again if none was saved.
        Without checkpoints, the job continues from `state`, and the learner must already have the weights of that
        moment.

        Args:
            state: The last state in the ledger, or {} for a new job. A state without `done` means that the job has not
                started. Its `incarnation` must be smaller than the incarnation in the settings.

        Raises:
            JobError: Too many rollouts fail, none of an iteration's rollouts calls the model, none of them has a
                reward, no update was made, or the job makes no progress.
            TaskAppError: The task app does not return its description.
            TrainingError: An update fails.
            CheckpointError: A checkpoint cannot be saved, or does not fit the model.
        """
        self._state = dict(state)
        async with task_sources(self.plan, self.task_app, self.settings.loops.environments) as sources:
            await self._prepare(sources)
            return await self._run(sources)

    async def _prepare(self, sources: Sequence[EnvironmentSource]) -> None:
        """Start the job, or return to its last checkpoint."""
        began = "done" in self._state
        saved = await self.checkpoints.restore() if began and self.checkpoints is not None else None
        if saved is not None:
            self._check_stored(saved.state)
            await self._go_back(saved)
        elif not began or self.checkpoints is not None:
            await self._begin(sources, again=began)

    def _check_stored(self, state: Mapping[str, Any]) -> None:
        """Raise JobError if the file of stored rollouts has changed since this state was saved."""
        first_hash = state.get("rollouts_sha256")
        if self.stored is not None and first_hash not in (None, self.stored.rollouts.sha256):
            raise JobError(
                f"[data] rollouts: {self.stored.rollouts.path} has changed since the job started. Its SHA-256 "
                f"was {first_hash[:12]}… and is {self.stored.rollouts.sha256[:12]}… now.",
                hint="Restore the file and start the job again, or start a new job with the changed file.",
            )

    async def _run(self, sources: Sequence[EnvironmentSource]) -> JobOutcome:
        self._sources = [
            SourceRollouts.of(source, self.job_id, description)
            for source, description in zip(sources, self._state["sources"], strict=True)
        ]
        player = GatewayRollouts(self.job_id, self.gateway, self.settings)
        self._measured = time.monotonic(), self.gateway.activity().sampled_tokens
        try:
            for index in range(self._state["done"], unit_count(self.plan)):
                if self._stopped:
                    break
                self._start(index, player)
                await self._unit(index, player)
        finally:
            await player.aclose()
        return await self._outcome()

    def _start(self, index: int, player: GatewayRollouts) -> None:
        """Start the unit with this index, and the later iterations that may be played ahead."""
        loops, plan = self.settings.loops, self.plan
        now = unit_at(plan, index)
        updates = now.number - (now.phase == "train")
        # Rollouts only start earlier. Groups, seeds, keys and the order of updates are the same as without `ahead`, so the age
        # of tokens is bounded. Updates with the rollouts that end first would favor short episodes. After a restart, rollouts
        # that were played ahead of a checkpoint are played again.
        for later in range(index, unit_count(plan)):
            unit = unit_at(plan, later)
            if later > index and (not loops.ahead or unit.number > updates + 1 + loops.ahead):
                break
            if player.started(unit) or self._learns_stored(unit) or (later > index and unit.phase == "eval"):
                continue
            level = loops.curriculum.level(self._state.get("curriculum", {}))
            player.start(unit, asked_rollouts(self._sources, plan, unit, level, loops.curriculum.levels))

    async def _begin(self, sources: Sequence[EnvironmentSource], *, again: bool) -> None:
        described = [await source.described(self.settings.loops.curriculum.levels) for source in sources]
        unsent = [name for _, names in described for name in names]
        state = {
            "done": 0,
            "incarnation": self.settings.incarnation,
            "held": [],
            "failed": 0,
            "failures": {},
            "finished": 0,
            "metrics": {},
            "sources": [description for description, _ in described],
            "stragglers": {"given_up": 0, "ended": 0, "scored": 0, "reward": 0.0},
        }
        if self.stored is not None:
            state["rollouts_sha256"] = self.stored.rollouts.sha256
        warnings = [reports.policy_left_out(self.task_app.cleaned(name)) for name in dict.fromkeys(unsent)]
        for source, (description, _) in zip(sources, described, strict=True) if self.stored is None else ():
            if shared := SourceRollouts.of(source, self.job_id, description).requester.shared_seeds():
                warnings.append(reports.seeds_shared(shared))
        state["warnings"] = [warning.message for warning in warnings]
        facts = None if self.stored is None else self.stored.rollouts.facts
        begun = reports.begun(self.plan, self._temperature("eval"), facts)
        total = rollout_count(self.plan, evaluations_only=self.stored is not None)
        if again:
            resumed = reports.resumed(self.settings.incarnation, None)
            await self.ledger.supersede(0, resumed, begun, *warnings, state=state, metrics={}, total=total)
        else:
            await self.ledger.report(begun, *warnings, state=state, total=total)
        self._state = state

    async def _go_back(self, saved: SavedJob) -> None:
        # Weights, optimizer and state belong to the same moment. Later units are played again and count once. Their earlier
        # events are marked as superseded and not deleted, because clients may have read them.
        state = {**saved.state, "incarnation": self.settings.incarnation}
        event = reports.resumed(self.settings.incarnation, saved)
        await self.ledger.supersede(saved.position, event, state=state, metrics=state["metrics"])
        self._state = state

    async def _unit(self, index: int, player: GatewayRollouts) -> None:
        unit = unit_at(self.plan, index)
        if unit.phase == "eval":
            await self.ledger.report(reports.evaluation_started(unit, self.plan.size(unit)))
        if not self.settings.loops.ahead:  # with `ahead`, the time counts from the end of the last unit
            self._measured = time.monotonic(), self.gateway.activity().sampled_tokens
        began, tokens = self._measured
        try:
            played = await self._play(unit, player)
        except JobError:
            held = [CurvePoint(**point) for point in self._state["held"]]
            await self.ledger.report(points=held, state={**self._state, "held": []})
            raise
        report = reports.UnitReport(
            unit,
            summarise([each.outcome for each in played]),
            played,
            seconds=time.monotonic() - began,
            sampled_tokens=self.gateway.activity().sampled_tokens - tokens,
            late=player.take_late(),
            stored=self._learns_stored(unit),
            waiting=player.waiting() if self.settings.loops.ahead else None,
        )
        self._measured = time.monotonic(), self.gateway.activity().sampled_tokens
        if unit.phase == "train":
            report = await self._learn(report)
        following = index + 1 < unit_count(self.plan) and unit_at(self.plan, index + 1).phase == "eval"
        await self._report(report, evaluated_next=following)
        if not following and self.checkpoints is not None and self._saved_after(unit):
            await self._save(self.checkpoints, report)

    @property
    def _stopped(self) -> bool:
        """Return whether an evaluation ended the job before its last iteration."""
        return self._state.get("stopped") is not None

    def _saved_after(self, unit: Unit) -> bool:
        last = unit.number == self.plan.iterations or self._stopped
        return unit.number > 0 and (last or unit.number % self.settings.checkpoint_every == 0)

    async def _save(self, checkpoints: CheckpointSink, report: reports.UnitReport) -> None:
        iteration = report.unit.number
        saved = SavedJob(await self.ledger.position(), self._state, JobPosition(iteration, self.settings.incarnation))
        score = report.summary.mean if report.unit.phase == "eval" else None
        name = await checkpoints.save(saved, score)
        await self.ledger.report(reports.checkpoint_saved(name, iteration, score))

    def _learns_stored(self, unit: Unit) -> bool:
        return unit.phase == "train" and self.stored is not None

    async def _play(self, unit: Unit, player: GatewayRollouts) -> list[PlayedRollout]:
        if self.stored is not None and self._learns_stored(unit):
            return await asyncio.to_thread(self.stored.unit, unit)
        state = self._state
        failed: list[RolloutOutcome] = []
        planned = state["finished"] + self.plan.size(unit)

        async def ended(played: PlayedRollout) -> PlayedRollout:
            stored = await self.ledger.store(played.outcome)
            # an earlier incarnation's stored outcome at this place does not belong to these turns
            outcome = stored if stored.code == REPEATED else played.outcome
            if outcome.failed:
                failed.append(outcome)
                problem = too_many_failed(
                    failed, state["failed"], state["failures"], planned=planned, share=self.settings.failed_share
                )
                if problem is not None:
                    raise JobError(problem, code=FAILED)
            return replace(played, outcome=outcome)

        played = await player.play(unit, ended)
        if all(each.outcome.code == NO_MODEL_CALLS for each in played):
            text = f"No rollout of {unit.phase} {unit.number} called the model. {played[0].outcome.message}"
            raise JobError(text, code=NO_MODEL_CALLS)
        return played

    async def _learn(self, report: reports.UnitReport) -> reports.UnitReport:
        reasons = [each.no_credit for each in report.played if each.outcome.reward is not None]
        if not reasons:
            raise JobError(
                f"No rollout of iteration {report.unit.number} has a reward, so no update is possible: "
                f"{report.summary.words()}.",
                code=NO_REWARDS,
                hint="Check the rollouts. A criterion with a weight above 0 that returns None makes the reward undefined.",
            )
        if all(reasons):
            raise JobError(
                f"No rollout of iteration {report.unit.number} has a reward for each model call: {reasons[0]}.",
                hint='[training] credit = "turn" requires these rewards. To use one reward per episode, set credit = "episode".',
            )
        batch = self._batch(report)
        update = await self.learner.learn(batch.rows) if batch.rows else None
        before = self._state.get("learned", {"updates": 0, "compared": 0})
        compared = before["compared"] + (batch.without_spread < batch.groups)
        learned = {"updates": before["updates"] + (update is not None), "compared": compared}
        self._state = {**self._state, "learned": learned}
        return replace(report, batch=batch, update=update)

    def _batch(self, report: reports.UnitReport) -> TrainingBatch:
        number = report.unit.number
        return training_batch(
            [
                TrainingEpisode(
                    rollout=f"{number}.{each.outcome.place}.{each.outcome.sample}",
                    group=f"{number}.{each.outcome.place}",
                    turns=() if each.record is None else each.record.turns,
                    reward=None if each.no_credit else each.outcome.reward,
                    turn_rewards=each.turn_rewards,
                    truncated=each.outcome.status == "truncated",
                )
                for each in report.played
            ],
            self.settings.rows,
        )

    async def _report(self, report: reports.UnitReport, *, evaluated_next: bool) -> None:
        """Store the unit's results. If an evaluation of the same step follows, store the metric points only after it."""
        state, unit = self._state, report.unit
        decided, changes, further = self._decided(report)
        stops = decided.get("stopped") is not None
        points = [CurvePoint(**point) for point in state["held"]] + report.points() + further
        rewards = [each.reward for each in report.late if each.reward is not None]
        counts = state["stragglers"]
        warnings = reports.other_models(report, state.get("warned", ()))
        state = {
            **state,
            **decided,
            "warned": [*state.get("warned", ()), *warnings],
            "done": state["done"] + 1,
            "held": [asdict(point) for point in points] if evaluated_next else [],
            "failed": state["failed"] + report.summary.failed,
            "failures": causes(state["failures"], report.summary.failures),
            "finished": state["finished"] + (0 if report.stored else len(report.played)),
            "metrics": reports.latest(report, state["metrics"]),
            "stragglers": {
                "given_up": counts["given_up"] + report.stragglers,
                "ended": counts["ended"] + len(report.late),
                "scored": counts["scored"] + len(rewards),
                "reward": counts["reward"] + math.fsum(rewards),
            },
        }
        events = [report.event(self.plan, self._temperature(unit.phase)), *warnings.values(), *changes]
        total = state["finished"] if stops else None
        await self.ledger.report(
            *events, points=[] if evaluated_next else points, state=state, metrics=state["metrics"], total=total
        )
        self._state = state

    def _decided(self, report: reports.UnitReport) -> tuple[dict[str, Any], list[Event], list[CurvePoint]]:
        """Apply early stopping or the curriculum to the reward. Return the changed state values, events and points."""
        loops, unit, reward = self.settings.loops, report.unit, report.summary.mean
        if unit.phase == "eval":
            evaluated = loops.stopping.after(reward, self._state.get("evaluated", {}))
            reason = evaluated.pop("reason", None) if unit.number < self.plan.iterations else None
            idle = CurvePoint(
                "evaluations_without_better", evaluated["without_better"], unit.number, "eval", unit.epoch
            )
            events = [] if reason is None else [reports.stopped_early(unit, reason)]
            return {"evaluated": evaluated, "stopped": reason}, events, [idle]
        rule, played, before = loops.curriculum, report.played[0].level, self._state.get("curriculum", {})
        if played is None:
            return {}, [], []
        after = rule.after(reward, played, before)
        level = CurvePoint("level", rule.levels.index(played), unit.number, "train", unit.epoch)
        return {"curriculum": after}, reports.level_changed(rule, before, after, unit), [level]

    def _temperature(self, phase: str) -> float:
        settings = self.settings
        if phase == "eval" and settings.evaluation_temperature is not None:
            return settings.evaluation_temperature
        return settings.generation.temperature

    async def _outcome(self) -> JobOutcome:
        learned = self._state.get("learned")  # missing if an evaluation ended the job before the first update
        if learned and not learned["updates"]:
            raise JobError(
                "No iteration had a turn to train on, so the weights were never updated.",
                code=NO_UPDATES,
                hint="Check the metrics turns_left_out, truncated_share and calls_refused. Raise max_tokens or shorten prompts.",
            )
        if learned and not learned["compared"] and self.plan.samples > 1:
            warning = reports.nothing_compared()
            self._state = {**self._state, "warnings": [*self._state["warnings"], warning.message]}
            await self.ledger.report(warning, state=self._state)
        steps = await self.ledger.last_data("rl.train.step", last=LISTED)
        evaluations = await self.ledger.last_data("rl.eval.summary", last=LISTED)
        found = reports.results(steps, evaluations, self._state)
        if self.checkpoints is not None:
            found |= await self.checkpoints.results()
        return JobOutcome(found["final_reward"], self._state["metrics"], found)
