"""An adapter changes nothing at first, is all that is trained, and is the same merged and stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from taskapp_kit.errors import CheckpointError, ConfigError
from taskapp_kit.train.checkpoints.facts import ModelOrigin
from taskapp_kit.train.checkpoints.library import import_checkpoint
from taskapp_kit.train.checkpoints.state import state_parts
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from taskapp_kit.train.job_settings import LoraSettings
from taskapp_kit.train.models.adapters import adapter_part, merged, sampler_copy, with_adapter
from taskapp_kit.train.models.loading import export_merged, load_model
from taskapp_kit.train.models.sources import find_model
from tests.train.checkpoints.facts import facts
from tests.train.models.test_loading import model_folder
from tests.train.tiny_models import same_model, tiny_model

pytestmark = pytest.mark.train

LORA = LoraSettings(rank=4, alpha=8.0, targets=("q_proj", "down_proj"))
IDS = torch.arange(20)[None]


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def trained(model: Any) -> torch.optim.AdamW:
    """Make two steps."""
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    for _ in range(2):
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def test_an_adapter_starts_as_nothing_and_alone_is_trained() -> None:
    base = tiny_model()
    model = with_adapter(same_model(base), LORA)
    assert type(model) is type(base)
    assert torch.equal(logits(model), logits(base))
    names = {name for name, each in model.named_parameters() if each.requires_grad}
    assert names and all("lora_" in name for name in names)
    frozen = {name: each.clone() for name, each in model.named_parameters() if not each.requires_grad}
    trained(model)
    assert all(torch.equal(each, frozen[name]) for name, each in model.named_parameters() if name in frozen)
    assert not torch.allclose(logits(model), logits(base), atol=1e-4)


def test_two_processes_start_from_the_same_adapter() -> None:
    one, two = with_adapter(tiny_model(), LORA), with_adapter(tiny_model(), LORA)
    torch.rand(3)
    assert all(torch.equal(each, other) for each, other in zip(one.parameters(), two.parameters(), strict=True))


def test_a_merged_adapter_answers_the_same_without_it() -> None:
    model = with_adapter(tiny_model(), LORA)
    trained(model)
    before = logits(model)
    plain = merged(model)
    assert plain.state_dict().keys() == tiny_model().state_dict().keys()
    torch.testing.assert_close(logits(plain), before, atol=1e-5, rtol=1e-5)


def test_a_stored_adapter_is_loaded_onto_its_base(tmp_path: Path) -> None:
    name, model = stored_adapter(tmp_path)
    loaded = load_model(find_model(name, tmp_path))
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=1e-5, rtol=1e-5)


def stored_adapter(models: Path, change: float = 0.0) -> tuple[str, Any]:
    """An adapter in the models folder, all of its weights plus `change`; its name, and the model that it was taken from."""
    model = with_adapter(model_folder(models / "base" / "small"), LORA)
    optimizer = trained(model)
    with torch.no_grad():
        for each in model.parameters():
            if each.requires_grad:
                each += change
    of_job = facts(origin=ModelOrigin("small", "MIT", "Trained by us."))
    with CheckpointWriter(models / "rl" / of_job.name.model / of_job.name.job) as writer:
        writer.save(of_job, state_parts(model, optimizer) | adapter_part(LORA))
    return str(of_job.name), model


def test_an_adapter_is_exported_as_whole_weights_that_need_no_base(tmp_path: Path) -> None:
    name, model = stored_adapter(tmp_path / "here")
    difference = export_merged(name, tmp_path / "here", tmp_path / "whole.tar.gz")
    assert 0 < difference < 1e-4
    imported = import_checkpoint(tmp_path / "whole.tar.gz", tmp_path / "there")
    assert "merged" in imported.facts.origin.notice
    loaded = load_model(find_model(name, tmp_path / "there"))
    assert loaded.source.base is None
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=1e-5, rtol=1e-5)


def test_a_merged_model_that_answers_otherwise_is_not_exported(tmp_path: Path) -> None:
    name, _ = stored_adapter(tmp_path, change=float("nan"))
    with pytest.raises(CheckpointError, match="Expected at most 0.001. Nothing was written"):
        export_merged(name, tmp_path, tmp_path / "whole.tar")
    assert not (tmp_path / "whole.tar").exists()


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no layers"):
        with_adapter(tiny_model(), LoraSettings(targets=("absent",)))


def test_the_samplers_model_shares_no_weights_and_may_be_shorter() -> None:
    model = tiny_model()
    copied = sampler_copy(model, "bf16")
    assert {each.dtype for each in copied.parameters()} == {torch.bfloat16}
    assert {each.dtype for each in model.parameters()} == {torch.float32}
