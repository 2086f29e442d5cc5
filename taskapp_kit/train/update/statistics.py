"""Collects the numbers of one update from its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


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
