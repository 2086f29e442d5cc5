"""The losses of an update: gspo, grpo and reinforce, from the log-probabilities of the trained tokens.

Three policies are distinguished: the sampler, the old policy (at the start of the update) and the current policy. All
tensors are (rows, positions). Positions where `mask` is False have no gradient.

The loss of an update is the mean over its episodes, an episode's loss the weighted mean of its rows, and a row's loss the
mean over its tokens. So the number of turns, branches or tokens does not change an episode's weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from taskapp_kit.train.update.update_settings import LARGEST_WEIGHT, UpdateSettings


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """The losses of tokens. clipped: whether the clip range removed the gradient. weight: old / sampler, bounded."""

    per_token: torch.Tensor
    clipped: torch.Tensor
    weight: torch.Tensor
    kl: torch.Tensor | None


def row_means(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return each row's mean over its trained tokens, (rows, 1)."""
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
    """Return the loss of each token. All tensors except `advantages` and `mask` are log-probabilities.

    Only `current` has a gradient. The ratio is the sequence's with gspo (exp(mean log-ratio), with each token's gradient)
    and the token's with grpo; reinforce has none. The KL term is exp(r - c) - (r - c) - 1 for the log-probabilities r of
    the reference and c of the current policy.
    """
    # TRL's GRPOTrainer is not used: it needs a data set, undocumented batch keys and private methods, and has no weights of
    # rows. It is a test oracle instead: on equal batches the gradients agree to 1e-5 (test_trl.py).
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
    """Collects values per token, as flat tensors on the CPU."""

    clipped: list[torch.Tensor] = field(default_factory=list)
    drifts: list[torch.Tensor] = field(default_factory=list)
    entropies: list[torch.Tensor] = field(default_factory=list)
    kls: list[torch.Tensor] = field(default_factory=list)

    def mismatch(self) -> torch.Tensor:
        """Return |Δ log p| between sampler and old policy for each token for which it was measured."""
        return joined(self.drifts).abs()

    def effective_share(self) -> float | None:
        """Return (Σ w)² / (n Σ w²) of the weights old / sampler."""
        weights = joined(self.drifts).double().exp()
        return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum())) if len(weights) else None


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the tensors as one flat float tensor."""
    return torch.cat([tensor.float() for tensor in tensors]) if tensors else torch.empty(0)


def mean(values: torch.Tensor) -> float | None:
    """Return the mean, None if there are no values."""
    return float(values.mean()) if len(values) else None
