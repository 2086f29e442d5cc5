"""The memory and disk space that training needs, from sizes alone, and the micro-batches that fit into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from random import Random
from typing import Any, Literal

from taskapp_kit.errors import BadArgument
from taskapp_kit.train.turns import TrainingRow

FLOAT_BYTES = 4
LOGITS_COPIES = 4
"""Of a position's logits: the logits, divided by the temperature, their gradient, and a softmax in between."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a decoder of transformers that decide what its backward pass needs."""

    layers: int
    hidden: int
    intermediate: int
    query: int
    key_value: int
    vocabulary: int

    @classmethod
    def of(cls, config: Any) -> ModelShape:
        """Read them from a model's config."""
        heads = config.num_attention_heads
        head = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            query=heads * head,
            key_value=(getattr(config, "num_key_value_heads", None) or heads) * head,
            vocabulary=config.vocab_size,
        )

    def backward_bytes(self, rows: int, length: int, predicted: int) -> int:
        """Estimate what a backward pass over padded rows needs beside weights and gradients.

        length: tokens of the longest row. predicted: positions whose logits are computed. Counted for Llama and Qwen2
        in fp32; a test compares it with what torch stores. Attention is taken to store no scores.
        """
        token = self.layers * (10 * self.hidden + 4 * self.intermediate + 7 * self.query + 5 * self.key_value)
        return FLOAT_BYTES * rows * (length * token + predicted * self.vocabulary * LOGITS_COPIES)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The rows of one optimizer step. episodes: how many there are, those without an advantage included."""

    episodes: int
    micro_batches: tuple[tuple[TrainingRow, ...], ...]


def predicted_positions(rows: Sequence[TrainingRow]) -> list[int]:
    """Return the positions of the tokens that any of the rows trains on, in order."""
    return sorted({position for row in rows for position, trained in enumerate(row.mask) if trained})


def has_gradient(row: TrainingRow, beta: float) -> bool:
    """Whether the row changes the gradient: without an advantage it does by the KL term only."""
    return any(row.mask) and (beta > 0 or any(row.advantages))


def plan_minibatches(
    rows: Sequence[TrainingRow], minibatches: int, beta: float, shape: ModelShape, budget_bytes: int, order: Random
) -> list[Minibatch]:
    """Divide the rows: an episode's rows stay in one minibatch, and the given order of rows is of no effect.

    Rows that cannot change the gradient are in no micro-batch. A row that exceeds the budget alone is a micro-batch.
    """
    episodes: dict[str, list[TrainingRow]] = {}
    for row in in_order(rows):
        episodes.setdefault(row.rollout, []).append(row)
    names = list(episodes)
    if minibatches > 1:
        order.shuffle(names)
    plan = []
    for number in range(min(minibatches, len(names))):
        share = names[number::minibatches]
        chosen = [row for name in share for row in episodes[name] if has_gradient(row, beta)]
        plan.append(Minibatch(len(share), tuple(micro_batches(chosen, shape, budget_bytes))))
    return plan


def in_order(rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    """Return the rows in an order that does not depend on the given one."""
    return sorted(rows, key=lambda row: (row.group, row.rollout, row.ids, row.mask))


def micro_batches(rows: Sequence[TrainingRow], shape: ModelShape, budget_bytes: int) -> list[tuple[TrainingRow, ...]]:
    """Fill micro-batches with rows of similar length, the longest first: memory fails early or never."""
    filled: list[tuple[TrainingRow, ...]] = []
    for row in sorted(rows, key=lambda row: -len(row.ids)):
        if filled:
            larger = (*filled[-1], row)
            predicted = len(predicted_positions(larger))
            if shape.backward_bytes(len(larger), len(larger[0].ids), predicted) <= budget_bytes:
                filled[-1] = larger
                continue
        filled.append((row,))
    return filled


TrainerMode = Literal["full", "lora"]

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The layers of Llama, Qwen2 and Qwen3 that can have an adapter."""

ADAM_BYTES = 8
"""Of each trained weight: AdamW's two means in fp32."""

PROCESS_BYTES = 600_000_000
"""Of a process that has imported torch and transformers, before it has a model."""

DRAW_BYTES = 24
"""Of each logit while a token is drawn: it, its log-probability, and the cumulative distribution in fp64."""

STEP_COPIES = 2
"""Of the largest tensor while AdamW makes a step."""

# Measured peaks at the sizes of SmolLM2-135M were 4.8, 4.7 and 2.8 GB (full, full with bf16, 2 % of the parameters
# trained); the estimates are 5.0, 5.3 and 3.2.
ALLOCATED_SHARE = 1.15
"""What the process holds, of what is in use: freed memory in pieces is not given back. At the sizes of SmolLM2-135M peaks
were 0 to 11 % above the sum (2026-11-22)."""

VALUE_COPIES = 3
"""Of a trained token's hidden state: as the model gave it, of length 1, and joined with the others."""

MASK_BYTES = 5
"""Of each pair of positions of a prompt: the attention mask as booleans and as floats."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The batches of a job. rows: of an update. length: tokens of the longest row. predicted: how many of them are trained
    on. sampled: answers that are generated at once; 0 for a job that samples nothing."""

    rows: int
    length: int
    predicted: int
    sampled: int


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by what they are for, in all processes of a job.

    working: of the largest of an update's backward pass, its step, and sampling.
    """

    weights: int
    gradients: int
    optimizer: int
    sampler: int
    reference: int
    working: int
    process: int = PROCESS_BYTES
    """Of what is in memory without a model."""

    @property
    def total(self) -> int:
        """What the processes hold at their peak."""
        return round(ALLOCATED_SHARE * float(sum(astuple(self))))


def adapter_parameters(shape: ModelShape, rank: int, targets: Sequence[str]) -> int:
    """Return how many weights LoRA adds to the linear layers named so, such as `q_proj`. Raises BadArgument."""
    sizes = {
        "q_proj": shape.hidden + shape.query,
        "k_proj": shape.hidden + shape.key_value,
        "v_proj": shape.hidden + shape.key_value,
        "o_proj": shape.query + shape.hidden,
        "gate_proj": shape.hidden + shape.intermediate,
        "up_proj": shape.hidden + shape.intermediate,
        "down_proj": shape.intermediate + shape.hidden,
    }
    if unknown := [target for target in targets if target not in sizes]:
        raise BadArgument(
            f"{unknown[0]!r} is no linear layer of the model; expected some of {', '.join(LINEAR_LAYERS)}."
        )
    return shape.layers * rank * sum(sizes[target] for target in targets)


def estimate_memory(
    shape: ModelShape,
    parameters: int,
    batch: BatchShape,
    *,
    mode: TrainerMode,
    precision: Literal["fp32", "bf16"],
    micro_batch_bytes: int,
    adapter: int = 0,
    reference: bool = False,
    values: bool = False,
    replicas: int = 0,
) -> MemoryEstimate:
    """Estimate what a job that samples and updates needs at its peak.

    parameters: of the base model. adapter: `adapter_parameters`, with mode lora. reference: whether there is a model for
    the KL term. values: whether there is a value head, which learns from the hidden states of all trained tokens. replicas:
    processes that sample, beside one that updates and the trainer's own; 0 where all is in one. All weights are stored in
    fp32; bf16 adds a copy of them for the time of a pass.
    """
    adapter = adapter if mode == "lora" else 0
    trained = adapter or parameters
    weights = FLOAT_BYTES * (parameters + adapter)
    whole, one = (shape.backward_bytes(rows, batch.length, batch.predicted) for rows in (batch.rows, 1))
    states = VALUE_COPIES * FLOAT_BYTES * batch.rows * batch.predicted * shape.hidden if values else 0
    backward = max(one, min(whole, micro_batch_bytes)) + (weights // 2 if precision == "bf16" else 0)
    return MemoryEstimate(
        weights=weights,
        gradients=FLOAT_BYTES * trained,
        optimizer=ADAM_BYTES * trained,
        sampler=weights * max(1, replicas) if batch.sampled else 0,
        reference=FLOAT_BYTES * parameters if reference else 0,
        working=max(
            backward,
            states,
            _sampling_bytes(shape, batch) * max(1, replicas),
            STEP_COPIES * _largest_tensor(shape, trained),
        ),
        process=PROCESS_BYTES * (replicas + 2 if replicas else 1),
    )


def checkpoint_bytes(trained: int) -> int:
    """Return about how large a checkpoint is; trained: parameters that are updated, those of the adapter with LoRA."""
    return (FLOAT_BYTES + ADAM_BYTES) * trained


def memory_problem(needed: Mapping[TrainerMode, MemoryEstimate], mode: TrainerMode, available: int) -> str | None:
    """Return why a job cannot run in `available` bytes and what to change, None if it can.

    needed: the estimate for `mode`, and for lora where that is possible.
    """
    total = needed[mode].total
    if total <= available:
        return None
    found = f"The job needs about {_gb(total)} GB with {_NAMES[mode]}, you have {_gb(available)}"
    if "lora" in needed and needed["lora"].total <= available:
        return f'{found}: trainer_mode = "lora" needs about {_gb(needed["lora"].total)}.'
    return f"{found}: use a smaller model, shorter rows, or a machine with more memory."


_NAMES: dict[TrainerMode, str] = {"full": "full training", "lora": "LoRA"}


def _sampling_bytes(shape: ModelShape, batch: BatchShape) -> int:
    """Return what a batch of answers needs: its cache, the pass over its prompts in one layer, and its logits."""
    cache = batch.length * (shape.layers + 1) * 2 * shape.key_value
    layer = batch.length * (4 * shape.hidden + 3 * shape.intermediate)
    mask = MASK_BYTES * batch.length**2
    return batch.sampled * (FLOAT_BYTES * (cache + layer) + mask + DRAW_BYTES * shape.vocabulary)


def _largest_tensor(shape: ModelShape, trained: int) -> int:
    return FLOAT_BYTES * min(trained, shape.vocabulary * shape.hidden)


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f}".removesuffix(".0")
