"""The settings of an update. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from taskapp_kit.errors import BadArgument

PASSES = 2
VALUE_LEARNING_RATE = 0.01


@dataclass(frozen=True, slots=True)
class PpoSettings:
    """How advantages are computed from values, and how the value head is trained.

    Attributes:
        discount: The discount per sampled token. If it is less than 1 and a limit ended the episode, the return
            includes the value after the episode.
        gae_lambda: The factor per token by which the differences of later tokens count less.
        whitened: Whether the advantages of a batch are scaled to mean 0 and deviation 1.
        passes: How often an update iterates over its minibatches.
        value_learning_rate: The learning rate of the value head.
        value_clip: How far a value may change in one update before its gradient is 0. None means no limit.
    """

    discount: float = 1.0
    # With TRL's default of 0.95, the first of 500 tokens would receive 1e-11 of the reward.
    gae_lambda: float = 1.0
    whitened: bool = False
    passes: int = PASSES
    value_learning_rate: float = VALUE_LEARNING_RATE
    value_clip: float | None = None


Loss = Literal["gspo", "grpo", "reinforce", "ppo"]

CLIP_RANGES: dict[Loss, tuple[float, float]] = {"gspo": (3e-4, 4e-4), "grpo": (0.2, 0.28), "ppo": (0.2, 0.2)}
"""How far a ratio may be below and above 1 before its gradient is 0. gspo uses the sequence's ratio, as in its paper."""

LARGEST_MISMATCH = 1e-3
"""Up to this mean |Δ log p|, the sampler's log-probabilities replace the old policy's."""

CLIP_TO_MISMATCH = 10
"""A clip range must be this many times as wide as the mean |Δ log p|. Otherwise noise alone would cause clipping."""

LARGEST_WEIGHT = 2.0
"""The maximum weight old / sampler of a token or, with gspo, of a sequence."""


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """How the weights are updated.

    Attributes:
        learning_rate: The learning rate of AdamW.
        loss: The loss.
        clip: The clip range below and above 1. None selects the loss's range in CLIP_RANGES. reinforce does not use it.
        beta: The weight of the KL divergence from the reference model.
        temperature: The sampling temperature, by which the update also divides logits.
        minibatches: The number of optimizer steps of one update. Each step uses different episodes.
        largest_gradient_norm: Gradients with a larger norm are scaled to this norm.
        weight_decay: The weight decay of AdamW.
        precision: The precision of the computation. The weights are fp32.
        micro_batch_bytes: The memory of the backward pass in bytes, without weights, gradients and optimizer.
        warmup: The number of updates over which the learning rate grows linearly.
        draw: The name of the random stream that assigns episodes to minibatches.
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
            raise BadArgument(f"`temperature` is {self.temperature}. Expected a number greater than 0 for training.")
        if self.beta < 0:
            raise BadArgument(f"`beta` is {self.beta}. Expected a number of at least 0.")
        if self.minibatches < 1:
            raise BadArgument(f"`minibatches` is {self.minibatches}. Expected at least 1.")
        if self.loss == "reinforce" and self.minibatches > 1:
            raise BadArgument(
                f"`minibatches` is {self.minibatches}. reinforce does not correct for earlier steps of an update. "
                "Use 1 minibatch, or the loss grpo or gspo."
            )

    def rate(self, number: int) -> float:
        """Return the learning rate of an update. The first update has the number 1."""
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
