"""The losses of an update: gspo, grpo and reinforce, from the log-probabilities of the tokens that are trained on.

Three policies are told apart: the one that sampled, the old one (at the start of the update) and the current one.
All tensors are (rows, positions); a position where `mask` is False changes no gradient.

The loss of an update is the mean over its episodes; an episode's is the mean of its rows by their weights, and a row's the
mean over its tokens. So neither turns nor branches nor length give an episode more weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from taskapp_kit.train.update.update_settings import LARGEST_WEIGHT, UpdateSettings


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """per_token: the loss. clipped: where the clip range took the gradient away. weight: old / sampler, bounded."""

    per_token: torch.Tensor
    clipped: torch.Tensor
    weight: torch.Tensor
    kl: torch.Tensor | None


def row_means(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return each row's mean over its tokens that are trained on, (rows, 1)."""
    return torch.where(mask, values, 0.0).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def token_losses(
    settings: UpdateSettings,
    *,
    current: torch.Tensor,
    old: torch.Tensor,
    sampler: torch.Tensor,
    reference: torch.Tensor | None,
    advantages: torch.Tensor,
    mask: torch.Tensor,
) -> TokenLosses:
    """Return the loss of each token. All but `advantages` and `mask` are log-probabilities; `current` has a gradient.

    gspo: the ratio is the sequence's, exp(mean log-ratio), with each token's own gradient. grpo: the token's. reinforce:
    none. The KL term is exp(r - c) - (r - c) - 1 with the reference's and the current log-probability.
    """
    # TRL's GRPOTrainer would need a data set, undocumented keys of a batch and private methods, and cannot say what share
    # of its episode a row is. So it is an oracle instead: on equal batches the gradients agree to 1e-5 (test_trl.py).
    current, old, sampler = (torch.where(mask, each, 0.0) for each in (current, old, sampler))  # no overflow elsewhere
    moved, drifted = current - old, old - sampler
    if settings.loss == "gspo":
        drifted = row_means(drifted, mask).expand_as(mask)
        ratio = torch.exp(row_means(moved.detach(), mask) + current - current.detach())
    else:
        ratio = torch.exp(moved)
    weight = torch.exp(drifted).clamp(max=LARGEST_WEIGHT)
    lowest, highest = settings.clip_range
    if settings.loss == "reinforce":
        gain = current * advantages
    else:
        gain = torch.minimum(ratio * advantages, ratio.clamp(lowest, highest) * advantages)
    clipped = ((ratio < lowest) & (advantages < 0)) | ((ratio > highest) & (advantages > 0))
    loss = -weight * gain
    kl = None
    if reference is not None:
        distance = torch.where(mask, reference, 0.0) - current
        kl = torch.exp(distance) - distance - 1
        loss = loss + settings.beta * kl
    return TokenLosses(loss, clipped, weight, kl)


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
