"""The data that the parts of a workflow exchange: a policy's `Response`, and the `Episode` that is trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taskapp_kit.errors import BadArgument

Messages = Sequence[dict[str, Any]]
"""Messages of a chat-completions request."""

Prompt = str | Messages
"""A user's message, or a complete conversation."""


@dataclass(frozen=True, slots=True)
class Response:
    """A policy's reply to a prompt.

    Attributes:
        text: The text of the reply, without the stop token.
        prompt_ids: The token ids of the prompt.
        token_ids: The sampled token ids, including the stop token.
        log_probs: The log-probability of each sampled token at the sampling temperature.
        version: The version of the weights, as passed to `update_weights`. The initial weights have the version 0.
        cut: Whether `max_tokens` ended the reply.
    """

    text: str
    prompt_ids: list[int]
    token_ids: list[int]
    log_probs: list[float]
    version: int
    cut: bool = False


@dataclass(slots=True)
class Episode:
    """An episode for training with a `Trainer`.

    Attributes:
        prompt_ids: The token ids of the prompt.
        response_ids: All later token ids: sampled tokens, and the environment's tokens between turns.
        reward: The reward, or None if it is undefined. An episode with an undefined reward is not trained on.
        mask: For each token in `response_ids`, whether the policy sampled it. None means that it sampled all of them.
        log_probs: For each token in `response_ids`, its log-probability. Values where `mask` is False are ignored. None
            assumes that the current policy sampled the tokens.
        version: The `version` of the `Response`, or None if unknown.
        group: The name of a group of episodes, such as all episodes with the same prompt. The mean reward of the group
            is the baseline. All episodes of a batch without a group form one group.

    Raises:
        BadArgument: A value is invalid, or `mask` or `log_probs` has a different length than `response_ids`.
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
                raise BadArgument(f"An episode has {name} {_short(ids)}. Expected a list of at least one token id.")
        if self.reward is not None and (not isinstance(self.reward, int | float) or not math.isfinite(self.reward)):
            raise BadArgument(f"An episode has the reward {self.reward!r}. Expected a finite number, or None.")
        for name, values in (("mask", self.mask), ("log_probs", self.log_probs)):
            if values is not None and len(values) != len(self.response_ids):
                raise BadArgument(
                    f"An episode has {len(values)} values in {name} and {len(self.response_ids)} response_ids. Expected "
                    "equal lengths."
                )
        if self.mask is not None and not any(self.mask):
            raise BadArgument("An episode's mask is False for all tokens. Expected at least one sampled token.")
        if self.log_probs is not None and not all(map(math.isfinite, self.log_probs)):
            raise BadArgument("An episode has a log-probability that is not finite. Pass the log_probs of a Response.")
        if self.version is not None and (type(self.version) is not int or self.version < 0):
            raise BadArgument(f"An episode has the version {self.version!r}. Expected an integer of at least 0.")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
