"""TRL's own GRPOTrainer with an app's reward function and rows of `taskapp export tasks`, on the model `tiny`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

datasets = pytest.importorskip("datasets", reason="needs trl: make test-train")

from taskapp_kit.evaluate.export.task_rows import export_tasks, task_rows  # noqa: E402
from taskapp_kit.interop.callers_model import CallerService  # noqa: E402
from taskapp_kit.interop.reward_function import to_reward_function  # noqa: E402
from tests.train.trl_trainer import grpo_trainer, train  # noqa: E402

pytestmark = pytest.mark.train

APP = Path(__file__).with_name("breaking_keys.py")
GROUP = 8


def exported(out: Path) -> Path:
    async def write() -> None:
        service = CallerService(APP)
        try:
            await export_tasks(task_rows(service.service), "jsonl", out)
        finally:
            await service.close()

    asyncio.run(write())
    return out


def test_grpo_learns_from_rewards_and_masks_failures(tmp_path: Path) -> None:
    tasks = datasets.load_dataset("json", data_files=str(exported(tmp_path / "tasks.jsonl")), split="train")
    reward = to_reward_function(APP)
    settings = {
        "num_generations": GROUP,
        "per_device_train_batch_size": 4 * GROUP,
        "max_completion_length": 2,
        "max_steps": 3,
    }
    trainer = grpo_trainer(tmp_path / "out", tasks, settings, reward_funcs=reward)
    try:
        rewards, advantages = train(trainer)
    finally:
        reward.close()
    assert len(rewards) >= 4 * GROUP
    failed = [advantage for got, advantage in zip(rewards, advantages, strict=True) if got is None]
    assert len(failed) >= GROUP and set(failed) == {0.0}, "a group without a reward, and nothing learned from it"
    assert {got for got in rewards if got is not None} == {0.0, 1.0}
    logged = [entry for entry in trainer.state.log_history if "rewards/keys/mean" in entry]
    assert logged and all(0.0 <= entry["rewards/keys/mean"] <= 1.0 for entry in logged)
    assert all(0.25 <= entry["keys/failed"] < 1.0 for entry in logged)
