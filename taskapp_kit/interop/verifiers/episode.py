"""What the environments that `from_verifiers` makes share, for both APIs of verifiers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from taskapp_kit.declare.marks import action
from taskapp_kit.errors import InvalidAction, KitError
from taskapp_kit.records.trajectory import Step

MAX_CHARACTERS = 400_000
"""The longest text answer, including reasoning."""
SAY = "say"
"""The action of plain text."""
PAID_BY_NAME = "give a function a weight, or score with your own rubrics and from_verifiers(..., rewarded=False)"


class VerifiersFailed(KitError):
    """An environment of verifiers requested or did something that is not supported here."""


class VerifiersEnvironment:
    """A rollout. `from_verifiers` makes the subclasses that an app declares.

    Attributes:
        splits: The seeds of each split, one per row of the data set.
        system_prompt: The environment's own, which is also in the first observation.
        begun: Whether the policy has taken a turn.
        ended: Whether verifiers has scored the rollout.
    """

    splits: dict[str, range]
    system_prompt: str | None = None
    rewarded: bool = True
    begun = False
    ended = False

    async def speak(self, text: str) -> Step:
        """Give the environment a turn with text."""
        raise NotImplementedError

    def final_state(self) -> dict[str, Any]:
        """Return whether the rollout was scored. Raises VerifiersFailed if a limit other than verifiers' ended it.

        A policy that never took a turn has no reward, but that is not a failure.
        """
        if self.rewarded and self.begun and not self.ended:
            raise VerifiersFailed(
                "The rollout has no reward, because it ended before verifiers scored it.",
                hint="Allow as many turns (max_turns, max_steps, safety.max_turns) as verifiers does.",
            )
        return {"scored": self.ended}


def say(sample: Callable[[random.Random], str] | None) -> Any:
    """Return the class's action of plain text, with its own sampler."""

    @action(name=SAY, text=True, sample=sample or (lambda rng: str(rng.randint(0, 100))))
    async def speak(self: VerifiersEnvironment, text: str) -> Step:
        """Answer in words."""
        if len(text) > MAX_CHARACTERS:
            raise InvalidAction(f"Nothing was read: at most {MAX_CHARACTERS} characters are.")
        return await self.speak(text)

    return speak
