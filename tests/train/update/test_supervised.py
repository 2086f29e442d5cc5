"""Updates on given answers: gradients against the loss of transformers' own models, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from taskapp_kit.train.turns import TrainingRow
from taskapp_kit.train.update.policy_update import PolicyUpdate
from taskapp_kit.train.update.supervised import supervised_loss, supervised_step
from taskapp_kit.train.update.update_settings import UpdateSettings
from tests.train.tiny_models import same_model, tiny_model
from tests.train.update.rows import random_rows

pytestmark = pytest.mark.train


def rows_of(model: Any) -> list[TrainingRow]:
    """Rows of several answers, of which every one is to be learned; no two of one episode."""
    return [
        replace(row, advantages=tuple(map(float, row.mask)), rollout=f"{number}", weight=1.0)
        for number, row in enumerate(random_rows(model, seed=4))
    ]


def oracle(model: Any, rows: list[TrainingRow]) -> tuple[float, dict[str, Any]]:
    """Loss and gradients of `model(labels=…)`, which is the mean over a row's tokens."""
    model.zero_grad(set_to_none=True)
    tokens, total = sum(sum(row.mask) for row in rows), 0.0
    for row in rows:
        labels = [token if on else -100 for token, on in zip(row.ids, row.mask, strict=True)]
        mean = model(input_ids=torch.tensor([row.ids]), labels=torch.tensor([labels])).loss
        loss = mean * sum(row.mask) / tokens
        loss.backward()
        total += float(loss.detach())
    return total, {name: each.grad.clone() for name, each in model.named_parameters()}


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("bytes_at_once", [1, 2**30])
def test_loss_and_gradients_are_those_of_transformers(family: str, bytes_at_once: int) -> None:
    model = tiny_model(3, family)
    rows = rows_of(model)
    loss, expected = oracle(same_model(model), rows)
    update = PolicyUpdate(
        model, UpdateSettings(learning_rate=1e-3, largest_gradient_norm=1e9, micro_batch_bytes=bytes_at_once)
    )
    found: dict[str, Any] = {}

    def remember(optimizer: Any, *_: Any) -> None:
        found.update({name: each.grad.clone() for name, each in model.named_parameters()})

    update.optimizer.register_step_pre_hook(remember)
    assert supervised_loss(update, rows) == pytest.approx(loss, rel=1e-5)
    metrics = supervised_step(update, rows)
    assert metrics.loss == pytest.approx(loss, rel=1e-5)
    assert (metrics.version, update.version) == (1, 1)
    assert metrics.tokens == sum(sum(row.mask) for row in rows)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=0, atol=1e-5 * float(gradient.abs().max())), name


def test_updates_lower_the_loss() -> None:
    model = tiny_model(5)
    rows = rows_of(model)
    update = PolicyUpdate(model, UpdateSettings(learning_rate=1e-2))
    before = supervised_loss(update, rows)
    for _ in range(10):
        supervised_step(update, rows)
    assert supervised_loss(update, rows) < before - 1
