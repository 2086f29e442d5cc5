"""ppo against numbers worked out by hand and an independent loop."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from taskapp_kit.errors import CheckpointError
from taskapp_kit.train.checkpoints.state import (
    restore_optimizer,
    restore_value_head,
    restore_weights,
    state_parts,
    value_head_part,
)
from taskapp_kit.train.checkpoints.stored import latest_checkpoint
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from taskapp_kit.train.turns import TrainedTurn, TrainingRow
from taskapp_kit.train.update.policy_update import PolicyUpdate
from taskapp_kit.train.update.ppo import ValueHead, generalised_advantages, value_loss, whitened
from taskapp_kit.train.update.update_settings import PpoSettings, UpdateSettings
from tests.train.checkpoints.facts import facts
from tests.train.tiny_models import same_model, tiny_model
from tests.train.update.rows import random_rows
from tests.train.update.test_oracle import assert_same, steps_of, straightforward

pytestmark = pytest.mark.train

PPO = PpoSettings(discount=0.9, gae_lambda=0.8)
SETTINGS = UpdateSettings(learning_rate=1e-3, loss="ppo", ppo=PPO)


def with_turns(rows: Sequence[TrainingRow], *, truncated: bool = False, seed: int = 0) -> list[TrainingRow]:
    """The rows with a turn for each span of their mask and random rewards; branches follow each other in time."""
    random, made = Random(seed), []
    for row in rows:
        before = [turn for each in made if each.rollout == row.rollout for turn in each.turns]
        starts = [at for at, on in enumerate(row.mask) if on and not row.mask[at - 1]]
        turns = []
        for start in starts:
            stop = next((at for at in range(start, len(row.mask)) if not row.mask[at]), len(row.mask))
            turns.append(TrainedTurn(len(before) + len(turns), start, stop, random.uniform(-1, 1), last=False))
        made.append(dataclasses.replace(row, turns=tuple(turns), truncated=truncated))
    lasts = {row.rollout: place for place, row in enumerate(made)}
    for place in lasts.values():
        turns = made[place].turns
        made[place] = dataclasses.replace(made[place], turns=(*turns[:-1], dataclasses.replace(turns[-1], last=True)))
    return made


def with_values(update: PolicyUpdate, seed: int = 0) -> PolicyUpdate:
    """The update with a value head that has learned something else."""
    assert update.value_head is not None
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in update.value_head.layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return update


def test_advantages_worked_out_by_hand() -> None:
    """Values 0.5, 0.4, 0.2; reward 1 at the end; discount 0.9, trace 0.5.

    d_3 = 1 - 0.2 = 0.8; d_2 = 0.9 · 0.2 - 0.4 = -0.22; d_1 = 0.9 · 0.4 - 0.5 = -0.14
    A_3 = 0.8; A_2 = -0.22 + 0.45 · 0.8 = 0.14; A_1 = -0.14 + 0.45 · 0.14 = -0.077
    With a value of 2 after the end: d_3 = 1 + 0.9 · 2 - 0.2 = 2.6; A_2 = 0.95; A_1 = 0.2875
    """
    rewards, values = [0.0, 0.0, 1.0], [0.5, 0.4, 0.2]
    ended = generalised_advantages(rewards, values, after=0.0, discount=0.9, trace=0.5)
    assert ended == pytest.approx([-0.077, 0.14, 0.8])
    cut = generalised_advantages(rewards, values, after=2.0, discount=0.9, trace=0.5)
    assert cut == pytest.approx([0.2875, 0.95, 2.6])
    # trace 1: the discounted return less the value; trace 0: the next value's error alone
    whole = generalised_advantages(rewards, values, after=0.0, discount=0.9, trace=1.0)
    assert whole == pytest.approx([0.81 - 0.5, 0.9 - 0.4, 1.0 - 0.2])
    short = generalised_advantages(rewards, values, after=0.0, discount=0.9, trace=0.0)
    assert short == pytest.approx([-0.14, -0.22, 0.8])
    assert generalised_advantages([], [], after=3.0, discount=1.0, trace=1.0) == []


def test_value_losses_worked_out_by_hand() -> None:
    values, old, returns = torch.tensor([1.0, 1.0, 0.1]), torch.zeros(3), torch.tensor([2.0, 0.0, 1.0])
    assert value_loss(values, old, returns, None).tolist() == pytest.approx([0.5, 0.5, 0.405])
    # within 0.2 of the old value: 0.2, 0.2, 0.1; the larger of both distances counts
    assert value_loss(values, old, returns, 0.2).tolist() == pytest.approx([1.62, 0.5, 0.405])


def one_row(turns: Sequence[TrainedTurn], length: int, **more: Any) -> TrainingRow:
    mask = [any(turn.start <= at < turn.stop for turn in turns) for at in range(length)]
    return TrainingRow(
        ids=tuple(range(length)),
        mask=tuple(mask),
        log_probs=(0.0,) * length,
        versions=(0,) * length,
        advantages=(0.0,) * length,
        turns=tuple(turns),
        **{"group": "g", "rollout": "r", **more},
    )


def head_of_values(settings: PpoSettings) -> ValueHead:
    """A head whose value is the first of two features, each state's cosine."""
    head = ValueHead(2, settings)
    with torch.no_grad():
        head.layer.weight.copy_(torch.tensor([[1.0, 0.0]]))
    return head


def states(*values: float) -> Any:
    """Hidden states after each token whose values are these, of any length."""
    return torch.tensor([[3 * value, 3 * math.sqrt(1 - value * value)] for value in values])


def test_the_value_after_a_tool_result_follows_the_last_token_before_it() -> None:
    """Tokens 1, 2 and 5 are sampled, 3 and 4 are a tool's. Values before them: 0.1, 0.2, 0.5; the gap's own count nowhere.

    A_5 = 1 - 0.5 = 0.5; A_2 = 0.5 · 0.5 - 0.2 + 0.25 · 0.5 = 0.175; A_1 = 0.5 · 0.2 - 0.1 + 0.25 · 0.175 = 0.04375
    """
    row = one_row([TrainedTurn(0, 1, 3, 0.0, last=False), TrainedTurn(1, 5, 6, 1.0, last=True)], 6)
    head = head_of_values(PpoSettings(discount=0.5, gae_lambda=0.5))
    (made,), metrics = head.learn([row], lambda rows: [(rows[0], states(0.1, 0.2, 0.9, 0.9, 0.5, 0.8))])
    assert made.advantages == pytest.approx((0.0, 0.04375, 0.175, 0.0, 0.0, 0.5), abs=1e-6)
    assert metrics.loss == pytest.approx((0.04375**2 + 0.175**2 + 0.5**2) / 6, rel=1e-5)


def test_a_limit_leaves_a_value_and_an_end_leaves_none() -> None:
    """Token 1 with the value 0.1 before it and 0.8 after it; the second row's turn comes before it, although it is second."""
    rows = [
        one_row([TrainedTurn(1, 1, 2, 1.0, last=True)], 3, weight=0.5),
        one_row([TrainedTurn(0, 2, 3, 0.0, last=False)], 3, weight=0.5),
    ]
    features = [states(0.1, 0.8, 0.9), states(0.9, 0.6, 0.9)]
    for truncated, discount, after in ((False, 0.5, 0.0), (True, 0.5, 0.8), (True, 1.0, 0.0)):
        cut = [dataclasses.replace(row, truncated=truncated) for row in rows]
        head = head_of_values(PpoSettings(discount=discount, gae_lambda=0.0))
        (one, other), _ = head.learn(cut, lambda rows: zip(rows, features, strict=True))
        assert one.advantages[1] == pytest.approx(1.0 + discount * after - 0.1, abs=1e-6)
        assert other.advantages[2] == pytest.approx(discount * 0.1 - 0.6, abs=1e-6)


def test_values_of_episodes_that_are_always_cut_do_not_grow_without_end() -> None:
    """Undiscounted, a value that stands for what would follow is its own target: each update would add the reward."""
    row = one_row([TrainedTurn(0, 1, 3, 1.0, last=True)], 3, truncated=True)
    highest = {}
    for discount in (1.0, 0.5):
        head = ValueHead(2, PpoSettings(discount=discount, value_learning_rate=0.05))
        for _ in range(100):
            head.learn([row], lambda rows: [(rows[0], states(0.5, 0.5, 0.5))])
        highest[discount] = float(head.layer(states(0.5) / 3).detach())
    assert highest[1.0] == pytest.approx(1.0, abs=0.05)
    assert highest[0.5] == pytest.approx(1.2, abs=0.01)  # the mean of both tokens' targets: V = 0.75 · (1 + 0.5 · V)


def independent_advantages(
    rows: Sequence[TrainingRow], update: PolicyUpdate, after: bool
) -> dict[tuple[int, int], float]:
    """By row and position, from the definition: A_t = sum over later k of (discount · trace)^k · d_(t+k)."""
    values: dict[tuple[int, int], float] = {}
    ends: dict[int, float] = {}
    for place, row in enumerate(rows):
        with torch.no_grad():
            hidden = update.model(torch.tensor([row.ids]), output_hidden_states=True).hidden_states[-1][0]
            found = update.value_head.layer(hidden / hidden.norm(dim=-1, keepdim=True))[:, 0]
        for at, on in enumerate(row.mask):
            if on:
                values[place, at] = float(found[at - 1])
        ends[place] = float(found[row.turns[-1].stop - 1])
    advantages = {}
    for rollout in {row.rollout for row in rows}:
        tokens = [
            (place, at, turn.reward if at == turn.stop - 1 else 0.0)
            for place, row in enumerate(rows)
            if row.rollout == rollout
            for turn in row.turns
            for at in range(turn.start, turn.stop)
        ]
        following = [values[token[:2]] for token in tokens[1:]] + [ends[tokens[-1][0]] if after else 0.0]
        errors = [
            reward + PPO.discount * later - values[place, at]
            for (place, at, reward), later in zip(tokens, following, strict=True)
        ]
        for number, (place, at, _) in enumerate(tokens):
            advantages[place, at] = sum(
                (PPO.discount * PPO.gae_lambda) ** (later - number) * errors[later]
                for later in range(number, len(tokens))
            )
    return advantages


def with_independent_advantages(
    rows: Sequence[TrainingRow], update: PolicyUpdate, after: bool = False
) -> list[TrainingRow]:
    advantages = independent_advantages(rows, update, after)
    return [
        dataclasses.replace(row, advantages=tuple(advantages.get((place, at), 0.0) for at in range(len(row.ids))))
        for place, row in enumerate(rows)
    ]


@pytest.mark.parametrize("budget", [1, 2**30])
@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("truncated", [False, True])
def test_gradients_are_those_of_an_independent_loop(family: str, truncated: bool, budget: int) -> None:
    """Two passes over two minibatches: the later steps are clipped, and all have the advantages of the first values."""
    model = tiny_model(family=family)
    settings = dataclasses.replace(
        SETTINGS,
        minibatches=2,
        clip=(0.05, 0.05),
        learning_rate=2e-3,
        micro_batch_bytes=budget,
        largest_gradient_norm=math.inf,
    )
    rows = with_turns(random_rows(model), truncated=truncated)
    update = with_values(PolicyUpdate(same_model(model), settings))
    expected_rows = with_independent_advantages(rows, update, truncated)
    parts = update.minibatches(expected_rows)
    steps, metrics = steps_of(update, rows)
    assert len(steps) == 4 and len(parts) == 2
    assert metrics.clip_share > 0.02
    assert (metrics.episodes, metrics.rows, metrics.idle_rows) == (9, len(rows), 0)
    for (before, gradients), part in zip(steps, parts * 2, strict=True):
        names = {row.rollout for micro_batch in part.micro_batches for row in micro_batch}
        chosen = [row for row in expected_rows if row.rollout in names]
        assert_same(gradients, straightforward(settings, before, chosen))


@pytest.mark.parametrize("passes", [1, 2])
def test_rows_of_another_sampler_have_the_updates_own_old_policy_in_every_pass(passes: int) -> None:
    model, sampler = tiny_model(), tiny_model(spread=0.17)
    settings = dataclasses.replace(
        SETTINGS, minibatches=2, largest_gradient_norm=math.inf, ppo=dataclasses.replace(PPO, passes=passes)
    )
    rows = with_turns(random_rows(sampler))
    update = with_values(PolicyUpdate(same_model(model), settings))
    expected_rows = with_independent_advantages(rows, update)
    parts = update.minibatches(expected_rows)
    steps, metrics = steps_of(update, rows)
    assert not metrics.sampler_agrees
    for (before, gradients), part in zip(steps, parts * passes, strict=True):
        chosen = [row for micro_batch in part.micro_batches for row in micro_batch]
        assert_same(gradients, straightforward(settings, before, chosen, old=model))


def test_the_values_learn_the_returns_and_say_how_well() -> None:
    """The rows of every third episode are rewarded: the values tell them from the others, without moving the policy."""
    model = tiny_model()
    update = PolicyUpdate(same_model(model), dataclasses.replace(SETTINGS, learning_rate=1e-12, ppo=PpoSettings()))
    rows = [
        dataclasses.replace(
            row,
            turns=tuple(dataclasses.replace(turn, reward=float(turn.last and place % 3 == 0)) for turn in row.turns),
        )
        for place, row in enumerate(with_turns(random_rows(model)))
    ]
    found = [update.train_step(rows) for _ in range(60)]
    assert found[0].explained_variance == 0  # all values are 0 at first
    assert found[-1].explained_variance > 0.4
    assert found[-1].value_loss < found[0].value_loss / 2
    assert PolicyUpdate(model, UpdateSettings(1e-3)).train_step(rows).value_loss is None


def test_whitened_advantages_have_mean_0_and_deviation_1() -> None:
    rows = random_rows(tiny_model())
    values = [value for row in whitened(rows) for value, on in zip(row.advantages, row.mask, strict=True) if on]
    assert sum(values) / len(values) == pytest.approx(0.0, abs=1e-9)
    assert torch.tensor(values).std() == pytest.approx(1.0, abs=1e-3)
    assert not any(
        value for row in whitened(rows) for value, on in zip(row.advantages, row.mask, strict=True) if not on
    )


def test_it_goes_on_from_a_checkpoint_equal_to_the_last_bit(tmp_path: Path) -> None:
    model = tiny_model()
    rows = with_turns(random_rows(model))
    whole = PolicyUpdate(same_model(model), SETTINGS)
    whole.train_step(rows)
    with CheckpointWriter(tmp_path) as writer:
        head = whole.value_head
        assert head is not None
        parts = state_parts(whole.model, whole.optimizer) | value_head_part(head.layer, head.optimizer)
        writer.save(facts(), parts)
    whole.train_step(rows[::-1])

    checkpoint = latest_checkpoint(tmp_path)
    assert checkpoint is not None
    resumed = PolicyUpdate(tiny_model(seed=9), SETTINGS, version=1)
    restore_weights(resumed.model, checkpoint)
    restore_optimizer(resumed.model, resumed.optimizer, checkpoint)
    assert resumed.value_head is not None
    restore_value_head(resumed.value_head.layer, resumed.value_head.optimizer, checkpoint)
    resumed.train_step(rows)
    for one, other in ((whole.model, resumed.model), (whole.value_head.layer, resumed.value_head.layer)):
        for name, each in one.state_dict().items():
            assert torch.equal(each, other.state_dict()[name]), name
    with pytest.raises(CheckpointError, match="value_head"):
        wider = ValueHead(64, PPO)
        restore_value_head(wider.layer, wider.optimizer, checkpoint)
