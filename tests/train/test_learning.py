"""Sampler and update together: a model with random weights learns a bandit over tokens, without HTTP."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra: make test-train")
pytest.importorskip("transformers", reason="needs the train extra: make test-train")

from taskapp_kit.records.seeds import derived_rng  # noqa: E402
from taskapp_kit.train.rows import RowOptions, TrainingEpisode, training_batch  # noqa: E402
from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler  # noqa: E402
from taskapp_kit.train.turns import RecordedTurn, Sampled  # noqa: E402
from taskapp_kit.train.update.policy_update import PolicyUpdate  # noqa: E402
from taskapp_kit.train.update.settings import UpdateSettings  # noqa: E402
from tests.train.tiny_models import same_model, tiny_model  # noqa: E402

pytestmark = pytest.mark.train

STATES = 4
GROUP = 16
"""Rollouts of one state. Chance is 1 / 48, the size of the vocabulary; the best constant answer has 1 / STATES."""


def rewarded(state: int) -> int:
    return 20 + 3 * state


def prompt(state: int) -> tuple[int, ...]:
    return (1, 2 + state)


def recorded(state: int, answer: Sampled) -> RecordedTurn:
    return RecordedTurn(
        prompt(state),
        answer.token_ids,
        answer.log_probs,
        answer.version,
        answer.finish_reason,
        answer.seconds,
        delivered=True,
    )


async def curve(settings: UpdateSettings, iterations: int, shuffled: bool = False, **options: Any) -> list[float]:
    """The mean reward of each iteration; every answer is two tokens, of which the first counts."""
    model = tiny_model(spread=0.05)
    update = PolicyUpdate(model, settings)
    means = []
    with TransformersSampler(same_model(model), open_attempts=lambda: STATES * GROUP, **options) as sampler:
        for iteration in range(iterations):
            places = [(state, sample) for state in range(STATES) for sample in range(GROUP)]
            answers: list[Sampled] = await asyncio.gather(
                *[
                    sampler.sample(
                        prompt(state),
                        max_tokens=2,
                        temperature=1.0,
                        stop_ids=frozenset({0}),
                        draw=f"bandit/{iteration}/{state}/{sample}",
                    )
                    for state, sample in places
                ]
            )
            rewards = [
                float(answer.token_ids[0] == rewarded(state))
                for (state, _), answer in zip(places, answers, strict=True)
            ]
            means.append(statistics.fmean(rewards))
            if shuffled:
                derived_rng("shuffled", iteration).shuffle(rewards)
            episodes = [
                TrainingEpisode(
                    rollout=f"{state}/{sample}",
                    group=str(state),
                    turns=(recorded(state, answer),),
                    reward=reward,
                )
                for (state, sample), answer, reward in zip(places, answers, rewards, strict=True)
            ]
            rows = training_batch(episodes, RowOptions()).rows
            metrics = update.train_step(rows)
            assert metrics.sampler_agrees or metrics.rows == 0
            await sampler.swap(update.model.state_dict(), update.version)
    return means


@pytest.mark.parametrize(
    ("loss", "minibatches"), [("gspo", 1), ("grpo", 4), ("reinforce", 1)], ids=["gspo", "grpo", "reinforce"]
)
def test_it_learns_a_token_for_each_state(loss: Any, minibatches: int) -> None:
    settings = UpdateSettings(learning_rate=3e-3, loss=loss, minibatches=minibatches)
    means = asyncio.run(curve(settings, 60))
    assert statistics.fmean(means[:5]) < 0.15
    assert statistics.fmean(means[-5:]) > 0.6


def test_control_shuffled_rewards_teach_nothing() -> None:
    means = asyncio.run(curve(UpdateSettings(learning_rate=3e-3, loss="grpo"), 40, shuffled=True))
    assert statistics.fmean(means[-10:]) < 0.15


def test_the_deterministic_sampler_gives_an_equal_curve() -> None:
    """And equal weights: the last rewards follow from them."""
    settings = UpdateSettings(learning_rate=3e-3, loss="gspo")
    one, other = (asyncio.run(curve(settings, 6, deterministic=True)) for _ in range(2))
    assert one == other
