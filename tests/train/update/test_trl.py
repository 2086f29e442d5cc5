"""The update's gradients against TRL's loss on equal batches.

TRL has one row for each episode, so these rows have no branches; its batches are padded in another way.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

datasets = pytest.importorskip("datasets", reason="needs trl: make test-train")

from taskapp_kit.train.turns import TrainingRow  # noqa: E402
from taskapp_kit.train.update.policy_update import PolicyUpdate  # noqa: E402
from taskapp_kit.train.update.update_settings import UpdateSettings  # noqa: E402
from tests.train.tiny_models import same_model, tiny_model  # noqa: E402
from tests.train.trl_trainer import grpo_trainer  # noqa: E402
from tests.train.update.rows import log_probs_of, random_rows  # noqa: E402
from tests.train.update.test_oracle import steps_of  # noqa: E402

pytestmark = pytest.mark.train


def trl_inputs(rows: Sequence[TrainingRow], reference: Any) -> dict[str, Any]:
    """The rows as GRPOTrainer's batch: prompts padded on the left, completions on the right, glue in `tool_mask`."""
    starts = [row.mask.index(True) for row in rows]
    prompt = max(starts)
    completion = max(len(row.ids) - start for row, start in zip(rows, starts, strict=True))

    def left(values: Sequence[int]) -> list[int]:
        return [0] * (prompt - len(values)) + list(values)

    def right(values: Sequence[float]) -> list[float]:
        return [*values, *[0] * (completion - len(values))]

    pairs = list(zip(rows, starts, strict=True))
    return {
        "prompt_ids": torch.tensor([left(row.ids[:start]) for row, start in pairs]),
        "prompt_mask": torch.tensor([left([1] * start) for _, start in pairs]),
        "completion_ids": torch.tensor([right(row.ids[start:]) for row, start in pairs]),
        "completion_mask": torch.tensor([right([1] * (len(row.ids) - start)) for row, start in pairs]),
        "tool_mask": torch.tensor([right([int(on) for on in row.mask[start:]]) for row, start in pairs]),
        "advantages": torch.tensor([row.advantages[start] for row, start in pairs]),
        "old_per_token_logps": torch.tensor([right(row.log_probs[start:]) for row, start in pairs]),
        "ref_per_token_logps": torch.tensor(
            [right(log_probs_of(reference, row.ids, 1.0)[start:]) for row, start in pairs]
        ),
    }


def trl_trainer(model: Any, folder: Path, **settings: Any) -> Any:
    """A trainer of a copy of the model. It loads the model from a folder, as it does a reference for beta."""
    model.save_pretrained(folder / "model")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    config = {
        "loss_type": "grpo",
        "use_bias_correction_kl": False,  # the KL term as it was published
        "model_init_kwargs": {"dtype": "float32"},
        "num_generations": 2,
        "per_device_train_batch_size": 2,
    }
    return grpo_trainer(
        folder,
        datasets.Dataset.from_dict({"prompt": ["<pad>"]}),
        config | settings,
        model=str(folder / "model"),
        processing_class=tokenizer,
        reward_funcs=lambda **_: [],
    )


@pytest.mark.parametrize("beta", [0.0, 0.2])
@pytest.mark.parametrize(
    ("loss", "clip", "level"), [("gspo", (0.02, 0.03), "sequence"), ("grpo", (0.1, 0.15), "token")]
)
def test_gradients_are_those_of_trl(tmp_path: Path, loss: Any, clip: Any, level: str, beta: float) -> None:
    """Two optimizer steps: the second one's ratios are clipped."""
    model, reference = tiny_model(), tiny_model(spread=0.17)
    rows = [dataclasses.replace(row, weight=1.0, rollout=str(place)) for place, row in enumerate(random_rows(model))]
    settings = UpdateSettings(
        learning_rate=2e-3, loss=loss, clip=clip, beta=beta, minibatches=2, largest_gradient_norm=math.inf
    )
    update = PolicyUpdate(same_model(model), settings, reference=reference if beta else None)
    plan = update.minibatches(rows)
    steps, metrics = steps_of(update, rows)
    assert metrics.clip_share > 0
    assert len(steps) == 2

    for minibatch, (current, gradients) in zip(plan, steps, strict=True):
        chosen = [row for micro_batch in minibatch.micro_batches for row in micro_batch]
        trainer = trl_trainer(
            current, tmp_path, importance_sampling_level=level, epsilon=clip[0], epsilon_high=clip[1], beta=beta
        )
        trainer.model.eval()
        trainer.compute_loss(trainer.model, trl_inputs(chosen, reference)).backward()
        share = len(chosen) / minibatch.episodes
        for name, parameter in trainer.model.named_parameters():
            expected = parameter.grad * share
            assert float((gradients[name] - expected).abs().max()) <= 1e-5 * float(expected.abs().max()), name
