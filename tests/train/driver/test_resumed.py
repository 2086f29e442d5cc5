"""A job that goes on from a checkpoint in fresh objects ends with the weights, the curve and the ledger of one that ran through."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from taskapp_kit.errors import CheckpointError, JobError, TrainingError
from taskapp_kit.train.checkpoints.library import export_checkpoint, import_checkpoint
from taskapp_kit.train.checkpoints.stored import WEIGHTS, latest_checkpoint
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from taskapp_kit.train.driver.driver_settings import DriverSettings
from taskapp_kit.train.driver.learning import JobCheckpoints, PolicyLearner
from taskapp_kit.train.driver.stored_units import StoredUnits
from taskapp_kit.train.gateway.attempt import AttemptSettings
from taskapp_kit.train.loops.loop_settings import Curriculum, EarlyStopping, EnvironmentShare, LoopSettings
from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler
from taskapp_kit.train.stored_rollouts import RolloutFit, StoredRollouts
from taskapp_kit.train.turns import TrainingRow, UpdateMetrics
from taskapp_kit.train.update.policy_update import PolicyUpdate
from taskapp_kit.train.update.update_settings import UpdateSettings
from tests.train.checkpoints.facts import facts
from tests.train.driver.peers import JOB, PLAN, Driven, MemoryLedger, drive, evaluated
from tests.train.driver.scripted_app import Answer, CallingApp, RolloutAsked
from tests.train.tiny_models import same_model, tiny_model

pytestmark = [pytest.mark.train, pytest.mark.server]

CONTEXT = 256
PLANNED = evaluated(replace(PLAN, iterations=5, per_epoch=5, samples=4, at_once=8), eval_every=2)

LOOPS = LoopSettings(
    stopping=EarlyStopping(stop_at=1.0, patience=9),
    curriculum=Curriculum(("easy", "medium", "hard"), up=0.46, down=0.44),
    environments=(EnvironmentShare("one", 2), EnvironmentShare("other", 1, env_config={"other": True})),
)
"""Everything that has a state, and weights of which an iteration is no whole round."""


class BreakingLearner(PolicyLearner):
    """Fails at the update with number `breaks`, from 1."""

    breaks = 0

    async def learn(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        if self._update.version + 1 == self.breaks:
            raise TrainingError("The gradient is not finite.")
        return await super().learn(rows)


async def vowels(asked: RolloutAsked) -> Answer:
    """The reward is a number of the answer that hardly two answers share."""
    answer = await asked.call()
    return asked.scored(sum(answer["content"].encode()) % 97 / 97)


def stored_rollouts(path: Path) -> StoredRollouts:
    """Sixteen rollouts of four seeds, of any tokens."""
    random = Random(0)
    with path.open("w") as file:
        for number in range(16):
            tokens = random.choices(range(259), k=8)
            sequence = {"tokens": tokens, "mask": [0] * 4 + [1] * 4, "logprobs": [0.0] * 4 + [-5.5] * 4}
            line = {"seed": number % 4, "rollout": str(number), "status": "terminated", "reward": random.random()}
            file.write(json.dumps({**line, "sequences": [sequence]}) + "\n")
    return stored_again(path)


def stored_again(path: Path) -> StoredRollouts:
    return StoredRollouts(path, RolloutFit(None, frozenset(), 1.0, 259, CONTEXT))


def life(
    root: Path,
    ledger: MemoryLedger,
    incarnation: int,
    breaks: int = 0,
    loss: Any = "grpo",
    rollouts: StoredRollouts | None = None,
) -> tuple[Driven, Any]:
    """One process of the job, with objects of its own; returns the trained model, too."""
    model = tiny_model(spread=0.05, vocab_size=259, max_position_embeddings=CONTEXT)
    update = PolicyUpdate(
        model, UpdateSettings(learning_rate=1e-2, loss=loss, warmup=3 if loss == "grpo" else 0, draw=JOB)
    )
    settings = DriverSettings(
        AttemptSettings(temperature=1.0, max_tokens=4, context_tokens=CONTEXT),
        attempts=1,
        checkpoint_every=2,
        incarnation=incarnation,
        loops=LOOPS if loss == "grpo" and rollouts is None else LoopSettings(),
    )
    with TransformersSampler(same_model(model), deterministic=True) as sampler, CheckpointWriter(root) as writer:
        learner = BreakingLearner(update, sampler)
        learner.breaks = breaks
        job = JobCheckpoints(writer, update, sampler, facts(job=JOB), {})
        stored = None if rollouts is None else StoredUnits(rollouts, PLANNED, JOB)
        kept: dict[str, Any] = {"ledger": ledger, "state": ledger.state, "checkpoints": job, "stored": stored}
        with CallingApp(vowels).serving() as url:
            driven = asyncio.run(drive(url, sampler, learner, plan=PLANNED, settings=settings, **kept))
    return driven, model


def curve(ledger: MemoryLedger) -> list[tuple[str, int, float]]:
    """All points but those of time."""
    return [
        (point.name, point.step, point.value)
        for point in ledger.points
        if not point.name.endswith(("seconds", "tokens_per_second"))
    ]


@pytest.mark.parametrize(("loss", "offline"), [("grpo", False), ("ppo", False), ("grpo", True)])
def test_weights_and_curve_equal_those_of_a_job_that_ran_through(tmp_path: Path, loss: str, offline: bool) -> None:
    rollouts = stored_rollouts(tmp_path / "rollouts.jsonl") if offline else None
    whole = MemoryLedger()
    driven, expected = life(tmp_path / "whole", whole, 0, loss=loss, rollouts=rollouts)
    assert driven.error is None, driven.error

    ledger = MemoryLedger()
    for incarnation, breaks in enumerate((1, 4, 5)):
        driven, _ = life(tmp_path / "broken", ledger, incarnation, breaks, loss, rollouts)
        assert isinstance(driven.error, TrainingError), driven.error
    driven, model = life(tmp_path / "broken", ledger, 3, loss=loss, rollouts=rollouts)
    assert driven.error is None, driven.error
    assert len(ledger.superseded) == 3
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    assert curve(ledger) == curve(whole)
    learned_from = "stored_reward" if offline else "reward"
    assert len({value for name, _, value in curve(whole) if name == learned_from}) == (4 if offline else 5)
    played = {each.phase for each in ledger.rollouts}
    assert played == ({"eval"} if offline else {"train", "eval"})
    assert whole.total == driven.ledger.state["finished"] == len(ledger.rollouts)
    with_loops = loss == "grpo" and not offline
    assert ({name for name, _, _ in curve(whole)} >= {"level", "reward_one", "reward_other"}) == with_loops
    assert ledger.state == {**whole.state, "incarnation": 3}
    assert driven.outcome is not None
    assert driven.outcome.results["model"] == f"rl:tests-tiny:{JOB}:checkpoint-5"
    stored = [each["iteration"] for each in driven.outcome.results["checkpoints"]]
    assert stored[-2:] == [4, 5]
    assert driven.outcome.results["best"] in {f"rl:tests-tiny:{JOB}:checkpoint-{number}" for number in (2, 4)}


def test_other_stored_rollouts_than_at_the_start_are_refused_until_the_first_are_back(tmp_path: Path) -> None:
    file, ledger = tmp_path / "rollouts.jsonl", MemoryLedger()
    driven, _ = life(tmp_path / "job", ledger, 0, 4, rollouts=stored_rollouts(file))
    assert isinstance(driven.error, TrainingError)
    first = file.read_bytes()
    file.write_bytes(first.replace(b'"reward": 0.', b'"reward": 1.'))
    driven, _ = life(tmp_path / "job", ledger, 1, rollouts=stored_again(file))
    assert isinstance(driven.error, JobError) and "has changed since the job started" in str(driven.error)
    assert not ledger.superseded
    file.write_bytes(first)
    driven, _ = life(tmp_path / "job", ledger, 2, rollouts=stored_again(file))
    assert driven.error is None, driven.error


def test_a_damaged_checkpoint_costs_its_iterations_and_an_imported_one_is_no_start(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    driven, _ = life(tmp_path / "job", ledger, 0, 5)
    assert isinstance(driven.error, TrainingError)
    last = latest_checkpoint(tmp_path / "job")
    assert last is not None
    assert last.facts.position.iteration == 4
    with (last.path / WEIGHTS).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    driven, _ = life(tmp_path / "job", ledger, 1)
    assert driven.error is None, driven.error
    assert [event.data["iteration"] for event in ledger.of("rl.train.resumed")] == [2]

    last = latest_checkpoint(tmp_path / "job")
    assert last is not None
    export_checkpoint(last, tmp_path / "job.tar")
    imported = import_checkpoint(tmp_path / "job.tar", tmp_path / "elsewhere")
    driven, _ = life(imported.path.parent, MemoryLedger(state=ledger.state), 2)
    assert isinstance(driven.error, CheckpointError)
    assert "cannot resume" in str(driven.error)
