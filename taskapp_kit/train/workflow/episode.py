"""What travels between the parts of a workflow: a policy's `Response`, and the `Episode` that is trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taskapp_kit.errors import BadArgument

Messages = Sequence[dict[str, Any]]
"""As in a chat-completions request."""

Prompt = str | Messages
"""A user's message, or a whole conversation."""


@dataclass(frozen=True, slots=True)
class Response:
    """A policy's answer.

    Attributes:
        text: The answer without the token that ended it.
        prompt_ids: The prompt as the model read it.
        token_ids: What was sampled, with the token that ended it.
        log_probs: One for each of `token_ids`, at the sampling temperature.
        version: Of the weights, as `update_weights` was given it; 0 for those that the policy started with.
        cut: Whether `max_tokens` ended it.
    """

    text: str
    prompt_ids: list[int]
    token_ids: list[int]
    log_probs: list[float]
    version: int
    cut: bool = False


@dataclass(slots=True)
class Episode:
    """What a `Trainer` learns from.

    Attributes:
        prompt_ids: Of the prompt, as in `Response`.
        response_ids: What follows it: sampled tokens, and what an environment said between two turns.
        reward: None where it is undefined; such an episode is counted and not trained on.
        mask: For each of `response_ids`, whether the policy sampled it; None if all were.
        log_probs: For each of `response_ids`, as in `Response`; any number where `mask` is False. None: the policy is
            taken to be the one that is updated.
        version: As in `Response`; None if it is not known.
        group: Names the episodes whose mean reward is the baseline of this one, such as those of one prompt; None for all
            of the batch that have no group.

    Raises:
        BadArgument: A member has another form, or there are not as many values as response_ids.
    """

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    reward: float | None
    mask: Sequence[bool] | None = None
    log_probs: Sequence[float] | None = None
    version: int | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        for name, ids in (("prompt_ids", self.prompt_ids), ("response_ids", self.response_ids)):
            if not isinstance(ids, list | tuple) or not ids or not all(type(each) is int for each in ids):
                raise BadArgument(f"An episode has {name} {_short(ids)}; expected a list of token ids, at least one.")
        if self.reward is not None and (not isinstance(self.reward, int | float) or not math.isfinite(self.reward)):
            raise BadArgument(f"An episode has the reward {self.reward!r}; expected a finite number, or None.")
        for name, values in (("mask", self.mask), ("log_probs", self.log_probs)):
            if values is not None and len(values) != len(self.response_ids):
                raise BadArgument(
                    f"An episode has {len(values)} values in {name} and {len(self.response_ids)} response_ids; expected as "
                    "many."
                )
        if self.mask is not None and not any(self.mask):
            raise BadArgument("An episode's mask is False for each token; expected one that the policy sampled.")
        if self.log_probs is not None and not all(map(math.isfinite, self.log_probs)):
            raise BadArgument("An episode has a log-probability that is not finite; expected those of its Response.")
        if self.version is not None and (type(self.version) is not int or self.version < 0):
            raise BadArgument(f"An episode has the version {self.version!r}; expected a whole number of at least 0.")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
