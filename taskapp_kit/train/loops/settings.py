"""How a job's rollouts and updates follow each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taskapp_kit.train.loops.curriculum import Curriculum
from taskapp_kit.train.loops.mixture import EnvironmentShare


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
