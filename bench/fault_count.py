"""Counts rollouts under faults as right, wrong, declared or lost. The same for taskapp-kit and for other frameworks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

Reward = tuple[str, float]
"""The digest of the episode (empty where there is none), and its reward."""


@dataclass(frozen=True)
class Outcome:
    """All that is known of one rollout when nothing runs any more.

    rewards: every reward that its caller received or a store contains. code: of its failure, if it reported one.
    kept: whether a reward that its caller received is also in the store, if there is one.
    """

    rewards: Sequence[Reward] = ()
    code: str = ""
    kept: bool = True


@dataclass
class Tally:
    """The rollouts by outcome, and a few of the wrong and lost ones as text."""

    right: int = 0
    wrong: int = 0
    lost: int = 0
    declared: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def asked(self) -> int:
        """All rollouts."""
        return self.right + self.wrong + self.lost + self.declared.total()

    def count(self, outcome: Outcome, deserved: Reward | None, codes: Container[str], name: str = "") -> None:
        """Count one rollout.

        Args:
            outcome: What is known of it.
            deserved: The only reward that is right, or None for an episode that cannot end without a failure.
            codes: Codes of the failures that are declarations. Another code, such as that of a bug, declares nothing.
            name: The rollout in `examples`.
        """
        if any(reward != deserved for reward in outcome.rewards):
            self.wrong += 1
            self.examples.append(f"wrong: {name} deserves {deserved}: {outcome}")
        elif outcome.code in codes:
            self.declared[outcome.code] += 1
        elif outcome.rewards and outcome.kept:
            self.right += 1
        else:
            self.lost += 1
            self.examples.append(f"lost: {name}: {outcome}")
