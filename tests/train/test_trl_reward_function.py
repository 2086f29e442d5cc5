"""TRL's own GRPOTrainer with an app's reward function and rows of `taskapp export tasks`, on the model `tiny`."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra: make test-train")
trl = pytest.importorskip("trl", reason="needs trl: make test-train")
datasets = pytest.importorskip("datasets", reason="needs trl: make test-train")
transformers = pytest.importorskip("transformers", reason="needs the train extra: make test-train")

from taskapp_kit.evaluate.export.task_rows import export_tasks, task_rows  # noqa: E402
from taskapp_kit.interop.callers_model import CallerService  # noqa: E402
from taskapp_kit.interop.reward_function import to_reward_function  # noqa: E402
from taskapp_kit.train.models.sources import BUNDLED  # noqa: E402

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


def tokenizer_of(folder: Path) -> Any:
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ids = transformers.AutoConfig.from_pretrained(str(folder))
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(ids.pad_token_id)
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(ids.eos_token_id)
    tokenizer.chat_template = (folder / "chat_template.jinja").read_text()
    return tokenizer


def test_grpo_learns_from_rewards_and_masks_failures(tmp_path: Path) -> None:
    folder = BUNDLED["tiny"]
    tasks = datasets.load_dataset("json", data_files=str(exported(tmp_path / "tasks.jsonl")), split="train")
    reward = to_reward_function(APP)
    trainer = trl.GRPOTrainer(
        model=str(folder),
        reward_funcs=reward,
        processing_class=tokenizer_of(folder),
        train_dataset=tasks,
        args=trl.GRPOConfig(
            output_dir=str(tmp_path / "out"),
            report_to=[],
            use_cpu=True,
            bf16=False,
            model_init_kwargs={"dtype": "float32"},
            num_generations=GROUP,
            per_device_train_batch_size=4 * GROUP,
            max_completion_length=2,
            max_steps=3,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            seed=0,
        ),
    )
    before = {name: each.detach().clone() for name, each in trainer.model.named_parameters()}
    seen: list[tuple[list[float | None], list[float]]] = []
    try:
        trainer.add_callback(_AfterEachStep(lambda: seen.append(_logged(trainer))))
        trainer.train()
    finally:
        reward.close()

    assert any(not torch.equal(before[name], each) for name, each in trainer.model.named_parameters())
    rewards, advantages = seen[-1]
    assert len(rewards) >= 4 * GROUP
    failed = [advantage for got, advantage in zip(rewards, advantages, strict=True) if got is None]
    assert len(failed) >= GROUP and set(failed) == {0.0}, "a group without a reward, and nothing learned from it"
    assert {got for got in rewards if got is not None} == {0.0, 1.0}
    assert any(advantage != 0.0 for advantage in advantages)
    logged = [entry for entry in trainer.state.log_history if "rewards/keys/mean" in entry]
    assert logged and all(0.0 <= entry["rewards/keys/mean"] <= 1.0 for entry in logged)
    assert all(0.25 <= entry["keys/failed"] < 1.0 for entry in logged)


def _logged(trainer: Any) -> tuple[list[float | None], list[float]]:
    """The rewards and advantages of the steps so far, in the trainer's own record."""
    rewards = [None if math.isnan(value) else value for value in trainer._logs["rewards"]["keys"]]
    return rewards, list(trainer._logs["advantages"])


class _AfterEachStep(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    def __init__(self, then: Any) -> None:
        self.then = then

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.then()
