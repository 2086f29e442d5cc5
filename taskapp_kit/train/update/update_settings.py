"""The settings of an update. This module needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from taskapp_kit.errors import BadArgument

PASSES = 2
VALUE_LEARNING_RATE = 0.01


@dataclass(frozen=True, slots=True)
class PpoSettings:
    """How advantages are computed from values, and how the value head learns.

    Attributes:
        discount: The discount per sampled token. Below 1, the return of an episode that a limit ended includes the value
            after it.
        gae_lambda: The decay of a later token's difference per token.
        whitened: Whether the advantages of a batch are scaled to mean 0 and deviation 1.
        passes: How often an update iterates over its minibatches.
        value_learning_rate: The learning rate of the head.
        value_clip: How far a value may move in one update before it has no gradient; None for no limit.
    """

    discount: float = 1.0
    # With TRL's 0.95, the first of 500 tokens would receive 1e-11 of the reward.
    gae_lambda: float = 1.0
    whitened: bool = False
    passes: int = PASSES
    value_learning_rate: float = VALUE_LEARNING_RATE
    value_clip: float | None = None


Loss = Literal["gspo", "grpo", "reinforce", "ppo"]

CLIP_RANGES: dict[Loss, tuple[float, float]] = {"gspo": (3e-4, 4e-4), "grpo": (0.2, 0.28), "ppo": (0.2, 0.2)}
"""How far a ratio may be below and above 1 before it has no gradient. gspo uses the ratio of the sequence, as in its paper."""

LARGEST_MISMATCH = 1e-3
"""The mean |Δ log p| between sampler and trainer up to which the sampler's log-probabilities replace the old policy's."""

CLIP_TO_MISMATCH = 10
"""A clip range must be this much wider than the mean |Δ log p|, because otherwise noise alone would clip."""

LARGEST_WEIGHT = 2.0
"""The largest weight old / sampler of a token (with gspo, of a sequence)."""


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """How the weights are updated.

    Attributes:
        learning_rate: The learning rate of AdamW.
        loss: The loss.
        clip: The clip range below and above 1, None for the loss's CLIP_RANGES. reinforce does not use it.
        beta: The weight of the KL divergence from the reference model.
        temperature: The sampling temperature, by which the update also divides logits.
        minibatches: Optimizer steps of one update, each on different episodes.
        largest_gradient_norm: Longer gradients are scaled to this norm.
        weight_decay: The weight decay of AdamW.
        precision: The precision of the computation. The weights are fp32.
        micro_batch_bytes: Memory of the backward pass, without weights, gradients and optimizer.
        warmup: The number of updates over which the learning rate grows linearly.
        draw: Names the random stream that assigns episodes to minibatches.
        ppo: The settings of the loss ppo.
    """

    learning_rate: float
    loss: Loss = "gspo"
    clip: tuple[float, float] | None = None
    beta: float = 0.0
    temperature: float = 1.0
    minibatches: int = 1
    largest_gradient_norm: float = 1.0
    weight_decay: float = 0.0
    precision: Literal["fp32", "bf16"] = "fp32"
    micro_batch_bytes: int = 2**30
    warmup: int = 0
    draw: str = ""
    ppo: PpoSettings = field(default_factory=PpoSettings)

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise BadArgument(f"temperature is {self.temperature}. Expected a number above 0 for training.")
        if self.beta < 0:
            raise BadArgument(f"beta is {self.beta}. Expected a number of at least 0.")
        if self.minibatches < 1:
            raise BadArgument(f"minibatches is {self.minibatches}. Expected at least 1.")
        if self.loss == "reinforce" and self.minibatches > 1:
            raise BadArgument(
                f"reinforce with {self.minibatches} minibatches would update weights that did not sample the later "
                "minibatches, without correcting for it. Expected 1, or the loss grpo or gspo."
            )

    def rate(self, number: int) -> float:
        """Return the learning rate of the update with this number, from 1."""
        return self.learning_rate * min(1.0, number / (self.warmup + 1))

    @property
    def clip_range(self) -> tuple[float, float]:
        """The lowest and the highest probability ratio that the loss does not clip."""
        below, above = self.clip or CLIP_RANGES.get(self.loss, (float("inf"), float("inf")))
        return 1 - below, 1 + above

    @property
    def largest_mismatch(self) -> float:
        """The mean |Δ log p| above which the old log-probabilities are recomputed."""
        lowest, highest = self.clip_range
        return min(LARGEST_MISMATCH, (1 - lowest) / CLIP_TO_MISMATCH, (highest - 1) / CLIP_TO_MISMATCH)
