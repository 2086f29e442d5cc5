"""The data types of training: samples, recorded turns, rows and the metrics of an update, and the interface of a sampler.

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
"""The policy version of a row's tokens that are not trained on."""

Exclusion = Literal["auxiliary", "not_delivered", "length_mismatch", "invalid_log_prob", "no_tokens", "no_prompt"]
"""Why a turn is never trained on."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One generation of a sampler.

    Attributes:
        token_ids: All sampled tokens, including the stop token.
        log_probs: The natural log-probability of each token at the sampling temperature.
        finish_reason: `length` if `max_tokens` ended the generation.
        version: The version of the weights that sampled all of its tokens.
        seconds: The time from the call to the last token.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    version: int
    seconds: float


class Sampler(Protocol):
    """Generates tokens with the policy's current weights. `version` grows by one with each change of the weights."""

    version: int

    async def sample(
        self, prompt_ids: Sequence[int], *, max_tokens: int, temperature: float, stop_ids: frozenset[int], draw: str
    ) -> Sampled:
        """Return one continuation of the prompt. Cancelling the call frees its slot.

        temperature: 0 takes the most probable token. draw: names the random stream, such as `job/place/sample/turn`. A
        deterministic sampler returns the same tokens for the same weights, prompt and draw.
        """
        ...


class PolicySampler(Sampler, Protocol):
    """A sampler of a policy that learns. context_tokens: the most tokens of a prompt and its answer together."""

    context_tokens: int

    async def swap(self, weights: Mapping[str, Any], version: int) -> None:
        """Sample from these weights after this call returns. Raises TrainingError.

        weights: the policy's `state_dict` with torch tensors of any dtype and device, unchanged until this call returns.
        version: the version of these weights, larger than before. All tokens of an answer have the same version.
        """
        ...


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One generation of an attempt. `token_ids`, `log_probs`, `version` and `seconds` are the same as in `Sampled`.

    Attributes:
        prompt_ids: The whole prompt, including earlier turns.
        finish_reason: Why the generation ended.
        delivered: Whether the client received the whole answer.
        parent: The index of the turn that this one continues: the prompt starts with that turn's prompt and tokens. None
            for a new root.
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
        """Why this turn is never trained on, else None. Its tokens may still be context of later turns."""
        if self.auxiliary:
            return "auxiliary"
        if not self.delivered:
            return "not_delivered"
        if len(self.token_ids) != len(self.log_probs):
            return "length_mismatch"
        if not self.token_ids:
            return "no_tokens"
        if not self.prompt_ids:  # nothing predicts the first token
            return "no_prompt"
        if not all(math.isfinite(log_prob) for log_prob in self.log_probs):
            return "invalid_log_prob"
        return None


def recorded_turns(
    tokens: Sequence[int], mask: Sequence[object], log_probs: Sequence[float], *, version: int, before: int = 0
) -> list[RecordedTurn]:
    """Return a turn for each run of sampled tokens in `mask`. The first one is a new root; each later turn continues it.

    before: the number of earlier turns of the attempt.
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
    """A turn that a row trains on: the row's tokens in range(start, stop).

    Attributes:
        index: The turn's index in its episode.
        start: The first token.
        stop: The end of the tokens.
        reward: The reward after the turn.
        last: Whether this is the episode's last trained turn in any row.
    """

    index: int
    start: int
    stop: int
    reward: float
    last: bool


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One branch of an attempt, for one update. All tuples except `turns` have one entry per token.

    Attributes:
        ids: The token ids.
        mask: Whether the token is trained on.
        log_probs: The sampler's log-probabilities, 0.0 where mask is False.
        versions: The versions of the weights that sampled the token, NOT_SAMPLED where mask is False.
        advantages: 0.0 where mask is False. All others are equal unless credit is per turn.
        group: The rollouts that are compared with each other.
        rollout: The episode.
        weight: The row's share of its episode, in (0, 1]. The weights of an episode's rows sum to 1.
        turns: The turns that are trained on, for losses that learn from rewards (ppo).
        truncated: Whether a limit ended the episode, not the environment.
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
                f"a row of rollout {self.rollout!r} has {lengths} ids, mask, log-probabilities, versions and advantages; "
                "expected equal numbers"
            )
        if self.mask and self.mask[0]:
            raise ValueError(f"a row of rollout {self.rollout!r} trains on its first token, which nothing predicts")

    @property
    def trained(self) -> int:
        """The number of trained tokens."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """The metrics of one update. Means over tokens cover the tokens with a gradient, and are None without any.

    Attributes:
        version: The version of the weights after the update.
        learning_rate: The learning rate of all steps.
        loss: The loss.
        steps: Optimizer steps.
        episodes: Episodes in the rows.
        rows: Rows with a gradient.
        idle_rows: Rows without a gradient, which are not computed.
        tokens: Tokens with a gradient.
        gradient_norm: The largest norm of a step, before clipping.
        entropy: Nats per token.
        clip_share: Share of tokens without a gradient because of the clip range.
        kl: Divergence from the reference model, per token.
        mismatch_mean: Mean |Δ log p| between the sampler and the old policy, None if the latter was not computed.
        mismatch_p99: The 99th percentile of it.
        mismatch_largest: The largest of it.
        effective_share: Effective sample size of the weights old / sampler, as a share of the tokens.
        sampler_agrees: Whether the sampler's log-probabilities can replace the old policy's.
        age_mean: Mean number of versions between a row's oldest token and the update.
        age_largest: The largest of it.
        seconds: The time of the update.
        value_loss: Half the squared distance of ppo's values from the returns, before the update.
        explained_variance: The share of the returns' variance that these values explain.
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
