"""Folders and checkpoints are loaded as they were saved; what would need code, or would load half, is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from taskapp_kit.errors import ConfigError
from taskapp_kit.train.checkpoints.facts import ModelOrigin
from taskapp_kit.train.checkpoints.state import state_parts
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from taskapp_kit.train.models.loading import load_model
from taskapp_kit.train.models.sources import described_by, find_model
from tests.train.checkpoints.facts import facts
from tests.train.rendering.test_tokenizer import definition
from tests.train.tiny_models import tiny_model

pytestmark = pytest.mark.train

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)


def model_folder(path: Path, **sizes: Any) -> Any:
    model = tiny_model(vocab_size=341, **sizes)
    model.save_pretrained(path)
    (path / "tokenizer.json").write_text(definition())
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return model


def same(one: Any, other: Any) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in one.state_dict().items())


def test_a_folder_is_loaded_in_fp32_with_its_renderer(tmp_path: Path) -> None:
    model = model_folder(tmp_path, tie_word_embeddings=True)
    halved = {name: tensor.bfloat16() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(halved, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = load_model(find_model(str(tmp_path), tmp_path))
    assert {each.dtype for each in loaded.model.parameters()} == {torch.float32}
    assert same(model.bfloat16().float(), loaded.model) and not loaded.model.training
    assert loaded.renderer.family == "chatml"
    assert set(loaded.differences) == {"tools", "tool calls"}  # the template ignores them


def test_a_template_is_also_found_where_older_models_have_it(tmp_path: Path) -> None:
    model_folder(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    assert load_model(find_model(str(tmp_path), tmp_path)).differences == ()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    assert load_model(find_model(str(tmp_path), tmp_path)).differences


def test_a_checkpoint_is_loaded_without_its_base(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "base" / "small")
    source = find_model("small", tmp_path)
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        model.model.norm.weight.add_(0.5)
    found = facts(origin=ModelOrigin("small", "MIT", ""))
    with CheckpointWriter(tmp_path / "rl/small/job_1") as writer:
        writer.save(found, {**described_by(source), **state_parts(model, optimizer)})
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    loaded = load_model(find_model("rl:small:job_1:checkpoint-1", tmp_path))
    assert same(model, loaded.model)


def test_what_would_need_code_or_another_adapter_is_refused(tmp_path: Path) -> None:
    model_folder(tmp_path)
    plain = json.loads((tmp_path / "config.json").read_text())
    for member, said in (("auto_map", "requires custom code"), ("quantization_config", "quantized")):
        (tmp_path / "config.json").write_text(json.dumps({**plain, member: {}}))
        with pytest.raises(ConfigError, match=said):
            load_model(find_model(str(tmp_path), tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(plain))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="adapter_config"):
        load_model(find_model(str(tmp_path), tmp_path))


def test_weights_that_are_missing_or_of_another_shape_are_never_random(tmp_path: Path) -> None:
    model_folder(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    norm = "model.norm.weight"
    changed = {"missing": {}, "shape": {norm: torch.ones(5)}, "unknown": {norm: whole[norm], "other": torch.ones(1)}}
    for extra in changed.values():
        rest = {name: tensor for name, tensor in whole.items() if name != norm}
        save_file({**rest, **extra}, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ConfigError):
            load_model(find_model(str(tmp_path), tmp_path))


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    model = model_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(find_model(str(tmp_path), tmp_path))


def test_a_vocabulary_larger_than_the_weights_is_refused(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)  # 48 rows
    enlarged = json.loads(definition())
    for token in enlarged["added_tokens"]:
        enlarged["model"]["vocab"].pop(token["content"], None)
    shifted = {name: number for number, name in enumerate(enlarged["model"]["vocab"])}
    enlarged["model"]["vocab"] = shifted
    for number, token in enumerate(enlarged["added_tokens"]):
        token["id"] = len(shifted) + number
    (tmp_path / "tokenizer.json").write_text(json.dumps(enlarged))
    with pytest.raises(ConfigError, match="no weights for the token"):
        load_model(find_model(str(tmp_path), tmp_path))
