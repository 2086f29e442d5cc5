"""Exports an adapter as whole weights: merged with its base, so that it is served and trained without it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from taskapp_kit.errors import CheckpointError
from taskapp_kit.train.checkpoints.library import export_checkpoint
from taskapp_kit.train.checkpoints.state import state_parts
from taskapp_kit.train.checkpoints.stored import WEIGHTS
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from taskapp_kit.train.models.adapters import merged
from taskapp_kit.train.models.loading import load_with_adapter
from taskapp_kit.train.models.sources import described_by, find_model

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
