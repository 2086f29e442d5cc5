"""Stores a policy's weights and AdamW's state in a checkpoint as safetensors, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from taskapp_kit.errors import CheckpointError
from taskapp_kit.train.checkpoints.stored import ADAPTER, OPTIMIZER, VALUE_HEAD, WEIGHTS, StoredCheckpoint
from taskapp_kit.train.checkpoints.writer import CheckpointPart

ADAM = ("step", "exp_avg", "exp_avg_sq")
"""The names of the state that AdamW has for each parameter after the first step."""

FORMAT = {"format": "pt"}
"""Metadata that transformers expects in a weights file."""


def state_parts(model: Any, optimizer: torch.optim.AdamW) -> dict[str, CheckpointPart]:
    """Return the checkpoint files that contain the model's weights and the optimizer's state.

    Only parameters that require a gradient are stored. The parameters must not change until the files are saved.
    """
    return {
        ADAPTER if _frozen(model) else WEIGHTS: trained_part(model),
        OPTIMIZER: _part(_optimizer_tensors(model, optimizer)),
    }


def trained_part(model: Any) -> CheckpointPart:
    """Return the file with a policy's trained weights: only the adapter if the other weights are frozen.

    The weights must not change until the file is written.
    """
    return _part(_trained(model) if _frozen(model) else _tensors(model))


def weights_part(model: Any) -> CheckpointPart:
    """Return the file with all weights of a model. Tied weights are stored once.

    The weights must not change until the file is written.
    """
    return _part(_tensors(model))


def load_weights(model: Any, path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors in a file from `weights_part` or `trained_part`. Tied weights occur under each of their names.

    Raises CheckpointError if the file cannot be read. This function does not check whether the tensors fit the model.
    """
    try:
        stored: dict[str, torch.Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"The weights {path} cannot be read: {error}") from error
    first: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        own = first.setdefault(id(tensor), name)
        if own in stored:
            stored[name] = stored[own]
    return stored


def value_head_part(layer: torch.nn.Module, optimizer: torch.optim.AdamW) -> dict[str, CheckpointPart]:
    """Return the file with a value head and its optimizer's state. Before the first step, this state is empty."""
    return {VALUE_HEAD: _part(_tensors(layer) | _optimizer_tensors(layer, optimizer))}


def restore_value_head(layer: torch.nn.Module, optimizer: torch.optim.AdamW, checkpoint: StoredCheckpoint) -> None:
    """Restore a value head and its optimizer from a checkpoint.

    Raises CheckpointError and changes nothing if the checkpoint has no value head, or if its width differs.
    """
    stored = _load(checkpoint, VALUE_HEAD)
    own = _tensors(layer)
    _check(checkpoint, VALUE_HEAD, stored, own | _expected_of_optimizer(layer, stored))
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(stored[name])
    _load_optimizer(layer, optimizer, stored)


def restore_weights(model: Any, checkpoint: StoredCheckpoint) -> None:
    """Copy a checkpoint's weights into a model.

    The model must have the same architecture and, for an adapter, the same base weights. Raises CheckpointError and
    changes nothing if names or shapes differ.
    """
    own = _tensors(model)
    if ADAPTER in checkpoint.files:
        stored = _load(checkpoint, ADAPTER)
        _check(checkpoint, ADAPTER, stored, {**{name: own[name] for name in stored if name in own}, **_trained(model)})
    else:
        stored = _load(checkpoint, WEIGHTS)
        _check(checkpoint, WEIGHTS, stored, own)
    with torch.no_grad():
        for name, tensor in stored.items():
            own[name].copy_(tensor)


def restore_optimizer(model: Any, optimizer: torch.optim.AdamW, checkpoint: StoredCheckpoint) -> None:
    """Restore the state of the model's optimizer from a checkpoint, but not options such as the learning rate.

    Raises CheckpointError and changes nothing if the checkpoint has no optimizer state or does not fit the model.
    """
    stored = _load(checkpoint, OPTIMIZER)
    _check(checkpoint, OPTIMIZER, stored, _expected_of_optimizer(model, stored))
    _load_optimizer(model, optimizer, stored)


def _expected_of_optimizer(model: Any, stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{part}": torch.zeros(()) if part == "step" else parameter
        for name, parameter in _trained(model).items()
        for part in ADAM
        if f"{name}.step" in stored
    }


def _load_optimizer(model: Any, optimizer: torch.optim.AdamW, stored: Mapping[str, torch.Tensor]) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    # The state is stored by parameter name, because torch.save uses pickle and AdamW numbers parameters by their order. The
    # state of random generators is not needed: dropout is off, and the update's version seeds the minibatches.
    order = [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        number: {part: stored[f"{name}.{part}"].clone() for part in ADAM}
        for number, name in enumerate(order)
        if f"{name}.step" in stored
    }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return the tensors in `state_dict` by name. Tied weights occur only once, under their first name."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (name, tensor))
    return dict(found.values())


def _frozen(model: Any) -> bool:
    """Return whether some weights are not trained."""
    return any(not each.requires_grad for each in model.parameters())


def _trained(model: Any) -> dict[str, torch.Tensor]:
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def _optimizer_tensors(model: Any, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}.{part}": state[part] for parameter, state in optimizer.state.items() for part in ADAM
    }


def _part(tensors: Mapping[str, torch.Tensor]) -> CheckpointPart:
    def write(path: Path) -> None:
        contents = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        try:
            save_file(contents, path, metadata=FORMAT)
        except SafetensorError as error:
            raise OSError(str(error)) from error

    return CheckpointPart(sum(each.numel() * each.element_size() for each in tensors.values()), write)


def _load(checkpoint: StoredCheckpoint, name: str) -> dict[str, torch.Tensor]:
    if name not in checkpoint.files:
        raise CheckpointError(
            f"The checkpoint {checkpoint.path} has no {name}.",
            hint="Exported checkpoints have no optimizer state. Start a new job from the weights instead of resuming.",
        )
    try:
        tensors: dict[str, torch.Tensor] = load_file(checkpoint.path / name)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{name} of the checkpoint {checkpoint.path} cannot be read: {error}") from error
    return tensors


def _check(
    checkpoint: StoredCheckpoint, name: str, stored: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> None:
    wrong = sorted(
        tensor
        for tensor in stored.keys() | expected.keys()
        if tensor not in stored
        or tensor not in expected
        or stored[tensor].shape != expected[tensor].shape
        or stored[tensor].dtype != expected[tensor].dtype
    )
    if wrong:
        raise CheckpointError(
            f"{name} of the checkpoint {checkpoint.path} does not fit the model: {len(wrong)} tensors differ in name, shape "
            f"or type, such as {wrong[0]!r}. Expected the same architecture and the same trained parameters."
        )
