"""The settings of an update, without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from taskapp_kit.errors import BadArgument

PASSES = 2
VALUE_LEARNING_RATE = 0.01


@dataclass(frozen=True, slots=True)
class PpoSettings:
    """How advantages come from values, and how the value head learns.

    discount: how much a reward counts one sampled token earlier; below 1, the value after an episode that a limit ended
    stands for what would have followed. gae_lambda: how much the difference of a later token counts one token earlier.
    whitened: whether the advantages of a batch are shifted and scaled to mean 0 and deviation 1. passes: how often an
    update goes through its minibatches. value_learning_rate: of the head. value_clip: how far a value may move in one
    update before it gives no gradient; None for any distance.
    """

    discount: float = 1.0
    # At TRL's 0.95 the first of 500 tokens would get 1e-11 of the reward; the values do the rest.
    gae_lambda: float = 1.0
    whitened: bool = False
    passes: int = PASSES
    value_learning_rate: float = VALUE_LEARNING_RATE
    value_clip: float | None = None


Loss = Literal["gspo", "grpo", "reinforce", "ppo"]

CLIP_RANGES: dict[Loss, tuple[float, float]] = {"gspo": (3e-4, 4e-4), "grpo": (0.2, 0.28), "ppo": (0.2, 0.2)}
"""How far a ratio may move below and above 1 before it gives no gradient. gspo: of the sequence, as in its paper."""

LARGEST_MISMATCH = 1e-3
"""The mean |Δ log p| between sampler and trainer up to which the sampler's log-probabilities are the old policy's."""

CLIP_TO_MISMATCH = 10
"""A clip range has to be this much wider than the mean |Δ log p|, or noise alone would clip."""

LARGEST_WEIGHT = 2.0
"""Bound of the weight old / sampler of a token (of a sequence, with gspo) that another policy sampled."""


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """How the weights are updated.

    clip: below and above 1; None for the loss's CLIP_RANGES; unused by reinforce. beta: weight of the KL divergence from
    the reference model. temperature: that of the sampling, by which logits are divided here, too. minibatches: optimizer
    steps of one update, each on other episodes. largest_gradient_norm: a longer gradient is scaled to it.
    warmup: updates before the learning rate has its value; it grows by the same amount with each of them.
    micro_batch_bytes: memory for what the backward pass needs, beside weights, gradients and optimizer. draw: names the
    random stream that assigns episodes to minibatches. ppo: used by that loss only.
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
            raise BadArgument(f"temperature is {self.temperature}; expected a number above 0 to train on.")
        if self.beta < 0:
            raise BadArgument(f"beta is {self.beta}; expected a number of at least 0.")
        if self.minibatches < 1:
            raise BadArgument(f"minibatches is {self.minibatches}; expected at least 1.")
        if self.loss == "reinforce" and self.minibatches > 1:
            raise BadArgument(
                f"reinforce with {self.minibatches} minibatches would go on from weights that did not sample the rest, "
                "without a ratio that corrects it; expected 1, or the loss grpo or gspo."
            )

    def rate(self, number: int) -> float:
        """Return the learning rate of the update with this number, from 1."""
        return self.learning_rate * min(1.0, number / (self.warmup + 1))

    @property
    def clip_range(self) -> tuple[float, float]:
        """The lowest and the highest ratio that give a gradient in the direction of their advantage."""
        below, above = self.clip or CLIP_RANGES.get(self.loss, (float("inf"), float("inf")))
        return 1 - below, 1 + above

    @property
    def largest_mismatch(self) -> float:
        """The mean |Δ log p| above which the old log-probabilities are recomputed."""
        lowest, highest = self.clip_range
        return min(LARGEST_MISMATCH, (1 - lowest) / CLIP_TO_MISMATCH, (highest - 1) / CLIP_TO_MISMATCH)
