"""The data of training: a sample, a recorded turn, a row and the numbers of an update, and the interface of a sampler.

    Sampler.sample -> Sampled -> the gateway records a RecordedTurn -> rows.py -> TrainingRow -> the update

Token ids and log-probabilities are those of the sampler and are never recomputed from text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Protocol

NOT_SAMPLED = -1
"""The policy version of a token in a row that is not trained on."""

Exclusion = Literal["auxiliary", "not_delivered", "length_mismatch", "invalid_log_prob", "no_tokens", "no_prompt"]
"""Why a turn is never trained on."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One generation of a sampler.

    token_ids: every token that was sampled, with the stop token that ended it. log_probs: natural logarithms, one for
    each of token_ids, of the distribution at the sampling temperature. finish_reason: `length` when `max_tokens` ended
    it. version: of the weights, the same for all of its tokens. seconds: from the call to the last token.
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
        """Return one continuation of the prompt.

        temperature: 0 takes the most probable token. draw: names the random stream, as in `job/place/sample/turn`; the
        same weights, prompt and draw give the same tokens where the sampler is deterministic. Cancelling the call frees
        its slot.
        """
        ...


class PolicySampler(Sampler, Protocol):
    """A sampler of a policy that learns. context_tokens: the most tokens of a prompt and its answer together."""

    context_tokens: int

    async def swap(self, weights: Mapping[str, Any], version: int) -> None:
        """Sample from these weights when this returns.

        weights: the policy's `state_dict`, torch tensors of any dtype and device; it must not change until this returns.
        version: theirs, above the present one. An answer's tokens are all of one version. Raises TrainingError.
        """
        ...


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One generation inside an attempt, as the sampler made it.

    prompt_ids: the whole prompt, earlier turns included. token_ids, log_probs, version, seconds: as in `Sampled`.
    delivered: whether the client received the whole answer. parent: the index, in the attempt, of the turn that this one
    continues: its prompt_ids begin with that turn's prompt_ids and token_ids; None for a new root. auxiliary: whether it
    answered a call of another model than the policy, such as a user simulator.
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
        """The prompt and what was sampled after it."""
        return self.prompt_ids + self.token_ids

    @property
    def exclusion(self) -> Exclusion | None:
        """Why this turn is never trained on, None if it can be. Its tokens may still be context of later turns."""
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
    """Return a turn for each stretch of tokens that were sampled, as `mask` says; each continues the one before.

    before: the number of turns that the attempt has without these; the first of them begins anew.
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
    """A turn that a row trains on: the row's tokens from start to before stop.

    index: among the turns of its episode, which are in the order of time. reward: given after it. last: whether no turn of
    the episode is trained on after it, in any row.
    """

    index: int
    start: int
    stop: int
    reward: float
    last: bool


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One branch of an attempt, for one update. All tuples but `turns` have one entry for each token.

    mask: whether the token was sampled in this branch and is trained on. log_probs: the sampler's, 0.0 where mask is
    False. versions: of the weights that sampled the token, NOT_SAMPLED where mask is False. advantages: 0.0 where mask is
    False; all equal unless credit is given per turn. group: the rollouts that are compared with each other. rollout:
    the episode. weight: this row's share of its episode, in (0, 1]; the rows of an episode sum to 1, whatever the number
    of its turns and branches. The rows of a batch count as many episodes as they have different values of `rollout`.
    turns: those whose tokens `mask` names, for losses that learn from rewards (ppo). truncated: whether the episode was
    ended by a limit and not by the environment.
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
                "expected as many of each"
            )
        if self.mask and self.mask[0]:
            raise ValueError(f"a row of rollout {self.rollout!r} trains on its first token, which nothing predicts")

    @property
    def trained(self) -> int:
        """The number of tokens that are trained on."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """The numbers of one update; those over tokens are over the tokens that gave a gradient, None where there are none.

    version: of the weights after it. learning_rate: of its steps. steps: optimizer steps that were made. rows, tokens: with
    a gradient. idle_rows: without one, not computed. gradient_norm: the largest of a step, before it is scaled. entropy:
    nats per token. clip_share: tokens without a gradient because of the clip range. kl: from the reference model, per
    token. mismatch: |Δ log p| between the sampler and the old policy, where the latter was computed. sampler_agrees:
    whether the sampler's log-probabilities can stand for the old policy's. effective_share: effective sample size of the
    weights old / sampler, as a share of the tokens. age: versions between a row's oldest token and the update. value_loss,
    explained_variance: of ppo, by the values before the update: half the squared distance from the returns, and the share
    of their variance.
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
