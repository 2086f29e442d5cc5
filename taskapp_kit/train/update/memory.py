"""Estimates the memory and disk space that training needs, and plans micro-batches that fit into the memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from random import Random
from typing import Any, Literal

from taskapp_kit.errors import BadArgument
from taskapp_kit.train.turns import TrainingRow

FLOAT_BYTES = 4
LOGITS_COPIES = 4
"""Number of copies of a position's logits: the logits, the scaled logits, their gradient, and a softmax."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a transformers decoder that determine the memory of its backward pass."""

    layers: int
    hidden: int
    intermediate: int
    query: int
    key_value: int
    vocabulary: int

    @classmethod
    def of(cls, config: Any) -> ModelShape:
        """Read the sizes from a model's config."""
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
        """Estimate the memory of a backward pass over padded rows, without weights and gradients.

        `length` is the number of tokens of the longest row, and `predicted` is the number of positions with logits. The
        formula is valid for Llama and Qwen2 in fp32, with attention that does not store scores. A test compares it with
        torch.
        """
        token = self.layers * (10 * self.hidden + 4 * self.intermediate + 7 * self.query + 5 * self.key_value)
        return FLOAT_BYTES * rows * (length * token + predicted * self.vocabulary * LOGITS_COPIES)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The rows of one optimizer step. `episodes` is the number of episodes, including episodes without an advantage."""

    episodes: int
    micro_batches: tuple[tuple[TrainingRow, ...], ...]


def predicted_positions(rows: Sequence[TrainingRow]) -> list[int]:
    """Return the positions of tokens that at least one row trains on, in order."""
    return sorted({position for row in rows for position, trained in enumerate(row.mask) if trained})


def has_gradient(row: TrainingRow, beta: float) -> bool:
    """Return whether the row has a gradient. A row without an advantage only has the gradient of the KL term."""
    return any(row.mask) and (beta > 0 or any(row.advantages))


def plan_minibatches(
    rows: Sequence[TrainingRow], minibatches: int, beta: float, shape: ModelShape, budget_bytes: int, order: Random
) -> list[Minibatch]:
    """Divide the rows into minibatches, independently of the order of `rows`. An episode's rows stay in one minibatch.

    Rows without a gradient are not in micro-batches. A row that exceeds the budget is a separate micro-batch.
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
    """Return the rows in a canonical order."""
    return sorted(rows, key=lambda row: (row.group, row.rollout, row.ids, row.mask))


def micro_batches(rows: Sequence[TrainingRow], shape: ModelShape, budget_bytes: int) -> list[tuple[TrainingRow, ...]]:
    """Fill micro-batches with rows of similar length. The longest come first, so that a lack of memory is detected early."""
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
"""The linear layers of Llama, Qwen2 and Qwen3 that can have an adapter."""

ADAM_BYTES = 8
"""Number of bytes of AdamW's two means for each trained weight, in fp32."""

PROCESS_BYTES = 600_000_000
"""Memory in bytes of a process with torch and transformers, without a model."""

DRAW_BYTES = 24
"""Number of bytes for each logit while a token is drawn: logit, log-probability, and cumulative distribution in fp64."""

STEP_COPIES = 2
"""Number of copies of the largest tensor during a step of AdamW."""

# At the sizes of SmolLM2-135M, the measured peaks were 4.8 GB (full), 4.7 GB (full with bf16) and 2.8 GB (2 % of the
# parameters trained). The estimates are 5.0, 5.3 and 3.2 GB.
ALLOCATED_SHARE = 1.15
"""The allocated memory relative to the used memory, because fragments are not returned. At the sizes of SmolLM2-135M, peaks
were 0 to 11 % above the sum (2026-11-22)."""

VALUE_COPIES = 3
"""Number of copies of a trained token's hidden state: original, normalized, and concatenated."""

MASK_BYTES = 5
"""Number of bytes for each pair of positions in a prompt: the attention mask as boolean and as float."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The batches of a job.

    Attributes:
        rows: The number of rows of an update.
        length: The number of tokens of the longest row.
        predicted: The number of trained tokens of the longest row.
        sampled: The number of replies that are generated concurrently, or 0 for a job without sampling.
    """

    rows: int
    length: int
    predicted: int
    sampled: int


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The memory of all processes of a job by purpose, in bytes.

    `working` is the largest of three values: an update's backward pass, its step, and sampling. `process` is the memory
    of the processes without models.
    """

    weights: int
    gradients: int
    optimizer: int
    sampler: int
    reference: int
    working: int
    process: int = PROCESS_BYTES

    @property
    def total(self) -> int:
        """The peak memory of all processes in bytes."""
        return round(ALLOCATED_SHARE * float(sum(astuple(self))))


def adapter_parameters(shape: ModelShape, rank: int, targets: Sequence[str]) -> int:
    """Return the number of weights that LoRA adds to `targets`. Raises BadArgument if a target is not a linear layer."""
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
            f"{unknown[0]!r} is not a linear layer of the model. The linear layers are {', '.join(LINEAR_LAYERS)}."
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
    """Estimate the peak memory of a job that samples and updates.

    All weights are stored in fp32. Computing in bf16 adds a temporary copy.

    Args:
        shape: The sizes of the base model.
        parameters: The number of weights of the base model.
        batch: The batches of the job.
        mode: Whether all weights or an adapter are trained.
        precision: The precision of the computation.
        micro_batch_bytes: The memory of a backward pass in bytes.
        adapter: The result of `adapter_parameters` for the mode lora.
        reference: Whether the job has a reference model for the KL term.
        values: Whether the job has a value head, which is trained on the hidden states of all trained tokens.
        replicas: The number of sampler processes, in addition to the trainer and one updating process. 0 means that the
            trainer samples and updates.
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
    """Return the approximate size of a checkpoint in bytes. `trained` is the number of trained weights."""
    return (FLOAT_BYTES + ADAM_BYTES) * trained


def memory_problem(needed: Mapping[TrainerMode, MemoryEstimate], mode: TrainerMode, available: int) -> str | None:
    """Return why a job cannot run in `available` bytes and what to change, or None if it can run.

    `needed` contains the estimate for `mode`. If it also contains the estimate for lora, the advice may be to use lora.
    """
    total = needed[mode].total
    if total <= available:
        return None
    problem = f"The job needs about {_gb(total)} GB of memory with {_NAMES[mode]}, but only {_gb(available)} GB are available."
    if "lora" in needed and needed["lora"].total <= available:
        return f'{problem} trainer_mode = "lora" needs about {_gb(needed["lora"].total)} GB.'
    return f"{problem} Use a smaller model, shorter rows, or a machine with more memory."


_NAMES: dict[TrainerMode, str] = {"full": "full training", "lora": "LoRA"}


def _sampling_bytes(shape: ModelShape, batch: BatchShape) -> int:
    """Return the memory of a batch of replies in bytes: cache, pass over the prompts in one layer, and logits."""
    cache = batch.length * (shape.layers + 1) * 2 * shape.key_value
    layer = batch.length * (4 * shape.hidden + 3 * shape.intermediate)
    mask = MASK_BYTES * batch.length**2
    return batch.sampled * (FLOAT_BYTES * (cache + layer) + mask + DRAW_BYTES * shape.vocabulary)


def _largest_tensor(shape: ModelShape, trained: int) -> int:
    return FLOAT_BYTES * min(trained, shape.vocabulary * shape.hidden)


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f}".removesuffix(".0")
