"""A rollout as the service finished it: an episode plus its scores, and what the caller asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskapp_kit.contract.events import Event
from taskapp_kit.contract.scorecard import RolloutSummary, Scorecard
from taskapp_kit.contract.trajectory import Trajectory

if TYPE_CHECKING:
    from taskapp_kit.contract.wire import RolloutRequest


@dataclass(slots=True)
class Rollout:
    """A finished, scored rollout.

    policy: the name of the one that acted. ops_executed: 2 for a policy turn, 1 for a scripted action. warnings: what
    was accepted and ignored. timing: seconds in environment, policy, scoring, framework and in all. usage: tokens.
    versions: kit, app, environment, git commit (None outside a checkout).
    """

    rollout_id: str
    request: RolloutRequest
    created_at: float
    trajectory: Trajectory
    events: list[Event]
    scorecard: Scorecard
    digest: str
    policy: str
    ops_executed: int
    warnings: list[str] = field(default_factory=list)
    timing: dict[str, float] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)

    def summary(self) -> RolloutSummary:
        """The numbers that an aggregate reads; the environment's metrics and the app's, under their names."""
        return RolloutSummary(
            environment=self.trajectory.environment,
            split=self.trajectory.split,
            seed=self.trajectory.seed,
            status=self.trajectory.status,
            length=self.trajectory.length,
            total_reward=self.trajectory.total_reward,
            reward=self.scorecard.reward,
            outcome_score=self.scorecard.outcome_score,
            events_score=self.scorecard.events_score,
            metrics={**self.trajectory.metrics, **self.scorecard.metrics},
        )
