"""The losses gspo, grpo and reinforce, computed from the log-probabilities of the trained tokens.

Three policies are distinguished: the sampler, the old policy (at the start of the update) and the current policy. All
tensors have the shape (rows, positions). Positions where `mask` is False have no gradient.

The loss of an update is the mean of its episodes' losses. The loss of an episode is the weighted mean of its rows'
losses, and the loss of a row is the mean over its tokens. The number of turns, branches or tokens therefore does not
change the weight of an episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from taskapp_kit.train.update.update_settings import LARGEST_WEIGHT, UpdateSettings


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """The losses of tokens. `clipped` is whether clipping removed the gradient. `weight` is the bounded ratio old / sampler."""

    per_token: torch.Tensor
    clipped: torch.Tensor
    weight: torch.Tensor
    kl: torch.Tensor | None


def row_means(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return each row's mean over its trained tokens, with the shape (rows, 1)."""
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

    Only `current` has a gradient. With gspo, the ratio belongs to the sequence: exp(mean log-ratio), with each token's
    gradient. With grpo, each token has its own ratio, and reinforce has no ratio. The KL term is exp(r - c) - (r - c) -
    1, where r and c are the log-probabilities of the reference and the current policy.
    """
    # TRL's GRPOTrainer is not used, because it needs a data set, undocumented batch keys and private methods, and does not
    # support weights of rows. Tests compare with it: for equal batches, the gradients agree to 1e-5 (test_trl.py).
    current, old, sampler = (torch.where(mask, each, 0.0) for each in (current, old, sampler))  # avoids overflow
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
    """Collects values of tokens as flat tensors on the CPU."""

    clipped: list[torch.Tensor] = field(default_factory=list)
    drifts: list[torch.Tensor] = field(default_factory=list)
    entropies: list[torch.Tensor] = field(default_factory=list)
    kls: list[torch.Tensor] = field(default_factory=list)

    def mismatch(self) -> torch.Tensor:
        """Return |Δ log p| between the sampler and the old policy, for each token for which it was measured."""
        return joined(self.drifts).abs()

    def effective_share(self) -> float | None:
        """Return the effective sample size (Σ w)² / (n Σ w²) of the weights w = old / sampler, or None for no tokens."""
        weights = joined(self.drifts).double().exp()
        return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum())) if len(weights) else None


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the tensors as one flat float tensor."""
    return torch.cat([tensor.float() for tensor in tensors]) if tensors else torch.empty(0)


def mean(values: torch.Tensor) -> float | None:
    """Return the mean, or None for an empty tensor."""
    return float(values.mean()) if len(values) else None
