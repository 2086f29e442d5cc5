"""Loads models from safetensors and JSON files, without running code from the model's directory or contacting a hub.

It also exports an adapter merged with its base model, so that the result can be served and trained without the base.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import torch
import transformers
from transformers import AutoModelForCausalLM

from taskapp_kit.errors import CheckpointError, ConfigError
from taskapp_kit.train.checkpoints.library import export_checkpoint
from taskapp_kit.train.checkpoints.state import restore_weights, state_parts
from taskapp_kit.train.checkpoints.stored import WEIGHTS
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from taskapp_kit.train.models.adapters import adapter_of, merged, with_adapter
from taskapp_kit.train.models.sources import (
    ARCHITECTURE,
    TEMPLATE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    ModelSource,
    described_by,
    find_model,
)
from taskapp_kit.train.rendering.families import differences, renderer_for
from taskapp_kit.train.rendering.renderer import Renderer
from taskapp_kit.train.rendering.tokenizer import JsonTokenizer

CODE = ("auto_map", "custom_pipelines")
"""Keys of a model's config that refer to code."""
PEFT_ADAPTER = "adapter_config.json"
"""A file that makes transformers apply an adapter and search for its base model elsewhere."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its renderer.

    Attributes:
        model: A causal language model from transformers, in fp32, in eval mode, on the CPU.
        renderer: The renderer of the model's conversations.
        source: Where the model was found.
        differences: The conversations (`rendering.families.PROBES`) that the model's chat template renders differently.
            Serving and training use the renderer.
    """

    model: Any
    renderer: Renderer
    source: ModelSource
    differences: Sequence[str]


def load_model(source: ModelSource) -> LoadedModel:
    """Load a model. An adapter is merged into its base model. Raises ConfigError if the model cannot be loaded."""
    template = _template(source)
    renderer = renderer_for(JsonTokenizer.from_file(source.folder / TOKENIZER), template)
    model = _weights(source)
    if unknown := [
        name for name in renderer.required if renderer.tokenizer.token(name) not in range(_vocabulary(model))
    ]:
        raise ConfigError(f"The model {source.name!r} has no weights for the token {unknown[0]} of its tokenizer.")
    return LoadedModel(model, renderer, source, differences(renderer, template) if template else ())


def load_with_adapter(source: ModelSource) -> Any:
    """Load the base model of an adapter, and add the adapter without merging it. Raises ConfigError if this fails."""
    checkpoint, base = source.checkpoint, source.base
    assert checkpoint is not None, "it is an adapter"
    assert base is not None, "it is an adapter"
    try:
        model = with_adapter(_weights(base), adapter_of(checkpoint))
        restore_weights(model, checkpoint)
    except CheckpointError as error:
        raise ConfigError(f"The adapter {source.name} cannot be applied to {base.name}: {error.message}") from error
    return model


def _weights(source: ModelSource) -> Any:
    if source.base is not None:
        return merged(load_with_adapter(source))
    _check_architecture(source)
    logged = transformers.logging.get_verbosity()
    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(
            source.folder,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # transformers passes on all kinds of exceptions
        raise ConfigError(f"The model {source.name!r} cannot be loaded from {source.folder}: {error}") from error
    finally:
        transformers.logging.set_verbosity(logged)
        if bars:
            transformers.logging.enable_progress_bar()
    # transformers only warns. It fills missing tensors with random numbers and ignores unknown tensors.
    wrong = sorted(
        {*loaded["missing_keys"], *loaded["unexpected_keys"], *(each[0] for each in loaded["mismatched_keys"])}
    )
    if wrong:
        raise ConfigError(
            f"The weights of the model {source.name!r} do not fit its {ARCHITECTURE}: {len(wrong)} tensors are missing or "
            f"unknown, or have a different shape, such as {wrong[0]!r}."
        )
    return model.eval()


def _check_architecture(source: ModelSource) -> None:
    described = _json(source, source.folder / ARCHITECTURE)
    if found := [name for name in CODE if name in described]:
        raise ConfigError(f"The model {source.name!r} requires custom code ({found[0]}), which is never run.")
    if "quantization_config" in described:
        raise ConfigError(
            f"The model {source.name!r} is quantized, but only float weights can be trained.",
            hint="Dequantize the model into a directory first.",
        )
    if (source.folder / PEFT_ADAPTER).exists():
        raise ConfigError(
            f"The directory of the model {source.name!r} contains {PEFT_ADAPTER}, but only complete weights can be loaded.",
            hint="Merge the adapter with its base model first.",
        )


def _template(source: ModelSource) -> str | None:
    """Return the model's chat template, or None if it is missing."""
    try:
        return (source.folder / TEMPLATE).read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise ConfigError(f"{TEMPLATE} of the model {source.name!r} cannot be read: {error}.") from None
    path = source.folder / TOKENIZER_CONFIG
    template = _json(source, path).get("chat_template") if path.is_file() else None
    return template if isinstance(template, str) else None


def _json(source: ModelSource, path: Path) -> dict[str, Any]:
    try:
        value = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path.name} of the model {source.name!r} cannot be read: {error}.") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path.name} of the model {source.name!r} is not a JSON object.")
    return value


def _vocabulary(model: Any) -> int:
    rows: int = model.get_input_embeddings().weight.shape[0]
    return rows


MERGED = "Its adapter is merged into the weights of the base."
LARGEST_DIFFERENCE = 1e-3
"""The largest accepted change of a token's log-probability by merging. In fp32, the change is about 1e-5."""
COMPARED_TOKENS = 64


def export_merged(name: str, models: Path, archive: Path) -> float:
    """Export a trained model with its adapter merged into its base, under the same name.

    Returns the largest change that merging causes in a token's log-probability. Raises ConfigError if the model cannot
    be loaded, and CheckpointError if it is not an adapter, if that change is too large, or if writing fails.
    """
    source = find_model(name, models, paths=False)
    if source.checkpoint is None or source.base is None:
        raise CheckpointError(f"{name} has complete weights, so there is nothing to merge.", hint="Omit --merge.")
    model = load_with_adapter(source)
    before = _log_probs(model)
    model = merged(model).requires_grad_(True)
    difference = float((_log_probs(model) - before).abs().max())
    if not difference <= LARGEST_DIFFERENCE:
        raise CheckpointError(
            f"Merging {name} with its base changes a token's log-probability by {difference:.2g}. Expected at most "
            f"{LARGEST_DIFFERENCE:g}. Nothing was written.",
            hint="Omit --merge to export the adapter itself.",
        )
    facts = source.checkpoint.facts
    facts = replace(facts, origin=replace(facts.origin, notice=f"{facts.origin.notice} {MERGED}".strip()))
    weights = state_parts(model, torch.optim.AdamW(model.parameters()))[WEIGHTS]
    with (
        tempfile.TemporaryDirectory(prefix=".merging-", dir=archive.absolute().parent) as folder,
        CheckpointWriter(Path(folder) / "job") as writer,
    ):
        export_checkpoint(writer.save(facts, {**described_by(source), WEIGHTS: weights}), archive)
    return difference


def _log_probs(model: Any) -> torch.Tensor:
    """Return the model's log-probabilities of all tokens at each position of a random sequence."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (1, COMPARED_TOKENS), generator=generator)
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=ids).logits, dim=-1)
