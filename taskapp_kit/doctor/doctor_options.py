"""How much the doctor plays: the settings of one examination."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

MOST_TURNS = 1000
"""The number of turns of one action after which a rollout of the doctor ends, with or without a declared limit."""


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """How much the doctor plays.

    Attributes:
        quick: Play fewer rollouts, for less than 20 s in total.
        judges: Call the app's judges.
        environment: Examine only this environment.
        allow: Names of checks whose findings are accepted.
        rollout_seconds: The deadline of each rollout. Defaults to 60 s, 10 s with `quick`.
        processes: Start a second process, which takes almost a second.
    """

    quick: bool = False
    judges: bool = False
    environment: str | None = None
    allow: Collection[str] = field(default_factory=tuple)
    rollout_seconds: float | None = None
    processes: bool = True

    @property
    def seconds(self) -> float | None:
        """The time for the whole examination; None without a limit."""
        return 15.0 if self.quick else None

    @property
    def hint_for_time(self) -> str:
        """What to do if the time was too short."""
        return "Run the doctor without --quick." if self.quick else ""

    @property
    def deadline_seconds(self) -> float:
        """The deadline of each rollout."""
        return self.rollout_seconds or (10.0 if self.quick else 60.0)

    @property
    def seeds(self) -> int:
        """Rollouts of each policy, if the environment is fast enough."""
        return 6 if self.quick else 20

    @property
    def policy_seconds(self) -> float:
        """Time for the rollouts of one policy."""
        return 0.7 if self.quick else 8.0

    @property
    def check_seconds(self) -> float:
        """Time for the repetitions of one check."""
        return 1.0 if self.quick else 15.0

    @property
    def first_views(self) -> int:
        """Episodes of which only the first observation is read."""
        return 20 if self.quick else 60

    @property
    def resets(self) -> int:
        """Resets for the check of memory."""
        return 60 if self.quick else 200

    @property
    def at_once(self) -> int:
        """Rollouts that are played concurrently."""
        return 8 if self.quick else 20
