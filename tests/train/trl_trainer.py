"""TRL's GRPOTrainer for a task app, small enough for a test."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from taskapp_kit.train.models.sources import BUNDLED

trl = pytest.importorskip("trl", reason="needs trl: make test-train")
TINY = BUNDLED["tiny"]


def tiny_tokenizer() -> Any:
    """That of the model `tiny`, as TRL wants it."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TINY / "tokenizer.json"))
    ids = transformers.AutoConfig.from_pretrained(str(TINY))
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(ids.pad_token_id)
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(ids.eos_token_id)
    tokenizer.chat_template = (TINY / "chat_template.jinja").read_text()
    return tokenizer


def grpo_trainer(out: Path, dataset: Any, settings: dict[str, Any], **options: Any) -> Any:
    """A trainer of `tiny` on this machine's processor. settings: of its GRPOConfig. options: its own arguments."""
    config: dict[str, Any] = {"model_init_kwargs": {"dtype": "float32"}} if "model" not in options else {}
    return trl.GRPOTrainer(
        **{"model": str(TINY), "processing_class": tiny_tokenizer(), "train_dataset": dataset} | options,
        args=trl.GRPOConfig(
            output_dir=str(out),
            report_to=[],
            use_cpu=True,
            bf16=False,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            seed=0,
            **config | settings,
        ),
    )


def train(trainer: Any) -> tuple[list[float | None], list[float]]:
    """Train, which changes the weights; return the rewards of the last steps, None of failures, and their advantages."""
    before = {name: each.detach().clone() for name, each in trainer.model.named_parameters()}
    trainer.train()
    assert any(not torch.equal(before[name], each) for name, each in trainer.model.named_parameters())
    (rewards,) = trainer._logs["rewards"].values()
    advantages = list(trainer._logs["advantages"])
    assert any(advantage != 0.0 for advantage in advantages)
    return [None if value is None or math.isnan(value) else value for value in rewards], advantages
