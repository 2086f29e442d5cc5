"""Facts and files of checkpoints, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from taskapp_kit.train.checkpoints.facts import CheckpointFacts, JobPosition, ModelOrigin
from taskapp_kit.train.checkpoints.stored import OPTIMIZER, WEIGHTS
from taskapp_kit.train.checkpoints.writer import CheckpointPart


def facts(iteration: int = 1, incarnation: int = 1, score: float | None = None, **other: Any) -> CheckpointFacts:
    return CheckpointFacts(
        **{
            "job": "job_1",
            "position": JobPosition(iteration, incarnation, ("train/3/0",)),
            "weights_version": iteration,
            "origin": ModelOrigin("tests/tiny", "Apache-2.0", "Trained further by job_1."),
            "config": {"training": {"learning_rate": 1e-5, "seeds": [1, 2]}},
            "seeds": {"job": 7},
            "score": score,
        }
        | other
    )


def parts(content: bytes = b"weights") -> dict[str, CheckpointPart]:
    """Three files; the reading of safetensors is of no interest here."""
    return {
        WEIGHTS: CheckpointPart.of(content),
        OPTIMIZER: CheckpointPart.of(content[::-1]),
        "config.json": CheckpointPart.of(b"{}"),
    }


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}
