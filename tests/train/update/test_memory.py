"""The estimate of memory, beside what was measured and beside real tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from taskapp_kit.errors import BadArgument
from taskapp_kit.train.update.memory import BatchShape, ModelShape, adapter_parameters, estimate_memory, memory_problem

SMOLLM2 = ModelShape(layers=30, hidden=576, intermediate=1536, query=576, key_value=192, vocabulary=49152)
PARAMETERS = 134_515_008
BATCH = BatchShape(rows=8, length=200, predicted=40, sampled=32)
OPTIONS: dict[str, Any] = {"precision": "fp32", "micro_batch_bytes": 2**30}


@pytest.mark.parametrize(
    ("mode", "precision", "adapter", "peak"),
    [("full", "fp32", 0, 4.85e9), ("full", "bf16", 0, 4.72e9), ("lora", "fp32", 3_317_760, 2.79e9)],
)
def test_the_estimate_is_what_was_measured_or_a_quarter_more(
    mode: Any, precision: Any, adapter: int, peak: float
) -> None:
    """Peaks of the resident set of a process that sampled and made two updates, with random weights (2026-11-22)."""
    estimate = estimate_memory(
        SMOLLM2, PARAMETERS, BATCH, mode=mode, precision=precision, adapter=adapter, micro_batch_bytes=2**30
    )
    assert peak <= estimate.total <= 1.25 * peak


def test_it_grows_with_all_that_needs_memory() -> None:
    def total(
        batch: BatchShape = BATCH, parameters: int = PARAMETERS, shape: ModelShape = SMOLLM2, **other: Any
    ) -> int:
        return estimate_memory(shape, parameters, batch, **{"mode": "full", **OPTIONS, **other}).total

    whole = total()
    assert total(reference=True) > total(precision="bf16") > whole
    assert total(parameters=2 * PARAMETERS) > 1.5 * whole
    assert total(mode="lora", adapter=10**6) < whole
    assert total(dataclasses.replace(BATCH, length=2000)) > whole  # one row exceeds the budget
    assert total(dataclasses.replace(BATCH, rows=800)) == whole  # micro-batches
    assert total(dataclasses.replace(BATCH, rows=1)) < whole
    assert total(dataclasses.replace(BATCH, sampled=3200)) > whole
    assert total(micro_batch_bytes=2**32, batch=dataclasses.replace(BATCH, rows=800)) > whole


def test_adapters() -> None:
    assert adapter_parameters(SMOLLM2, 16, ["q_proj", "v_proj"]) == 30 * 16 * (576 + 576 + 576 + 192)
    with pytest.raises(BadArgument, match="'lm_head' is not a linear layer"):
        adapter_parameters(SMOLLM2, 16, ["lm_head"])


def test_a_job_that_does_not_fit_says_what_does() -> None:
    batch = dataclasses.replace(BATCH, rows=32)
    full = estimate_memory(SMOLLM2, PARAMETERS, batch, mode="full", reference=True, **OPTIONS)
    lora = estimate_memory(SMOLLM2, PARAMETERS, batch, mode="lora", adapter=10**6, reference=True, **OPTIONS)
    both: dict[Any, Any] = {"full": full, "lora": lora}
    assert memory_problem(both, "full", full.total) is None
    assert memory_problem(both, "lora", lora.total) is None
    adapter = 'trainer_mode = "lora" needs about 3.8 GB.'
    assert memory_problem(both, "full", 4 * 10**9).endswith(adapter)
    for estimates, mode, available in ((both, "full", 1), ({"full": full}, "full", 4), (both, "lora", 2)):
        problem = memory_problem(estimates, mode, available * 10**9)
        assert problem is not None and adapter not in problem


@pytest.mark.train
@pytest.mark.parametrize("tied", [False, True])
def test_weights_gradients_and_optimizer_are_those_of_an_update(tied: bool) -> None:
    import torch

    from tests.train.tiny_models import tiny_model

    model = tiny_model(tie_word_embeddings=tied)
    parameters = sum(each.numel() for each in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    optimizer.step()
    estimate = estimate_memory(ModelShape.of(model.config), parameters, BATCH, mode="full", **OPTIONS)
    assert estimate.weights == sum(each.nbytes for each in model.parameters())
    assert estimate.gradients == sum(each.grad.nbytes for each in model.parameters())
    steps = 4 * len(optimizer.state)
    assert (
        estimate.optimizer == sum(each.nbytes for state in optimizer.state.values() for each in state.values()) - steps
    )
