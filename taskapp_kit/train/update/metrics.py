"""The numbers of one update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """The numbers of one update; those over tokens are over the tokens that gave a gradient, None where there are none.

    version: of the weights after it. steps: optimizer steps that were made. rows, tokens: with a gradient. idle_rows:
    without one, not computed. gradient_norm: the largest of a step, before it is scaled. entropy: nats per token.
    clip_share: tokens without a gradient because of the clip range. kl: from the reference model, per token. mismatch:
    |Δ log p| between the sampler and the old policy, where the latter was computed. sampler_agrees: whether the sampler's
    log-probabilities can stand for the old policy's. effective_share: effective sample size of the weights old / sampler,
    as a share of the tokens. age: versions between a row's oldest token and the update.
    """

    version: int
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


@dataclass(slots=True)
class TokenStatistics:
    """Collects numbers of tokens, as flat tensors on the CPU."""

    clipped: list[torch.Tensor] = field(default_factory=list)
    drifts: list[torch.Tensor] = field(default_factory=list)
    entropies: list[torch.Tensor] = field(default_factory=list)
    kls: list[torch.Tensor] = field(default_factory=list)

    def mismatch(self) -> torch.Tensor:
        """Return |Δ log p| between sampler and old policy of every token where both are known."""
        return joined(self.drifts).abs()

    def effective_share(self) -> float | None:
        """Return (Σ w)² / (n Σ w²) of the weights old / sampler."""
        weights = joined(self.drifts).double().exp()
        return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum())) if len(weights) else None


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return them as one flat float tensor; empty for none."""
    return torch.cat([tensor.float() for tensor in tensors]) if tensors else torch.empty(0)


def mean(values: torch.Tensor) -> float | None:
    """Return the mean, None of nothing."""
    return float(values.mean()) if len(values) else None
