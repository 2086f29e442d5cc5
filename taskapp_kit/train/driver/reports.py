"""The events, metric points and latest metrics of a training job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from taskapp_kit.jobs.server import job_events
from taskapp_kit.jobs.server.engine import CurvePoint, Event, RolloutOutcome
from taskapp_kit.jobs.server.rewards import Summary
from taskapp_kit.jobs.server.rollout_plan import JobPlan, Unit
from taskapp_kit.records.formatting import counted
from taskapp_kit.train.driver.driver_settings import rollout_count
from taskapp_kit.train.driver.interfaces import SavedJob
from taskapp_kit.train.driver.rollouts import STRAGGLER, PlayedRollout
from taskapp_kit.train.gateway.attempt import Faithfulness
from taskapp_kit.train.loops.loop_settings import Curriculum
from taskapp_kit.train.rows import TrainingBatch
from taskapp_kit.train.turns import UpdateMetrics

OTHER_MODELS = {
    "auxiliary_turns": "{} turns were calls for another model at the policy's address, such as a user simulator. They "
    "are not trained on. Use a separate address for the other model.",
    "suspected_turns": "{} turns probably belong to a user simulator at the policy's address: they have a different system "
    "message, and the policy receives their text as a user message. They are trained on. Use another address or model name.",
}
"""The warnings about calls for models other than the policy, by metric."""


SEEDS_SHOWN = 20
"""Maximum number of seeds in one message."""


@dataclass(frozen=True, slots=True)
class UnitReport:
    """One iteration or evaluation that has ended.

    Attributes:
        unit: The iteration or evaluation.
        summary: The summary of the unit's rewards and failures.
        played: The unit's rollouts.
        seconds: The duration of the rollouts.
        sampled_tokens: The number of tokens that the gateway sampled during this time.
        late: Stragglers of earlier iterations that ended during this time.
        stored: Whether the rollouts were read from a file instead of played.
        waiting: The number of finished rollouts of later iterations, or None if rollouts are not played ahead.
        batch: The training rows of an iteration, or None for an evaluation.
        update: The metrics of the update, or None for an evaluation or an iteration without rows.
    """

    unit: Unit
    summary: Summary
    played: Sequence[PlayedRollout]
    seconds: float
    sampled_tokens: int
    late: Sequence[RolloutOutcome] = ()
    stored: bool = False
    waiting: int | None = None
    batch: TrainingBatch | None = None
    update: UpdateMetrics | None = None

    @property
    def stragglers(self) -> int:
        """The number of rollouts that the iteration did not wait for."""
        return sum(each.outcome.code == STRAGGLER for each in self.played)

    def values(self) -> dict[str, float | None]:
        """Return all metrics except the reward. Undefined metrics are None."""
        records = [each.record for each in self.played if each.record is not None]
        turns = [turn for record in records for turn in record.turns]
        ended = len(self.played) - self.stragglers
        values: dict[str, float | None] = {
            "failed_share": self.summary.failed / len(self.played),
            "truncated_share": sum(turn.finish_reason == "length" for turn in turns) / len(turns) if turns else None,
            "truncated_rollouts": sum(each.outcome.status == "truncated" for each in self.played),
            "turns": len(turns) / ended if ended else None,
            "sampled_tokens": sum(len(turn.token_ids) for turn in turns) / ended if ended else None,
            "tokens_per_second": self.sampled_tokens / self.seconds if self.seconds else None,
        }
        counts = sum((record.faithfulness for record in records), Faithfulness())
        for name in sorted({each.environment for each in self.played} - {""}):
            own = [each.outcome.reward for each in self.played if each.environment == name]
            scored = [reward for reward in own if reward is not None]
            values[f"reward_{name}"] = sum(scored) / len(scored) if scored else None
        values["auxiliary_turns"] = sum(turn.auxiliary for turn in turns)
        values["suspected_turns"] = sum(record.suspected for record in records)
        values |= {f"calls_{item.name}": getattr(counts, item.name) for item in fields(counts)}
        if self.unit.phase == "eval":
            return values
        rewards = [each.reward for each in self.late if each.reward is not None]
        values |= {
            "stragglers": self.stragglers,
            "waiting_rollouts": self.waiting,
            "late": len(self.late),
            "late_reward": sum(rewards) / len(rewards) if rewards else None,
        }
        return values | self._learned()

    def _learned(self) -> dict[str, float | None]:
        values: dict[str, float | None] = {}
        if self.batch is not None:
            values |= {
                "rows": len(self.batch.rows),
                "forks": self.batch.forks,
                "turns_left_out": self.batch.excluded.total(),
                "without_turn_rewards": sum(bool(each.no_credit) for each in self.played),
            }
        if self.update is not None:
            values |= update_values(self.update)
        return values

    def points(self) -> list[CurvePoint]:
        """Return the metric points. Undefined metrics have no point."""
        prefix = "eval_" if self.unit.phase == "eval" else ""
        points = job_events.points(self.unit, self.summary, self.seconds)
        values = self.values()
        if self.stored:  # metrics of stored rollouts do not describe the policy
            points = [replace(each, name="stored_reward") for each in points if each.name == "reward"]
            values = {name: value for name, value in self._learned().items() if name != "age"}
        return points + [
            CurvePoint(prefix + name, float(value), self.unit.number, self.unit.phase, self.unit.epoch)
            for name, value in values.items()
            if value is not None
        ]

    def event(self, plan: JobPlan, temperature: float) -> Event:
        """Return the event for the unit's end. `temperature` is the sampling temperature of the unit."""
        unit, found, update = self.unit, self.summary, self.update
        if unit.phase == "eval":
            text = f"Evaluation after iteration {unit.number} of {plan.iterations}: {found.words()}."
        else:
            learned = "There was no row to train on" if update is None else f"Update {update.version} made"
            of = " (stored rollouts)" if self.stored else ""
            text = f"Iteration {unit.number} of {plan.iterations}: {found.words()}{of}. {learned}."
        return Event(
            "rl.train.step" if unit.phase == "train" else "rl.eval.summary",
            text,
            "warning" if found.failed else "info",
            {
                "step": unit.number,
                "iteration": unit.number,
                "epoch": unit.epoch,
                "reward": found.mean,
                "reward_stderr": found.stderr,
                "seeds": found.seeds,
                "reward_spread": found.spread,
                "rollouts": found.rollouts,
                "scored": found.scored,
                "undefined": found.undefined,
                "failed": found.failed,
                "failures": dict(found.failures),
                "groups_without_spread": found.flat_groups if unit.phase == "train" else None,
                "seconds": round(self.seconds, 3),
                "temperature": temperature,
                "version": None if update is None else update.version,
            },
        )


def update_values(update: UpdateMetrics) -> dict[str, float | None]:
    """Return the metrics of an update by name."""
    return {
        "learning_rate": update.learning_rate,
        "loss": update.loss,
        "kl": update.kl,
        "entropy": update.entropy,
        "clip_fraction": update.clip_share,
        "gradient_norm": update.gradient_norm,
        "update_tokens": update.tokens,
        "update_seconds": update.seconds,
        "log_prob_mismatch": update.mismatch_mean,
        "effective_share": update.effective_share,
        "age": update.age_largest,
        "age_mean": update.age_mean,
        "version": update.version,
        "value_loss": update.value_loss,
        "explained_variance": update.explained_variance,
    }


def begun(plan: JobPlan, evaluation_temperature: float, stored: Mapping[str, Any] | None = None) -> Event:
    """Return the event for a job's start. `stored` describes the stored rollouts. It is None if rollouts are played."""
    rollouts = rollout_count(plan, evaluations_only=stored is not None)
    played = counted(rollouts, "rollout") + (
        "" if stored is None else " for evaluations (training uses stored rollouts)"
    )
    return Event(
        "rl.train.started",
        f"{played} in {counted(plan.iterations, 'iteration')} of "
        f"{counted(plan.groups, 'group')} of {plan.samples}, at most {plan.at_once} at once.",
        data={
            "iterations": plan.iterations,
            "groups": plan.groups,
            "group_size": plan.samples,
            "rollouts": rollouts,
            "stored": stored,
            "at_once": plan.at_once,
            "reward": plan.blend.words() if plan.blend else "the task app's own reward",
            "evaluations": plan.evaluations + bool(plan.eval_instances),
            "evaluation_temperature": evaluation_temperature,
        },
    )


def resumed(incarnation: int, saved: SavedJob | None) -> Event:
    """Return the event for a resumed job. `saved` is the job's last checkpoint, or None if none was saved."""
    if saved is None:
        text = "The job starts again, because it stopped before its first checkpoint. Earlier events are superseded."
        facts: dict[str, Any] = {"iteration": 0, "after_seq": 0, "checkpoint": None}
    else:
        iteration = saved.at.iteration
        text = f"The job continues from its checkpoint after iteration {iteration}. Later events are superseded."
        facts = {"iteration": iteration, "after_seq": saved.position, "checkpoint": saved.checkpoint}
    return Event("rl.train.resumed", text, data={"incarnation": incarnation, **facts})


def checkpoint_saved(name: str, iteration: int, score: float | None) -> Event:
    """Return the event for a saved checkpoint. `name` is the name of the saved model."""
    return Event(
        "rl.checkpoint.saved",
        f"Iteration {iteration} was saved as {name}.",
        data={"checkpoint": name, "iteration": iteration, "score": score},
    )


def level_changed(
    curriculum: Curriculum, before: Mapping[str, Any], after: Mapping[str, Any], unit: Unit
) -> list[Event]:
    """Return a list with the event for a change of level between two states of the curriculum, or [] without a change."""
    old, new = curriculum.level(before), curriculum.level(after)
    if old == new:
        return []
    text = f"After iteration {unit.number}, the difficulty of tasks changes from {old} to {new}."
    return [Event("rl.train.level", text, data={"iteration": unit.number, "level": new, "before": old})]


def stopped_early(unit: Unit, reason: str) -> Event:
    """Return the event for the early end of a job. An example of `reason` is `its reward 0.95 reached 0.9`."""
    return Event(
        "rl.train.stopped",
        f"The job stops early after the evaluation of iteration {unit.number}: {reason}.",
        data={"iteration": unit.number, "reason": reason},
    )


def policy_left_out(name: str) -> Event:
    """Return the warning that a policy name is not sent to the task app, because the app has a policy of this name."""
    return Event(
        "rl.job.warning",
        f"The policy name `{name}` is not sent, because the task app would use its own policy instead of the trained model.",
        "warning",
        {"policy": name},
    )


def other_models(report: UnitReport, warned: Sequence[str]) -> dict[str, Event]:
    """Return warnings about model calls that were not for the policy, by metric. Metrics in `warned` are skipped."""
    values, found = report.values(), {}
    for name, text in OTHER_MODELS.items():
        if values[name] and name not in warned:
            data = {"turns": values[name], "phase": report.unit.phase, "iteration": report.unit.number}
            found[name] = Event("rl.job.warning", text.format(int(values[name] or 0)), "warning", data)
    return found


def seeds_shared(seeds: Sequence[int]) -> Event:
    """Return the warning that evaluations play seeds that are also used for training."""
    shown = ", ".join(map(str, seeds[:SEEDS_SHOWN])) + (", …" if len(seeds) > SEEDS_SHOWN else "")
    return Event(
        "rl.job.warning",
        f"Evaluations play seeds that are also used for training ({shown}), so their reward does not show how well the "
        "model plays new seeds. Choose other [evaluation] seeds or [data] seeds.",
        "warning",
        {"shared_seeds": list(seeds[:SEEDS_SHOWN]), "shared": len(seeds)},
    )


def nothing_compared() -> Event:
    """Return the warning that a job learned nothing from rewards."""
    return Event(
        "rl.job.warning",
        "All rollouts of each group had the same reward in every iteration, so nothing was learned from rewards.",
        "warning",
        {"groups_without_spread": 1.0},
    )


def evaluation_started(unit: Unit, rollouts: int) -> Event:
    """Return the event for an evaluation's start."""
    return Event(
        "rl.eval.started",
        f"Evaluation after iteration {unit.number}: {counted(rollouts, 'rollout')}.",
        data={"step": unit.number, "iteration": unit.number, "rollouts": rollouts},
    )


def latest(report: UnitReport, before: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the job's latest metrics. `failed` and `undefined` count all rollouts of the job so far."""
    made = job_events.metrics(report.unit, report.summary, before)
    if report.stored:
        made |= {"reward": None, "reward_stderr": None}
    if report.update is not None:
        made |= {
            name: value for name, value in update_values(report.update).items() if name in ("loss", "kl", "entropy")
        }
    return made


def results(
    steps: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]], state: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the results of a job that has ended."""
    last = (evaluations or steps)[-1]
    return {
        "final_reward": last["reward"],
        "final_reward_of": "the last evaluation" if evaluations else "the last iteration",
        "iterations": [job_events.listed(unit) for unit in steps],
        "evaluations": [job_events.listed(unit) for unit in evaluations],
        "rollouts": {
            "played": state["finished"],
            "failed": state["failed"],
            "undefined": state["metrics"].get("undefined", 0),
            "failures": state["failures"],
        },
        "stragglers": dict(state["stragglers"]),
        "stopped_early": state.get("stopped"),
        "warnings": list(state.get("warnings", ())),
    }
