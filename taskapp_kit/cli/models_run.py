"""What `taskapp models` does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from taskapp_kit.cli.terminal import clean, console, echo, number, one_line, size_words, table
from taskapp_kit.errors import CheckpointError
from taskapp_kit.train.checkpoints.facts import TrainedModelName
from taskapp_kit.train.checkpoints.library import (
    TrainedModel,
    export_checkpoint,
    import_checkpoint,
    remove_trained_model,
    trained_model,
    trained_models,
)
from taskapp_kit.train.checkpoints.stored import ADAPTER
from taskapp_kit.train.engine.local_engine import check_installed


def listed(models: Path) -> dict[str, Any]:
    """Return the trained models as JSON."""
    return {"folder": str(models), "models": [_shown(model) for model in trained_models(models)]}


def show(found: dict[str, Any]) -> None:
    """Print one row for each model."""
    if not found["models"]:
        echo(f"There are no trained models in {clean(found['folder'])}; `taskapp train --local` trains one.", err=True)
        return
    rows = table("name", "iteration", "score", "size", "kind", "saved", right=("iteration", "score", "size"))
    for model in found["models"]:
        rows.add_row(
            clean(model["name"]),
            f"{model['iteration']}",
            number(model["score"]),
            size_words(model["size_bytes"]),
            f"adapter on {one_line(model['base'], 60)}" if model["adapter"] else "whole",
            model["saved_at"][:19].replace("T", " "),
        )
    console().print(rows)


def export(models: Path, name: str, archive: Path, *, merge: bool) -> dict[str, Any]:
    """Write a model into an archive. Raises BadArgument, CheckpointError, Unavailable."""
    checkpoint = trained_model(models, TrainedModelName.parse(name))
    if merge and ADAPTER not in checkpoint.files:
        raise CheckpointError(f"{name} has whole weights, so there is nothing to merge.", hint="Leave --merge out.")
    compared = {}
    if merge:
        check_installed("Merging an adapter")
        from taskapp_kit.train.models.loading import export_merged

        compared = {"largest_difference": export_merged(name, models, archive)}
    else:
        export_checkpoint(checkpoint, archive)
    return {"name": name, "archive": str(archive), "size_bytes": archive.stat().st_size, **compared}


def import_(models: Path, archive: Path) -> dict[str, Any]:
    """Unpack an archive. Raises CheckpointError."""
    checkpoint = import_checkpoint(archive, models)
    return {"name": str(checkpoint.facts.name), "folder": str(checkpoint.path)}


def remove(models: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Remove models. Raises BadArgument before any is removed, CheckpointError."""
    parsed = [TrainedModelName.parse(name) for name in names]
    return [{"name": str(name), "size_bytes": remove_trained_model(models, name)} for name in parsed]


def _shown(model: TrainedModel) -> dict[str, Any]:
    facts = model.facts
    return {
        "name": str(model.name),
        "base": facts.origin.base,
        "licence": facts.origin.licence,
        "job": facts.job,
        "iteration": facts.position.iteration,
        "weights_version": facts.weights_version,
        "score": facts.score,
        "size_bytes": model.size,
        "adapter": model.adapter,
        "resumable": model.resumable,
        "saved_at": datetime.fromtimestamp(model.modified, UTC).isoformat(),
    }
