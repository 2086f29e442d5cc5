"""LoRA adapters: a few weights beside frozen ones, injected by peft into a model that stays of its own class."""

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
"""Of an adapter's first weights: equal in every process, so that a job that starts again starts from the same model."""

SETTINGS = "adapter.json"
"""The file of a checkpoint that says how its adapter was made: the members of `LoraSettings`."""


def with_adapter(model: Any, lora: LoraSettings) -> Any:
    """Add an adapter to the model, in place, and return it; its other weights are frozen.

    At first it changes nothing: one of its two factors is 0. Raises ConfigError for a model without such layers.
    """
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules=list(lora.targets))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(INITIAL_SEED)
        try:
            # Injected, not wrapped: the model stays of its own class, with `config`, `logits_to_keep` and names for checkpoints.
            return inject_adapter_in_model(config, model).eval()
        except ValueError as error:
            raise ConfigError(
                f"{type(model).__name__} has no layers {', '.join(lora.targets)} for an adapter: {error}",
                hint="[lora] target_modules names linear layers of the model.",
            ) from error


def merged(model: Any) -> Any:
    """Add an adapter's product to the weights beside it, in place, and return the model without the adapter."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, layer in list(model.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            layer.merge()
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, layer.get_base_layer())
    return model


def sampler_copy(policy: Any, precision: Literal["fp32", "bf16"]) -> Any:
    """Return the sampler's own model, in the type that the update computes in. bf16 samples three times as fast.

    The two then differ by about 0.05 in a token's log-probability: the update recomputes the old ones and weights by the
    ratio.
    """
    return in_sampling_type(copy.deepcopy(policy), precision)


def in_sampling_type(model: Any, precision: Literal["fp32", "bf16"]) -> Any:
    """Convert a model to the type that a sampler computes in, in place, and return it."""
    return model.to(torch.bfloat16 if precision == "bf16" else torch.float32)


def adapter_part(lora: LoraSettings) -> dict[str, CheckpointPart]:
    """Return the file that a checkpoint of an adapter needs beside the adapter's weights."""
    return {SETTINGS: CheckpointPart.of(orjson.dumps(asdict(lora), option=orjson.OPT_INDENT_2))}


def adapter_of(checkpoint: StoredCheckpoint) -> LoraSettings:
    """Return how the adapter of a checkpoint was made. Raises CheckpointError."""
    try:
        found = orjson.loads((checkpoint.path / SETTINGS).read_bytes())
        return LoraSettings(int(found["rank"]), float(found["alpha"]), tuple(map(str, found["targets"])))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{SETTINGS} of the checkpoint {checkpoint.path} cannot be read: {error}") from None
