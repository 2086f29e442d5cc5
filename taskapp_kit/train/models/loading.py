"""Loads a model that was found: safetensors and JSON only, no code of its own, nothing from a hub.

Also exports an adapter as whole weights: merged with its base, so that it is served and trained without it.
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
"""Members of a model's config that name code of its own."""
PEFT_ADAPTER = "adapter_config.json"
"""A file that makes transformers apply an adapter, whose base it would look for elsewhere."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its renderer. model: a causal language model of transformers, fp32, in eval mode, on the CPU.

    differences: the names of the conversations (`rendering.families.PROBES`) that the model's own chat template renders
    otherwise; all of them are served and trained as the renderer does it.
    """

    model: Any
    renderer: Renderer
    source: ModelSource
    differences: Sequence[str]


def load_model(source: ModelSource) -> LoadedModel:
    """Load the weights, those of a checkpoint on top of its base. Raises ConfigError for what cannot be loaded."""
    template = _template(source)
    renderer = renderer_for(JsonTokenizer.from_file(source.folder / TOKENIZER), template)
    model = _weights(source)
    if unknown := [
        name for name in renderer.required if renderer.tokenizer.token(name) not in range(_vocabulary(model))
    ]:
        raise ConfigError(f"The weights of the model {source.name!r} have no row for its token {unknown[0]}.")
    return LoadedModel(model, renderer, source, differences(renderer, template) if template else ())


def load_with_adapter(source: ModelSource) -> Any:
    """Load the base of an adapter, with the adapter beside its weights. Raises ConfigError."""
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
    except Exception as error:  # transformers raises whatever its parts do
        raise ConfigError(f"The model {source.name!r} cannot be loaded from {source.folder}: {error}") from error
    finally:
        transformers.logging.set_verbosity(logged)
        if bars:
            transformers.logging.enable_progress_bar()
    # transformers fills tensors that a file lacks with random numbers and ignores unknown ones, each with a warning.
    wrong = sorted(
        {*loaded["missing_keys"], *loaded["unexpected_keys"], *(each[0] for each in loaded["mismatched_keys"])}
    )
    if wrong:
        raise ConfigError(
            f"The weights of the model {source.name!r} do not fit its {ARCHITECTURE}: {len(wrong)} tensors are missing, "
            f"unknown or of another shape, such as {wrong[0]!r}."
        )
    return model.eval()


def _check_architecture(source: ModelSource) -> None:
    described = _json(source, source.folder / ARCHITECTURE)
    if found := [name for name in CODE if name in described]:
        raise ConfigError(f"The model {source.name!r} needs code of its own ({found[0]}), which is never run.")
    if "quantization_config" in described:
        raise ConfigError(
            f"The model {source.name!r} is quantised; expected float weights, which alone can be trained.",
            hint="Dequantise it into a folder first.",
        )
    if (source.folder / PEFT_ADAPTER).exists():
        raise ConfigError(
            f"The folder of the model {source.name!r} has an {PEFT_ADAPTER}; expected whole weights.",
            hint="Merge the adapter with its base first.",
        )


def _template(source: ModelSource) -> str | None:
    """The model's own chat template, in Jinja; None if it has none."""
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
        raise ConfigError(f"{path.name} of the model {source.name!r} is no JSON object.")
    return value


def _vocabulary(model: Any) -> int:
    rows: int = model.get_input_embeddings().weight.shape[0]
    return rows


MERGED = "Its adapter is merged into the weights of the base."
LARGEST_DIFFERENCE = 1e-3
"""Of a token's log-probability, merged and not; fp32 differs by about 1e-5."""
COMPARED_TOKENS = 64


def export_merged(name: str, models: Path, archive: Path) -> float:
    """Write a trained model whose adapter is merged with its base into an archive, under the same name.

    Returns the largest difference between the log-probabilities of the two. Raises ConfigError if it cannot be loaded,
    CheckpointError if it is no adapter, cannot be written, or the merged model answers otherwise.
    """
    source = find_model(name, models, paths=False)
    if source.checkpoint is None or source.base is None:
        raise CheckpointError(f"{name} has whole weights, so there is nothing to merge.", hint="Leave --merge out.")
    model = load_with_adapter(source)
    before = _log_probs(model)
    model = merged(model).requires_grad_(True)
    difference = float((_log_probs(model) - before).abs().max())
    if not difference <= LARGEST_DIFFERENCE:
        raise CheckpointError(
            f"{name} merged with its base differs by {difference:.2g} in a token's log-probability; expected at most "
            f"{LARGEST_DIFFERENCE:g}. Nothing was written.",
            hint="Leave --merge out: the adapter itself can be exported.",
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
    """Return every token's log-probability after each of some tokens, drawn from the whole vocabulary."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (1, COMPARED_TOKENS), generator=generator)
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=ids).logits, dim=-1)
