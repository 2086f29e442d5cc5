"""Weights and AdamW's state after a checkpoint: equal to the last bit, and so is the next update."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from taskapp_kit.errors import CheckpointError
from taskapp_kit.train.checkpoints.library import export_checkpoint, import_checkpoint
from taskapp_kit.train.checkpoints.state import restore_optimizer, restore_weights, state_parts
from taskapp_kit.train.checkpoints.stored import ADAPTER, OPTIMIZER, WEIGHTS, StoredCheckpoint, latest_checkpoint
from taskapp_kit.train.checkpoints.writer import CheckpointPart, CheckpointWriter
from taskapp_kit.train.update.memory import checkpoint_bytes
from taskapp_kit.train.update.policy_update import PolicyUpdate
from taskapp_kit.train.update.update_settings import UpdateSettings
from tests.train.checkpoints.facts import facts
from tests.train.tiny_models import tiny_model
from tests.train.update.rows import random_rows

pytestmark = pytest.mark.train

SETTINGS = UpdateSettings(learning_rate=1e-2, loss="grpo", minibatches=2, weight_decay=0.01, draw="job_1")


def save(root: Path, update: PolicyUpdate, **more: CheckpointPart) -> StoredCheckpoint:
    with CheckpointWriter(root) as writer:
        return writer.save(facts(update.version), {**state_parts(update.model, update.optimizer), **more})


def trained(root: Path) -> tuple[PolicyUpdate, StoredCheckpoint]:
    """An update after its first step, and its checkpoint."""
    update = PolicyUpdate(tiny_model(1), SETTINGS)
    update.train_step(random_rows(update.model))
    return update, save(root, update)


def restored(model: Any, checkpoint: StoredCheckpoint) -> PolicyUpdate:
    restore_weights(model, checkpoint)
    update = PolicyUpdate(model, SETTINGS, version=checkpoint.facts.weights_version)
    restore_optimizer(model, update.optimizer, checkpoint)
    return update


def state(update: PolicyUpdate) -> dict[str, Any]:
    """All tensors that the next update depends on, as copies."""
    found = dict(update.model.state_dict())
    for name, parameter in update.model.named_parameters():
        found |= {f"{name} {part}": value for part, value in update.optimizer.state.get(parameter, {}).items()}
    return {name: value.detach().clone() for name, value in found.items()}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert [
        name for name in one if one[name].dtype != other[name].dtype or not torch.equal(one[name], other[name])
    ] == []


def freeze_all_but(model: Any, part: str) -> Any:
    for name, parameter in model.named_parameters():
        parameter.requires_grad = part in name
    return model


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("trained", ["", "mlp"])
@pytest.mark.parametrize("updates", [0, 1, 3])
def test_a_restored_update_goes_on_as_if_never_interrupted(
    tmp_path: Path, family: str, tied: bool, trained: str, updates: int
) -> None:
    def model(seed: int) -> Any:
        made = tiny_model(seed, family, tie_word_embeddings=tied)
        if trained:  # an adapter needs the base that it was trained on
            made.load_state_dict(tiny_model(1, family, tie_word_embeddings=tied).state_dict())
        return freeze_all_but(made, trained)

    update = PolicyUpdate(model(1), SETTINGS)
    rows = random_rows(update.model)
    for _ in range(updates):
        update.train_step(rows)
    saved = save(tmp_path, update)
    assert saved.files.keys() == {ADAPTER if trained else WEIGHTS, OPTIMIZER, "checkpoint.json"}
    again = restored(model(2), latest_checkpoint(tmp_path))
    assert again.version == updates
    assert update.train_step(rows).gradient_norm == again.train_step(rows).gradient_norm > 0
    assert_same(state(update), state(again))
    changed = [
        name for name, value in model(1).state_dict().items() if not torch.equal(value, update.model.state_dict()[name])
    ]
    assert changed and all(trained in name for name in changed)


@pytest.mark.parametrize("trained", ["", "mlp"])
def test_the_size_of_a_checkpoint_is_known_before(tmp_path: Path, trained: str) -> None:
    update = PolicyUpdate(freeze_all_but(tiny_model(1, hidden_size=64), trained), SETTINGS)
    update.train_step(random_rows(update.model))
    saved = save(tmp_path, update)
    size = sum(file.stat().st_size for file in saved.path.iterdir())
    expected = checkpoint_bytes(sum(each.numel() for each in update.model.parameters() if each.requires_grad))
    assert expected < size < expected + 20_000  # headers and facts


def test_control_without_the_optimizer_the_next_update_differs(tmp_path: Path) -> None:
    update, saved = trained(tmp_path)
    rows = random_rows(update.model)
    model = tiny_model(2)
    restore_weights(model, saved)
    again = PolicyUpdate(model, SETTINGS, version=1)
    update.train_step(rows)
    again.train_step(rows)
    assert not torch.equal(update.model.state_dict()["lm_head.weight"], model.state_dict()["lm_head.weight"])


def test_the_settings_of_the_optimizer_stay_its_own(tmp_path: Path) -> None:
    _, saved = trained(tmp_path)
    model = tiny_model(1)
    other = torch.optim.AdamW(model.parameters(), lr=0.5)
    restore_optimizer(model, other, saved)
    assert other.param_groups[0]["lr"] == 0.5


def test_transformers_loads_an_exported_checkpoint(tmp_path: Path) -> None:
    """As a folder of its own format, with tied weights, and without code or pickles."""
    from transformers import AutoModelForCausalLM

    update = PolicyUpdate(tiny_model(1, tie_word_embeddings=True), SETTINGS)
    update.train_step(random_rows(update.model))
    config = CheckpointPart.of(json.dumps(update.model.config.to_dict()).encode())
    export_checkpoint(save(tmp_path / "c", update, **{"config.json": config}), tmp_path / "a.tar.gz")
    imported = import_checkpoint(tmp_path / "a.tar.gz", tmp_path / "models")
    loaded = AutoModelForCausalLM.from_pretrained(imported.path, local_files_only=True, use_safetensors=True)
    assert_same(dict(update.model.state_dict()), dict(loaded.state_dict()))
    with pytest.raises(CheckpointError, match="no optimizer"):
        restore_optimizer(loaded, PolicyUpdate(loaded, SETTINGS).optimizer, imported)


@pytest.mark.parametrize("other", ["larger", "deeper", "half", "frozen"])
def test_a_checkpoint_of_another_model_changes_nothing(tmp_path: Path, other: str) -> None:
    _, saved = trained(tmp_path)
    model = {
        "larger": lambda: tiny_model(2, vocab_size=50),
        "deeper": lambda: tiny_model(2, num_hidden_layers=3),
        "half": lambda: tiny_model(2).half(),
        "frozen": lambda: freeze_all_but(tiny_model(2), "mlp"),
    }[other]()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match="does not fit the model"):
        if other == "frozen":  # all weights fit: it is to be served, or trained with an adapter
            restore_optimizer(model, optimizer, saved)
        restore_weights(model, saved)
    assert_same(before, model.state_dict())
    assert not optimizer.state


def test_an_adapter_needs_all_that_is_trained(tmp_path: Path) -> None:
    saved = save(tmp_path, PolicyUpdate(freeze_all_but(tiny_model(1), "mlp"), SETTINGS))
    for part, fits in (("mlp", True), ("nothing", True), ("self_attn", False), ("", False)):
        model = freeze_all_but(tiny_model(2), part)
        if fits:
            restore_weights(model, saved)
            trained = {name: value for name, value in tiny_model(1).state_dict().items() if "mlp" in name}
            assert_same(trained, {name: model.state_dict()[name] for name in trained})
        else:
            with pytest.raises(CheckpointError, match="does not fit"):
                restore_weights(model, saved)


def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path) as writer:
        saved = writer.save(
            facts(), {WEIGHTS: CheckpointPart.of(b"\x80\x04\x95pickled"), OPTIMIZER: CheckpointPart.of(b"")}
        )
    model = tiny_model()
    with pytest.raises(CheckpointError, match=WEIGHTS):
        restore_weights(model, saved)
    with pytest.raises(CheckpointError, match=OPTIMIZER):
        restore_optimizer(model, PolicyUpdate(model, SETTINGS).optimizer, saved)
