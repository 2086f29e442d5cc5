"""The data types of training: samples, recorded turns, rows, metrics of an update, and the interface of samplers.

    Sampler.sample -> Sampled -> the gateway records a RecordedTurn -> rows.py -> TrainingRow -> the update

Token ids and log-probabilities come from the sampler and are never recomputed from text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Protocol

NOT_SAMPLED = -1
"""The policy version that a row states for tokens that are not trained on."""

Exclusion = Literal["auxiliary", "not_delivered", "length_mismatch", "invalid_log_prob", "no_tokens", "no_prompt"]
"""Why a turn is never trained on."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One generation of a sampler.

    Attributes:
        token_ids: All sampled tokens, including the stop token.
        log_probs: The natural log-probability of each token at the sampling temperature.
        finish_reason: `length` if `max_tokens` ended the generation, otherwise `stop`.
        version: The version of the weights. All tokens were sampled with this version.
        seconds: The time from the call to the last token.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    version: int
    seconds: float


class Sampler(Protocol):
    """Generates tokens with the policy's current weights. `version` increases by one with each change of the weights."""

    version: int

    async def sample(
        self, prompt_ids: Sequence[int], *, max_tokens: int, temperature: float, stop_ids: frozenset[int], draw: str
    ) -> Sampled:
        """Return one continuation of the prompt. Cancelling the call stops the generation.

        At temperature 0, the most probable token is chosen. `draw` is the name of the random stream, such as
        `job/place/sample/turn`. A deterministic sampler returns the same tokens for the same weights, prompt and
        `draw`.
        """
        ...


class PolicySampler(Sampler, Protocol):
    """A sampler of a policy in training. `context_tokens` limits a prompt together with its reply."""

    context_tokens: int

    async def swap(self, weights: Mapping[str, Any], version: int) -> None:
        """Replace the weights. Calls of `sample` after this method returns use the new weights.

        All tokens of a reply have the same version.

        Args:
            weights: The policy's `state_dict`, with torch tensors of any dtype and device. They must not change until
                this method returns.
            version: The version of these weights. It must be larger than the current version.

        Raises:
            TrainingError: The weights could not be replaced.
        """
        ...


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One generation of an attempt. `token_ids`, `log_probs`, `version` and `seconds` are the same as in `Sampled`.

    Attributes:
        prompt_ids: The whole prompt, including earlier turns.
        finish_reason: Why the generation ended.
        delivered: Whether the client received the whole response.
        parent: The index of the turn that this turn continues, or None for a new root. The prompt starts with the
            prompt and the tokens of the parent.
        auxiliary: Whether the call was for a model other than the policy, such as a user simulator.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    version: int
    finish_reason: Literal["stop", "length", "tool_calls"]
    seconds: float
    delivered: bool
    parent: int | None = None
    auxiliary: bool = False

    @property
    def ids(self) -> tuple[int, ...]:
        """The prompt and the sampled tokens."""
        return self.prompt_ids + self.token_ids

    @property
    def exclusion(self) -> Exclusion | None:
        """Why this turn is never trained on, or None if it may be. Its tokens may still be context of later turns."""
        if self.auxiliary:
            return "auxiliary"
        if not self.delivered:
            return "not_delivered"
        if len(self.token_ids) != len(self.log_probs):
            return "length_mismatch"
        if not self.token_ids:
            return "no_tokens"
        if not self.prompt_ids:  # the first token has no prediction
            return "no_prompt"
        if not all(math.isfinite(log_prob) for log_prob in self.log_probs):
            return "invalid_log_prob"
        return None


def recorded_turns(
    tokens: Sequence[int], mask: Sequence[object], log_probs: Sequence[float], *, version: int, before: int = 0
) -> list[RecordedTurn]:
    """Return a turn for each run of sampled tokens in `mask`. The first is a root, and each other continues the previous turn.

    `before` is the number of earlier turns of the attempt.
    """
    ids, chances = tuple(tokens), tuple(map(float, log_probs))
    turns: list[RecordedTurn] = []
    stop = 0
    for sampled, stretch in groupby(mask):
        start, stop = stop, stop + len(list(stretch))
        if sampled:
            turns.append(
                RecordedTurn(
                    prompt_ids=ids[:start],
                    token_ids=ids[start:stop],
                    log_probs=chances[start:stop],
                    version=version,
                    finish_reason="stop",
                    seconds=0.0,
                    delivered=True,
                    parent=before + len(turns) - 1 if turns else None,
                )
            )
    return turns


@dataclass(frozen=True, slots=True)
class TrainedTurn:
    """A turn that a row trains on. Its tokens are `range(start, stop)` in the row.

    Attributes:
        index: The turn's index in its episode.
        start: The index of the first token.
        stop: The index after the last token.
        reward: The reward after the turn.
        last: Whether this is the episode's last turn that any row trains on.
    """

    index: int
    start: int
    stop: int
    reward: float
    last: bool


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One branch of an attempt as training data for one update. All tuples except `turns` have one entry per token.

    Attributes:
        ids: The token ids.
        mask: Whether the token is trained on.
        log_probs: The sampler's log-probability of the token, or 0.0 where `mask` is False.
        versions: The version of the weights that sampled the token, or NOT_SAMPLED where `mask` is False.
        advantages: The advantage of the token, or 0.0 where `mask` is False. Unless credit is per turn, all tokens with
            a True mask have the same advantage.
        group: The name of the group of rollouts that are compared with each other.
        rollout: The name of the episode.
        weight: The row's share of its episode, in (0, 1]. The weights of an episode's rows sum to 1.
        turns: The turns that are trained on, for losses that learn from rewards (ppo).
        truncated: Whether the episode was ended by a limit and not by the environment.
    """

    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    log_probs: tuple[float, ...]
    versions: tuple[int, ...]
    advantages: tuple[float, ...]
    group: str
    rollout: str
    weight: float = 1.0
    turns: tuple[TrainedTurn, ...] = ()
    truncated: bool = False

    def __post_init__(self) -> None:
        lengths = [len(each) for each in (self.ids, self.mask, self.log_probs, self.versions, self.advantages)]
        if len(set(lengths)) != 1:
            raise ValueError(
                f"a row of rollout {self.rollout!r} has tuples of the lengths {lengths}: ids, mask, log_probs, versions and "
                "advantages. Expected equal lengths."
            )
        if self.mask and self.mask[0]:
            raise ValueError(f"a row of rollout {self.rollout!r} trains on its first token, which has no prediction")

    @property
    def trained(self) -> int:
        """The number of trained tokens."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """The metrics of one update. Means over tokens cover the tokens with a gradient, and are None if no token has a gradient.

    Attributes:
        version: The version of the weights after the update.
        learning_rate: The learning rate of all steps.
        loss: The loss.
        steps: Number of optimizer steps.
        episodes: Number of episodes in the rows.
        rows: Number of rows with a gradient.
        idle_rows: Number of rows without a gradient, which are not computed.
        tokens: Number of tokens with a gradient.
        gradient_norm: The largest gradient norm of a step, before clipping.
        entropy: Mean entropy per token, in nats.
        clip_share: Share of tokens without a gradient because of the clip range.
        kl: Mean divergence from the reference model per token.
        mismatch_mean: Mean |Δ log p| between the sampler and the old policy, or None if the old policy was not
            computed.
        mismatch_p99: The 99th percentile of |Δ log p|.
        mismatch_largest: The largest |Δ log p|.
        effective_share: Effective sample size of the weights old / sampler, as a share of the tokens.
        sampler_agrees: Whether the sampler's log-probabilities can replace the old policy's.
        age_mean: Mean number of versions between a row's oldest token and the update.
        age_largest: The largest number of versions between a row's oldest token and the update.
        seconds: The duration of the update.
        value_loss: Half the mean squared distance of ppo's values from the returns, before the update.
        explained_variance: The share of the returns' variance that ppo's values explain.
    """

    version: int
    learning_rate: float
    loss: float
    steps: int
    episodes: int
    rows: int
    idle_rows: int
    tokens: int
    gradient_norm: float
    entropy: float | None
    clip_share: float | None
    kl: float | None
    mismatch_mean: float | None
    mismatch_p99: float | None
    mismatch_largest: float | None
    effective_share: float | None
    sampler_agrees: bool
    age_mean: float
    age_largest: int
    seconds: float
    value_loss: float | None = None
    explained_variance: float | None = None
