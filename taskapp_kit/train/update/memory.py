"""Estimates the memory and disk space that training needs, before it starts, from sizes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Literal

from taskapp_kit.errors import BadArgument
from taskapp_kit.train.update.micro_batches import FLOAT_BYTES, ModelShape

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
