"""What a training job needs besides its plan (`backend.rollout_plan`): settings, and the order of its units.

Evaluation 0 comes before the first update, then iterations and evaluations by their cadence.
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
    """How rollouts are played and learned from.

    evaluation_temperature: None for that of training. rollout_seconds: after which an attempt is given up as failed.
    straggler_seconds: after which an iteration goes on without a rollout, counted from the opening of its first attempt;
    evaluations wait. stall_seconds: the job fails when no rollout ends and no model is called for so long; below
    rollout_seconds, one rollout that hangs may end the job before it is given up. failed_share: the job fails when a greater
    share of its rollouts failed. attempts: at a rollout that failed outside of its episode. checkpoint_every: iterations
    between two checkpoints; the last one always has one. incarnation: grows by one each time the job is resumed.
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
                raise BadArgument(f"{name} is {getattr(self, name)}; expected a number above 0.")


FIRST_EVALUATION = Unit("eval", 0, 1)


def unit_count(plan: JobPlan) -> int:
    """Return the number of iterations and evaluations."""
    return plan.units + bool(plan.eval_instances)


def unit_at(plan: JobPlan, index: int) -> Unit:
    """Return the unit with this index, from 0."""
    if not plan.eval_instances:
        return plan.unit(index)
    return plan.unit(index - 1) if index else FIRST_EVALUATION


def rollout_count(plan: JobPlan, *, evaluations_only: bool = False) -> int:
    """Return the number of rollouts that the job plays."""
    trained = plan.iterations * plan.groups * plan.samples if evaluations_only else 0
    return plan.total + plan.eval_instances - trained
