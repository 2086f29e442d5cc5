"""What the environments that `from_verifiers` makes have in common, whichever of verifiers' APIs they are written for."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from taskapp_kit.declare.marks import action
from taskapp_kit.errors import InvalidAction, KitError
from taskapp_kit.records.trajectory import Step

MAX_CHARACTERS = 400_000
"""Longest answer in words, reasoning included."""
SAY = "say"
"""The action of plain text."""
PAID_BY_NAME = "give a function a weight, or score with rubrics of yours and from_verifiers(..., rewarded=False)"


class VerifiersFailed(KitError):
    """An environment of verifiers asked for something, or did something, that cannot be played here."""


class VerifiersEnvironment:
    """One rollout; `from_verifiers` makes the subclasses that an app declares.

    splits: the seeds of each split, a row of the data set each. system_prompt: the environment's own, which stands in the
    first observation, too.
    """

    splits: dict[str, range]
    system_prompt: str | None = None
    rewarded: bool = True
    begun = False
    """The policy's first turn was taken."""
    ended = False

    async def speak(self, text: str) -> Step:
        """Give the environment a turn in words."""
        raise NotImplementedError

    def final_state(self) -> dict[str, Any]:
        """Raises VerifiersFailed where a limit that is not verifiers' ended a rollout in its middle: it has no reward then.

        A policy that never took a turn was paid nothing, which is no failure.
        """
        if self.rewarded and self.begun and not self.ended:
            raise VerifiersFailed(
                "The rollout ended before verifiers scored it, so it has no reward.",
                hint="Give the environment as many turns (max_turns, max_steps, safety.max_turns) as verifiers gives it.",
            )
        return {"scored": self.ended}


def say(sample: Callable[[random.Random], str] | None) -> Any:
    """Return the action of plain text of a class, with its own sampler."""

    @action(name=SAY, text=True, sample=sample or (lambda rng: str(rng.randint(0, 100))))
    async def speak(self: VerifiersEnvironment, text: str) -> Step:
        """Answer in words."""
        if len(text) > MAX_CHARACTERS:
            raise InvalidAction(f"Nothing was read: at most {MAX_CHARACTERS} characters are.")
        return await self.speak(text)

    return speak
