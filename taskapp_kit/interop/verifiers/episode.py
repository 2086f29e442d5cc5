"""The base class for environments of `from_verifiers`, for both APIs of verifiers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from taskapp_kit.declare.marks import action
from taskapp_kit.errors import InvalidAction, KitError
from taskapp_kit.records.trajectory import Step

MAX_CHARACTERS = 400_000
"""The maximum length of a text reply, including reasoning."""
SAY = "say"
"""The name of the action for plain text."""
PAID_BY_NAME = "set a weight for a function, or use your own rubrics and pass from_verifiers(..., rewarded=False)"


class VerifiersFailed(KitError):
    """An environment of verifiers did something that is not supported, or its reward could not be computed."""


class VerifiersEnvironment:
    """A rollout. `from_verifiers` creates the subclasses that an app declares.

    Attributes:
        splits: The seeds of each split, with one seed for each row of the data set.
        system_prompt: The environment's system prompt, which is also in the first observation.
        begun: Whether the policy has taken a turn.
        ended: Whether verifiers has scored the rollout.
    """

    splits: dict[str, range]
    system_prompt: str | None = None
    rewarded: bool = True
    begun = False
    ended = False

    async def speak(self, text: str) -> Step:
        """Play a turn with a text reply."""
        raise NotImplementedError

    def final_state(self) -> dict[str, Any]:
        """Return whether verifiers has scored the rollout.

        Raises VerifiersFailed if a limit of the kit ended the rollout after the policy's first turn. If the policy took
        no turn, the rollout has no reward but does not fail.
        """
        if self.rewarded and self.begun and not self.ended:
            raise VerifiersFailed(
                "The rollout has no reward, because it ended before verifiers scored it.",
                hint="Set max_turns, max_steps and safety.max_turns at least as high as verifiers' turn limit.",
            )
        return {"scored": self.ended}


def say(sample: Callable[[random.Random], str] | None) -> Any:
    """Return the action `say`, which takes plain text, for a class. sample: the sampler of texts, or None."""

    @action(name=SAY, text=True, sample=sample or (lambda rng: str(rng.randint(0, 100))))
    async def speak(self: VerifiersEnvironment, text: str) -> Step:
        """Answer in words."""
        if len(text) > MAX_CHARACTERS:
            raise InvalidAction(f"Nothing was read: at most {MAX_CHARACTERS} characters are.")
        return await self.speak(text)

    return speak
