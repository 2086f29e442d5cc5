"""The update's gradients against an independent loop: one row at a time, no padding, sums over tokens in plain Python."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from taskapp_kit.train.turns import NOT_SAMPLED, TrainingRow
from taskapp_kit.train.update.policy_update import PolicyUpdate
from taskapp_kit.train.update.update_settings import CLIP_RANGES, UpdateSettings
from tests.train.tiny_models import same_model, tiny_model
from tests.train.update.rows import random_rows

pytestmark = pytest.mark.train

Gradients = dict[str, Any]


LOSSES = ("gspo", "grpo", "reinforce")


def steps_of(update: PolicyUpdate, rows: Sequence[TrainingRow]) -> tuple[list[tuple[Any, Gradients]], Any]:
    """A copy of the model before each optimizer step, the gradients of that step, and the metrics."""
    steps = []

    def before_step(*_: Any) -> None:
        gradients = {name: each.grad.clone() for name, each in update.model.named_parameters()}
        steps.append((same_model(update.model), gradients))

    handle = update.optimizer.register_step_pre_hook(before_step)
    metrics = update.train_step(rows)
    handle.remove()
    for model, _ in steps:
        model.zero_grad()
    return steps, metrics


def token_log_probs(model: Any, row: TrainingRow, temperature: float) -> Any:
    """(tokens - 1,): the log-probability of each token but the first."""
    logits = model(torch.tensor([row.ids])).logits[0, :-1] / temperature
    return torch.log_softmax(logits, dim=-1)[range(len(row.ids) - 1), row.ids[1:]]


def straightforward(
    settings: UpdateSettings,
    current: Any,
    rows: Sequence[TrainingRow],
    *,
    old: Any = None,
    reference: Any = None,
) -> Gradients:
    """The gradients of the mean over episodes of what learning.md says. old: the model of the old policy; else μ."""
    below, above = settings.clip or CLIP_RANGES.get(settings.loss, (0.0, 0.0))
    episodes = len({row.rollout for row in rows})
    for row in rows:
        places = [place for place, trained in enumerate(row.mask) if trained]
        now = token_log_probs(current, row, settings.temperature)
        with torch.no_grad():
            before = token_log_probs(old, row, settings.temperature) if old is not None else None
            anchor = token_log_probs(reference, row, settings.temperature) if reference is not None else None
        pi = {place: now[place - 1] for place in places}
        mu = {place: row.log_probs[place] for place in places}
        pi_old = {place: float(before[place - 1]) if before is not None else mu[place] for place in places}
        mean_log_ratio = sum(pi[place] - pi_old[place] for place in places) / len(places)
        mean_drift = sum(pi_old[place] - mu[place] for place in places) / len(places)
        row_loss = torch.zeros(())
        for place in places:
            advantage = row.advantages[place]
            drift = mean_drift if settings.loss == "gspo" else pi_old[place] - mu[place]
            weight = min(math.exp(drift), 2.0)
            if settings.loss == "reinforce":
                gain = pi[place] * advantage
            else:
                ratio = torch.exp(mean_log_ratio if settings.loss == "gspo" else pi[place] - pi_old[place])
                bounded = min(max(ratio, 1 - below), 1 + above)  # a plain number where the range ends: no gradient
                gain = min(ratio * advantage, bounded * advantage)
            row_loss = row_loss - weight * gain
            if anchor is not None:
                distance = float(anchor[place - 1]) - pi[place]
                row_loss = row_loss + settings.beta * (torch.exp(distance) - distance - 1)
        loss = row.weight * row_loss / len(places) / episodes
        if loss.requires_grad:
            loss.backward()
    return {name: each.grad for name, each in current.named_parameters()}


def assert_same(one: Gradients, other: Gradients) -> None:
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        scale = float(other[name].abs().max())
        assert scale > 1e-7, f"{name} has no gradient"
        assert float((gradient - other[name]).abs().max()) <= 1e-5 * scale, name


@pytest.mark.parametrize("budget", [1, 2**18, 2**30])
@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("loss", LOSSES)
def test_one_step_has_the_gradients_of_the_straightforward_loop(loss: Any, family: str, budget: int) -> None:
    """The old policy is the sampler; micro-batches of one row, of some, and of all."""
    model = tiny_model(family=family)
    settings = UpdateSettings(
        learning_rate=1e-3, loss=loss, temperature=0.8, micro_batch_bytes=budget, largest_gradient_norm=math.inf
    )
    rows = random_rows(model, temperature=0.8)
    ((before, gradients),), metrics = steps_of(PolicyUpdate(same_model(model), settings), rows)
    assert_same(gradients, straightforward(settings, before, rows))
    assert metrics.sampler_agrees
    assert metrics.mismatch_mean < 1e-5
    assert (metrics.rows, metrics.idle_rows, metrics.episodes) == (8, 4, 9)


@pytest.mark.parametrize(("loss", "clip"), [("gspo", (0.02, 0.03)), ("grpo", (0.1, 0.15))])
def test_later_minibatches_have_ratios_that_clip(loss: Any, clip: tuple[float, float]) -> None:
    model = tiny_model()
    settings = UpdateSettings(
        learning_rate=2e-3, loss=loss, clip=clip, minibatches=3, micro_batch_bytes=2**18, largest_gradient_norm=math.inf
    )
    rows = random_rows(model, groups=5, size=4)
    update = PolicyUpdate(same_model(model), settings)
    plan = update.minibatches(rows)
    steps, metrics = steps_of(update, rows)
    assert len(steps) == 3
    assert 0.05 < metrics.clip_share < 0.95
    for (before, gradients), minibatch in zip(steps, plan, strict=True):
        names = {row.rollout for micro_batch in minibatch.micro_batches for row in micro_batch}
        chosen = [row for row in rows if row.rollout in names]
        expected = straightforward(settings, before, chosen)
        share = len(names) / minibatch.episodes  # those without an advantage count
        assert_same(gradients, {name: each * share for name, each in expected.items()})


@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.parametrize("spread", [0.17, 0.4])
@pytest.mark.parametrize("loss", ["gspo", "grpo"])
def test_rows_of_another_sampler_are_weighted_and_the_old_policy_is_the_updates_own(
    loss: Any, spread: float, minibatches: int
) -> None:
    """A near sampler, and one so far that weights are cut at 2."""
    model, sampler = tiny_model(), tiny_model(seed=0, spread=spread)
    settings = UpdateSettings(
        learning_rate=1e-3, loss=loss, clip=(0.05, 0.06), minibatches=minibatches, largest_gradient_norm=math.inf
    )
    rows = random_rows(sampler)
    update = PolicyUpdate(same_model(model), settings)
    plan = update.minibatches(rows)
    steps, metrics = steps_of(update, rows)
    assert not metrics.sampler_agrees
    assert metrics.mismatch_mean > 0.01
    assert metrics.effective_share < 0.999
    for (before, gradients), minibatch in zip(steps, plan, strict=True):
        chosen = [row for micro_batch in minibatch.micro_batches for row in micro_batch]
        share = len({row.rollout for row in chosen}) / minibatch.episodes
        expected = straightforward(settings, before, chosen, old=model)
        assert_same(gradients, {name: each * share for name, each in expected.items()})


@pytest.mark.parametrize("loss", LOSSES)
def test_the_kl_term_trains_on_rows_without_an_advantage_too(loss: Any) -> None:
    model, reference = tiny_model(), tiny_model(spread=0.2)
    settings = UpdateSettings(learning_rate=1e-3, loss=loss, beta=0.3, largest_gradient_norm=math.inf)
    rows = random_rows(model)
    update = PolicyUpdate(same_model(model), settings, reference=reference)
    ((before, gradients),), metrics = steps_of(update, rows)
    assert metrics.idle_rows == 0
    assert metrics.kl > 0.001
    assert_same(gradients, straightforward(settings, before, rows, reference=reference))
    with pytest.raises(AssertionError):
        assert_same(gradients, straightforward(settings, same_model(model), rows))


def with_credit_per_token(rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    return [
        dataclasses.replace(row, advantages=tuple(place % 5 - 2.0 if on else 0.0 for place, on in enumerate(row.mask)))
        for row in rows
    ]


@pytest.mark.parametrize("loss", LOSSES)
def test_advantages_may_differ_within_a_row(loss: Any) -> None:
    """With gspo, each token's gradient has its own advantage (GSPO-token): at ratio 1 it is that of grpo."""
    model = tiny_model()
    settings = UpdateSettings(learning_rate=1e-3, loss=loss, largest_gradient_norm=math.inf)
    rows = with_credit_per_token(random_rows(model))
    ((before, gradients),), _ = steps_of(PolicyUpdate(same_model(model), settings), rows)
    by_token = dataclasses.replace(settings, loss="grpo") if loss == "gspo" else settings
    assert_same(gradients, straightforward(by_token, before, rows))


def shifted(row: TrainingRow, turn: int) -> TrainingRow | None:
    """The row with the mask of one turn one token later, and all that goes with it; None where it has no such turn."""
    starts = [place for place, on in enumerate(row.mask) if on and not row.mask[place - 1]]
    if turn >= len(starts):
        return None
    start = starts[turn]
    end = next((place for place in range(start, len(row.mask)) if not row.mask[place]), None)
    if end is None or (end + 1 < len(row.mask) and row.mask[end + 1]):
        return None

    def moved(column: tuple[Any, ...], off: Any) -> tuple[Any, ...]:
        return (*column[:start], off, *column[start:end], *column[end + 1 :])

    return dataclasses.replace(
        row,
        mask=moved(row.mask, False),
        log_probs=moved(row.log_probs, 0.0),
        versions=moved(row.versions, NOT_SAMPLED),
        advantages=moved(row.advantages, 0.0),
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_control_a_mask_shifted_by_one_token_fails(loss: Any) -> None:
    """One turn of one row is enough for other gradients, and for a mismatch of the log-probabilities."""
    model = tiny_model()
    settings = UpdateSettings(learning_rate=1e-3, loss=loss, largest_gradient_norm=math.inf)
    rows = random_rows(model)
    expected = straightforward(settings, same_model(model), rows)
    controls = 0
    for place, row in enumerate(rows):
        for turn in range(3):
            wrong = shifted(row, turn)
            if wrong is None or not any(row.advantages):
                continue
            controls += 1
            batch = [*rows[:place], wrong, *rows[place + 1 :]]
            ((_, gradients),), metrics = steps_of(PolicyUpdate(same_model(model), settings), batch)
            with pytest.raises(AssertionError):
                assert_same(gradients, expected)
            assert not metrics.sampler_agrees
    assert controls >= 4
