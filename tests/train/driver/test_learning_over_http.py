"""A model with random weights learns from rollouts of a real task app over HTTP, of which some fail and one hangs."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.train.driver.driver_settings import DriverSettings
from taskapp_kit.train.driver.learning import PolicyLearner
from taskapp_kit.train.gateway.attempt import AttemptSettings
from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler
from taskapp_kit.train.update.policy_update import PolicyUpdate
from taskapp_kit.train.update.update_settings import UpdateSettings
from tests.train.driver.peers import JOB, PLAN, Driven, drive, evaluated
from tests.train.driver.scripted_app import KEY, served
from tests.train.learning_runs import ShufflingLearner
from tests.train.tiny_models import same_model, tiny_model

pytestmark = [pytest.mark.train, pytest.mark.server]

CONTEXT = 512
CHANCE = 64 / 259
"""Of the first byte, where all ids are equally likely."""
STRAGGLER_SECONDS = 5.0
"""Of the job in which one rollout hangs; on a busy machine it leaves out others, too."""
FAULTY = 10
"""One of so many answers fails."""
HANGS = 100
"""The number of the answer that hangs."""

app = TaskApp("letters", version="1")
answers = itertools.count(1)
jobs = itertools.count()
faults = threading.Event()
go_on = threading.Event()


def judged(text: str) -> float:
    """Whether the first character is a byte from 64 to 127. Some answers fail, and one hangs."""
    number = next(answers)
    if faults.is_set() and number == HANGS:
        go_on.wait()
    if faults.is_set() and number % FAULTY == 0:
        raise RuntimeError("the environment broke")
    return float(text[:1] >= "@" and text[:1] <= "\x7f")


@app.environment("one", splits={"train": range(100), "test": range(100, 200)}, max_steps=1)
class One:
    """One letter."""

    def reset(self, seed: int) -> str:
        return f"{seed % 4}?"

    @action(text=True, noop={"text": "A"})
    def say(self, text: str) -> Step:
        """Say it."""
        return Step("", reward=judged(text), terminated=True)


@app.environment("two", splits={"train": range(100), "test": range(100, 200)}, max_steps=2)
class Two:
    """Two letters, one after the other."""

    def reset(self, seed: int) -> str:
        self.said = 0
        return f"{seed % 4}?"

    @action(text=True, noop={"text": "A"})
    def say(self, text: str) -> Step:
        """Say it."""
        self.said += 1
        return Step("And?", reward=judged(text) / 2, terminated=self.said == 2)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(app) as address:
        yield address
        go_on.set()


def learned(
    url: str,
    environment: str,
    turns: int,
    *,
    iterations: int,
    kind: type[PolicyLearner] = PolicyLearner,
    loss: Any = "grpo",
) -> Driven:
    """A job with evaluation 0 and one at the end."""
    model = tiny_model(spread=0.05, vocab_size=259, max_position_embeddings=CONTEXT)
    played = replace(PLAN, env_name=environment, ops=["agent", "env"] * turns, groups=4, samples=8, at_once=32)
    plan = evaluated(played, iterations=iterations, per_epoch=iterations, eval_every=iterations, eval_instances=24)
    update = PolicyUpdate(model, UpdateSettings(learning_rate=1e-2, loss=loss, draw=JOB))
    settings = DriverSettings(
        AttemptSettings(temperature=1.0, max_tokens=2, context_tokens=CONTEXT),
        straggler_seconds=STRAGGLER_SECONDS if faults.is_set() else 300.0,
        incarnation=next(jobs),
    )
    gateways: list[Any] = []
    with TransformersSampler(
        same_model(model), open_attempts=lambda: gateways[0].open_attempts if gateways else 1
    ) as sampler:
        options: dict[str, Any] = {"plan": plan, "settings": settings, "key": KEY, "with_gateway": gateways.append}
        job = asyncio.run(drive(url, sampler, kind(update, sampler), **options))
    assert job.error is None, job.error
    assert job.open_after == 0
    return job


def test_it_learns_one_turn_although_some_rollouts_fail_and_one_hangs(url: str) -> None:
    faults.set()
    try:
        job = learned(url, "one", 1, iterations=40)
    finally:
        faults.clear()
        go_on.set()
    rewards = job.ledger.curve("reward")
    assert statistics.fmean(rewards[:3]) < 2 * CHANCE
    assert statistics.fmean(rewards[-5:]) > 0.7
    before, after = job.ledger.curve("eval_reward")
    assert after > before + 0.3
    failures = job.ledger.state["failures"]
    assert set(failures) == {"environment", "straggler"}
    assert failures["straggler"] == job.ledger.state["stragglers"]["given_up"] >= 1
    assert failures["environment"] >= 40 * 32 // FAULTY // 2
    assert max(job.ledger.curve("log_prob_mismatch")) < 1e-4
    assert job.ledger.curve("version") == [*range(1, 41)]
    assert sum(job.ledger.curve("calls_forked")) == sum(job.ledger.curve("calls_refused")) == 0


@pytest.mark.parametrize("loss", ["gspo", "grpo", "reinforce"])
def test_it_learns_two_turns(url: str, loss: str) -> None:
    job = learned(url, "two", 2, iterations=40, loss=loss)
    rewards = job.ledger.curve("reward")
    assert statistics.fmean(rewards[:3]) < 2 * CHANCE
    assert statistics.fmean(rewards[-5:]) > 0.7
    assert set(job.ledger.curve("turns")) == {2.0}
    assert set(job.ledger.curve("rows")) == {32.0}


def test_control_shuffled_advantages_teach_nothing(url: str) -> None:
    job = learned(url, "one", 1, iterations=30, kind=ShufflingLearner)
    assert statistics.fmean(job.ledger.curve("reward")[-10:]) < 2 * CHANCE
