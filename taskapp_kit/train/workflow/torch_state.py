"""What policies and trainers set in torch for their whole process."""

from __future__ import annotations

import os

import torch


def device() -> str:
    """Return where models are: a GPU that the process may use, else the processor."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def use_threads(threads: int | None) -> None:
    """Compute with so many threads; None for half of the processors: policy and trainer compute at the same time."""
    torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // 2))
