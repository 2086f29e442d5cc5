"""The update of a job as an actor, without a service: what it refuses, and what it leaves behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskapp_kit.errors import ReplicaDied
from taskapp_kit.jobs.server.engine import JobDocument
from taskapp_kit.services.encoding import decode, encode
from taskapp_kit.train.checkpoints.facts import JobPosition
from taskapp_kit.train.driver.interfaces import SavedJob
from taskapp_kit.train.policy_services.policy_order import PolicyOrder
from taskapp_kit.train.policy_services.sampling import SamplerReplica
from taskapp_kit.train.policy_services.updating import UpdateReplica
from taskapp_kit.train.turns import Sampled, TrainedTurn, TrainingRow, UpdateMetrics

pytestmark = pytest.mark.train


def row(advantage: float) -> TrainingRow:
    return TrainingRow(
        ids=(5, 6, 7, 8),
        mask=(False, False, True, True),
        log_probs=(0.0, 0.0, -1.25, -2.5),
        versions=(-1, -1, 0, 0),
        advantages=(0.0, 0.0, advantage, advantage),
        group="1.0",
        rollout=f"1.0.{advantage}",
        turns=(TrainedTurn(0, 2, 4, advantage, True),),
    )


ROWS = [row(0.5), row(-0.5)]


def order(models: Path, incarnation: int = 1, mode: str = "full", **training: object) -> PolicyOrder:
    config = {
        "model": {"base": "tiny", "trainer_mode": mode},
        "algorithm": {"variety": "grpo"},
        "training": {"learning_rate": 1e-3, "iterations_per_epoch": 2, **training},
        "sampler": {"engine": "services"},
    }
    job = JobDocument("rl_1", "http://user:secret@127.0.0.1:1", config)
    return PolicyOrder.of(job, models, {}, open_paths=False, incarnation=incarnation)


def test_an_order_and_rows_are_sent_without_a_change(tmp_path: Path) -> None:
    sent = encode(((order(tmp_path), ROWS), {}))
    assert b"secret" not in sent
    assert decode(sent, imports=True)[0] == (order(tmp_path), ROWS)


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["full", "lora"])
async def test_a_sampler_uses_the_weights_that_the_update_has_written(tmp_path: Path, mode: str) -> None:
    update, sampler = UpdateReplica(order(tmp_path, mode=mode)), SamplerReplica(order(tmp_path, mode=mode), 1)
    try:
        before: Sampled = await sampler.sample([5, 6], 4, 1.0, [], "draw")
        for version in range(2):
            assert isinstance(update.train_step(ROWS, version), UpdateMetrics)
        for _ in range(2):
            assert await sampler.update_weights(2) == 2
        after: Sampled = await sampler.sample([5, 6], 4, 1.0, [], "draw")
        assert (before.version, after.version) == (0, 2)
        assert before.log_probs != after.log_probs
        weights = sampler._model.state_dict()
        assert all(tensor.equal(weights[name]) for name, tensor in update._update.model.state_dict().items())
    finally:
        update.close()
        sampler.close()
    assert not list(tmp_path.rglob("*.safetensors"))


def test_one_that_was_made_anew_refuses_what_the_one_before_it_learned(tmp_path: Path) -> None:
    first = UpdateReplica(order(tmp_path))
    first.train_step(ROWS, 0)
    name = asyncio.run(first.save(SavedJob(3, {"done": 1}, JobPosition(1, 1)), None, 1))
    first.train_step(ROWS, 1)
    expected = {key: value.clone() for key, value in first._update.model.state_dict().items()}
    first._writer.close()  # as its death does; its weights are left
    second = UpdateReplica(order(tmp_path, 2))
    try:
        with pytest.raises(
            ReplicaDied, match=r"has the weights of version 0, not version 2. The previous process died"
        ):
            second.train_step(ROWS, 2)
        with pytest.raises(ReplicaDied):
            asyncio.run(second.save(SavedJob(3, {"done": 2}, JobPosition(2, 2)), None, 2))
        saved, version = asyncio.run(second.restore())
        assert saved is not None and (saved.checkpoint, saved.state, version) == (name, {"done": 1}, 1)
        assert [each.name for each in second._checkpoints._writer.root.glob(".weights-*")] == [".weights-2"]
        second.train_step(ROWS, 1)
        found = second._update.model.state_dict()
        assert all(found[key].equal(value) for key, value in expected.items())
    finally:
        second.close()
