"""LoRA adapters: peft adds a few trained weights to the frozen weights of a model, without replacing the model object."""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import Any, Literal

import orjson
import torch

from taskapp_kit.errors import CheckpointError, ConfigError
from taskapp_kit.train.checkpoints.stored import StoredCheckpoint
from taskapp_kit.train.checkpoints.writer import CheckpointPart
from taskapp_kit.train.job_settings import LoraSettings

INITIAL_SEED = 0
"""The seed of an adapter's initial weights. It is constant, so that a restarted job has the same initial model."""

SETTINGS = "adapter.json"
"""The file in a checkpoint with the adapter's settings, which are the fields of `LoraSettings`."""


def with_adapter(model: Any, lora: LoraSettings) -> Any:
    """Add an adapter to the model in place, freeze all other weights, and return the model.

    A new adapter has no effect, because one of its two factors is 0. Raises ConfigError if the model lacks a target
    layer.
    """
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules=list(lora.targets))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(INITIAL_SEED)
        try:
            # Injecting instead of wrapping keeps the model's class, `config`, `logits_to_keep` and the names in checkpoints.
            return inject_adapter_in_model(config, model).eval()
        except ValueError as error:
            raise ConfigError(
                f"{type(model).__name__} has no layers {', '.join(lora.targets)} for an adapter: {error}",
                hint="Set [lora] target_modules to linear layers of the model.",
            ) from error


def merged(model: Any) -> Any:
    """Merge an adapter into the weights in place, and return the model without the adapter."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, layer in list(model.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            layer.merge()
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, layer.get_base_layer())
    return model


def sampler_copy(policy: Any, precision: Literal["fp32", "bf16"]) -> Any:
    """Return a copy of the policy for the sampler in the given precision. bf16 samples three times as fast as fp32.

    With bf16, the log-probabilities of the sampler and the update differ by about 0.05 per token. The update therefore
    recomputes them and weights tokens by the ratio.
    """
    return in_sampling_type(copy.deepcopy(policy), precision)


def in_sampling_type(model: Any, precision: Literal["fp32", "bf16"]) -> Any:
    """Convert a model in place to the sampler's data type, and return it."""
    return model.to(torch.bfloat16 if precision == "bf16" else torch.float32)


def adapter_part(lora: LoraSettings) -> dict[str, CheckpointPart]:
    """Return the file that a checkpoint of an adapter needs in addition to the weights."""
    return {SETTINGS: CheckpointPart.of(orjson.dumps(asdict(lora), option=orjson.OPT_INDENT_2))}


def adapter_of(checkpoint: StoredCheckpoint) -> LoraSettings:
    """Return the settings of a checkpoint's adapter. Raises CheckpointError if they cannot be read."""
    try:
        found = orjson.loads((checkpoint.path / SETTINGS).read_bytes())
        return LoraSettings(int(found["rank"]), float(found["alpha"]), tuple(map(str, found["targets"])))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{SETTINGS} of the checkpoint {checkpoint.path} cannot be read: {error}") from None
