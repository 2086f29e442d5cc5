"""The settings of a training job that are not in its plan (`jobs.server.rollout_plan`), and the order of its units.

A unit is an iteration or an evaluation. Evaluation 0 precedes the first update. Iterations and further evaluations
follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskapp_kit.errors import BadArgument
from taskapp_kit.jobs.server.rollout_plan import JobPlan, Unit
from taskapp_kit.train.gateway.attempt import AttemptSettings
from taskapp_kit.train.loops.loop_settings import LoopSettings
from taskapp_kit.train.rows import RowOptions

ROLLOUT_SECONDS = 1800.0
STRAGGLER_SECONDS = 900.0
STALL_SECONDS = 2700.0
FAILED_SHARE = 0.5
ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """How rollouts are played and used for updates.

    Attributes:
        generation: The settings of each generation.
        rows: How episodes become training rows.
        evaluation_temperature: The sampling temperature of evaluations. None means the temperature of training.
        rollout_seconds: The time limit of one attempt at a rollout. An attempt that exceeds it counts as failed.
        straggler_seconds: An iteration stops waiting for a rollout this long after the rollout's first attempt started.
            Evaluations wait for all rollouts.
        stall_seconds: The job fails if no rollout ends and no model is called for this time. The value should exceed
            rollout_seconds, so that one hanging rollout does not end the job.
        failed_share: The job fails if more than this share of its rollouts fails.
        attempts: The maximum number of attempts at a rollout that fails outside its episode.
        checkpoint_every: The number of iterations between two checkpoints. A checkpoint always follows the last
            iteration.
        incarnation: The number of times that the job was started or resumed.
        loops: The job's environments, curriculum and early stopping, and how far rollouts are played ahead of updates.
    """

    generation: AttemptSettings
    rows: RowOptions = field(default_factory=RowOptions)
    evaluation_temperature: float | None = None
    rollout_seconds: float = ROLLOUT_SECONDS
    straggler_seconds: float = STRAGGLER_SECONDS
    stall_seconds: float = STALL_SECONDS
    failed_share: float = FAILED_SHARE
    attempts: int = ATTEMPTS
    checkpoint_every: int = 1
    incarnation: int = 0
    loops: LoopSettings = field(default_factory=LoopSettings)

    def __post_init__(self) -> None:
        for name in ("rollout_seconds", "straggler_seconds", "stall_seconds", "attempts", "checkpoint_every"):
            if not getattr(self, name) > 0:
                raise BadArgument(f"`{name}` is {getattr(self, name)}. Expected a number greater than 0.")


FIRST_EVALUATION = Unit("eval", 0, 1)


def unit_count(plan: JobPlan) -> int:
    """Return the total number of iterations and evaluations."""
    return plan.units + bool(plan.eval_instances)


def unit_at(plan: JobPlan, index: int) -> Unit:
    """Return the unit with this index, starting at 0."""
    if not plan.eval_instances:
        return plan.unit(index)
    return plan.unit(index - 1) if index else FIRST_EVALUATION


def rollout_count(plan: JobPlan, *, evaluations_only: bool = False) -> int:
    """Return the number of rollouts that the job plays."""
    trained = plan.iterations * plan.groups * plan.samples if evaluations_only else 0
    return plan.total + plan.eval_instances - trained
