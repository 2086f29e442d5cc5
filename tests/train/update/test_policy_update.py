"""What an update changes, what it leaves, what it reports, and what it refuses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from taskapp_kit.errors import BadArgument, TrainingError
from taskapp_kit.train.turns import NOT_SAMPLED, TrainingRow
from taskapp_kit.train.update.memory import FLOAT_BYTES, LOGITS_COPIES, ModelShape
from taskapp_kit.train.update.policy_update import PaddedRows, PolicyUpdate
from taskapp_kit.train.update.update_settings import UpdateSettings
from tests.train.tiny_models import CONTEXT, same_model, tiny_model
from tests.train.update.rows import random_rows

pytestmark = pytest.mark.train

SETTINGS = UpdateSettings(learning_rate=1e-3, loss="grpo")


def weights(model: Any) -> dict[str, Any]:
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(each, other[name]) for name, each in one.items())


def without_advantages(rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    return [dataclasses.replace(row, advantages=(0.0,) * len(row.ids)) for row in rows]


def test_rows_of_another_temperature_are_noticed() -> None:
    model = tiny_model()
    rows = random_rows(model, temperature=0.7)
    metrics = PolicyUpdate(model, SETTINGS).train_step(rows)
    assert metrics.mismatch_mean > 0.01
    assert not metrics.sampler_agrees


def test_a_batch_without_spread_changes_nothing() -> None:
    update = PolicyUpdate(tiny_model(), SETTINGS, version=4)
    rows = random_rows(update.model)
    update.train_step(rows)  # Adam has momentum now
    before = weights(update.model)
    metrics = update.train_step(without_advantages(rows))
    assert equal(weights(update.model), before)
    assert (metrics.steps, metrics.rows, metrics.idle_rows, metrics.version) == (0, 0, len(rows), 6)
    assert (metrics.entropy, metrics.clip_share, metrics.mismatch_mean, metrics.effective_share) == (None,) * 4


def test_the_learning_rate_grows_with_the_updates_that_the_weights_have() -> None:
    model = tiny_model()
    settings = dataclasses.replace(SETTINGS, warmup=3)
    update = PolicyUpdate(model, settings)
    rates = [update.train_step(random_rows(model)).learning_rate for _ in range(5)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])
    assert PolicyUpdate(model, settings, version=2).train_step(random_rows(model)).learning_rate == rates[2]
    assert SETTINGS.rate(1) == 1e-3


def test_control_a_learning_rate_of_0_changes_nothing() -> None:
    model = tiny_model()
    before = weights(model)
    metrics = PolicyUpdate(model, dataclasses.replace(SETTINGS, learning_rate=0.0)).train_step(random_rows(model))
    assert metrics.gradient_norm > 0
    assert equal(weights(model), before)


def test_bf16_keeps_fp32_weights_and_does_not_take_the_samplers_log_probabilities() -> None:
    """The gradient is that of fp32, but for rounding; the mismatch is noticed, so no ratio is made of it."""
    model = tiny_model()
    rows = random_rows(model, groups=4, size=4)
    settings = dataclasses.replace(SETTINGS, loss="gspo", largest_gradient_norm=math.inf)
    updates = [
        PolicyUpdate(same_model(model), dataclasses.replace(settings, precision=precision))
        for precision in ("fp32", "bf16")
    ]
    gradients = []
    for update in updates:
        update.optimizer.register_step_pre_hook(
            lambda optimizer, *_: gradients.append(
                torch.cat([each.grad.flatten() for each in optimizer.param_groups[0]["params"]])
            )
        )
    fp32, bf16 = (update.train_step(rows) for update in updates)
    assert {each.dtype for each in updates[1].model.parameters()} == {torch.float32}
    assert {each.dtype for state in updates[1].optimizer.state.values() for each in state.values()} == {torch.float32}
    assert fp32.mismatch_mean < 1e-5
    assert fp32.sampler_agrees
    assert bf16.mismatch_mean > 3e-5
    assert not bf16.sampler_agrees
    assert float(torch.nn.functional.cosine_similarity(*gradients, dim=0)) > 0.99

    # the old log-probabilities of later minibatches are made of the same micro-batches, so that nothing is clipped
    # because of rounding; with those of the sampler a third to all of the tokens would be
    still = dataclasses.replace(settings, precision="bf16", minibatches=4, learning_rate=0.0)
    metrics = PolicyUpdate(same_model(model), still).train_step(rows)
    assert metrics.clip_share == 0.0


def test_age_is_that_of_the_oldest_token_and_stale_rows_do_not_agree() -> None:
    model = tiny_model()
    rows = random_rows(model, groups=2, size=2, version=5)
    update = PolicyUpdate(model, SETTINGS, version=5)
    old = dataclasses.replace(
        rows[0],
        versions=tuple(2 if version == 5 else version for version in rows[0].versions[:-1]) + rows[0].versions[-1:],
    )
    assert any(row.advantages != (0.0,) * len(row.ids) for row in rows[:1])
    fresh = PolicyUpdate(same_model(model), SETTINGS, version=5).train_step(rows)
    metrics = update.train_step([old, *rows[1:]])
    assert (fresh.age_largest, fresh.age_mean, fresh.sampler_agrees) == (0, 0.0, True)
    assert (metrics.age_largest, metrics.sampler_agrees) == (3, False)
    assert metrics.age_mean == pytest.approx(3 / metrics.rows)


def test_a_gradient_that_is_not_finite_is_an_error_and_no_step() -> None:
    update = PolicyUpdate(tiny_model(), SETTINGS)
    rows = random_rows(update.model)
    before = weights(update.model)
    broken = dataclasses.replace(rows[0], advantages=tuple(math.inf if on else 0.0 for on in rows[0].mask))
    with pytest.raises(TrainingError, match="checkpoint"):
        update.train_step([broken, *rows[1:]])
    assert equal(weights(update.model), before)
    assert update.version == 0
    update.train_step(rows)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda row: dataclasses.replace(row, versions=tuple(1 if on else NOT_SAMPLED for on in row.mask)),
        lambda row: dataclasses.replace(row, versions=(NOT_SAMPLED,) * len(row.ids)),
        lambda row: dataclasses.replace(row, log_probs=tuple(math.nan if on else 0.0 for on in row.mask)),
        lambda row: TrainingRow(*[(value,) * (CONTEXT + 1) for value in (1, False, 0.0, NOT_SAMPLED, 0.0)], "g", "a"),
    ],
)
def test_rows_that_cannot_be_trained_on_are_refused_before_anything_changes(wrong: Any) -> None:
    """Of a later version, of none, without a log-probability, longer than the model's context."""
    update = PolicyUpdate(tiny_model(), SETTINGS)
    rows = random_rows(update.model)
    before = weights(update.model)
    for batch in ([*rows, wrong(rows[0])], []):
        with pytest.raises(BadArgument):
            update.train_step(batch)
    assert equal(weights(update.model), before)
    assert update.version == 0


def test_a_model_that_cannot_be_trained_so_is_refused() -> None:
    with pytest.raises(BadArgument, match="reference"):
        PolicyUpdate(tiny_model(), dataclasses.replace(SETTINGS, beta=0.1))
    with pytest.raises(BadArgument, match="reference"):
        PolicyUpdate(tiny_model(), SETTINGS, reference=tiny_model())
    with pytest.raises(BadArgument, match="bfloat16"):
        PolicyUpdate(tiny_model().to(torch.bfloat16), SETTINGS)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"intermediate_size": 256},
        {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 1},
        {"vocab_size": 2000},
        {"num_hidden_layers": 6},
    ],
)
def test_the_estimate_of_memory_is_at_least_what_torch_stores_and_at_most_twice(
    family: str, sizes: dict[str, Any]
) -> None:
    model = tiny_model(family=family, **sizes)
    update = PolicyUpdate(model, SETTINGS)
    rows = [row for row in random_rows(model, groups=4, size=4) if any(row.advantages)]
    batch = PaddedRows(rows, model.device)
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    stored: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        log_probs, _ = update.log_probs(model, batch)
    log_probs.sum().backward()
    estimate = ModelShape.of(model.config).backward_bytes(*batch.ids.shape, len(batch.kept))
    passing = (
        (LOGITS_COPIES - 1) * FLOAT_BYTES * batch.mask.numel() * model.config.vocab_size
    )  # made by the pass itself
    needed = sum(stored.values()) + passing
    assert needed <= estimate <= 2 * needed
