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
    """A policy's answer. text: without the token that ended it. token_ids: what was sampled, with that token.

    log_probs: one for each of token_ids, at the sampling temperature. version: of the weights, as `update_weights` was
    given it; 0 for those that the policy started with. cut: whether `max_tokens` ended it.
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

    reward: None where it is undefined; such an episode is counted and not trained on. mask: for each of response_ids,
    whether the policy sampled it; None if all were, False for what an environment said between two turns. log_probs: for
    each of response_ids, as in `Response`; any number where mask is False. None: the policy is then taken to be the one that
    is updated. version: as in `Response`; None if it is not known. group: names the episodes whose mean reward is the
    baseline of this one, such as those of one prompt; None for all of the batch that have no group.
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
