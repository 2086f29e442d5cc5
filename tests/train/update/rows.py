"""Training rows of random episodes, sampled by a model."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from taskapp_kit.train.turns import NOT_SAMPLED, TrainingRow
from tests.train.tiny_models import VOCABULARY


def log_probs_of(model: Any, ids: Sequence[int], temperature: float) -> list[float]:
    """The log-probability of each token after those before it; 0.0 of the first, which nothing predicts."""
    with torch.no_grad():
        all_of_them = torch.log_softmax(model(torch.tensor([ids])).logits[0].double() / temperature, dim=-1)
    return [0.0, *(float(all_of_them[place - 1, ids[place]]) for place in range(1, len(ids)))]


def largest_difference(model: Any, row: TrainingRow, temperature: float = 1.0) -> float:
    """Between the row's log-probabilities and the model's, where it is trained on."""
    pairs = zip(row.log_probs, log_probs_of(model, row.ids, temperature), row.mask, strict=True)
    return max(abs(recorded - computed) for recorded, computed, trained in pairs if trained)


def random_rows(
    model: Any, *, seed: int = 0, groups: int = 3, size: int = 3, temperature: float = 1.0, version: int = 0
) -> list[TrainingRow]:
    """Episodes of one to three turns with glue between them; every third has two branches. One group has no spread.

    model: gives the sampler's log-probabilities.
    """
    random = Random(seed)
    rows = []
    for group in range(groups):
        for member in range(size):
            advantage = 0.0 if group == groups - 1 else random.uniform(-2, 2)
            branches = 2 if member == 0 else 1
            shares = [random.uniform(0.3, 0.7)] if branches == 2 else [1.0]
            shares += [1 - shares[0]] if branches == 2 else []
            for share in shares:
                mask = [False] * random.randint(2, 6)
                for _ in range(random.randint(1, 3)):
                    mask += [True] * random.randint(1, 6) + [False] * random.randint(0, 4)
                ids = random.choices(range(VOCABULARY), k=len(mask))
                log_probs = log_probs_of(model, ids, temperature)
                rows.append(
                    TrainingRow(
                        ids=tuple(ids),
                        mask=tuple(mask),
                        log_probs=tuple(each if on else 0.0 for each, on in zip(log_probs, mask, strict=True)),
                        versions=tuple(version if on else NOT_SAMPLED for on in mask),
                        advantages=tuple(advantage if on else 0.0 for on in mask),
                        group=f"g{group}",
                        rollout=f"g{group}/{member}",
                        weight=share,
                    )
                )
    return rows
