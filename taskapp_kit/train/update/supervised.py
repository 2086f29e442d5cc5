"""Updates with given replies. The loss is -log p of the replies' tokens.

The loss of an update is the mean over all trained tokens, so all tokens have the same weight. Trained tokens must have
an advantage other than 0. The sampler's log-probabilities are not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from taskapp_kit.train.turns import TrainingRow
from taskapp_kit.train.update.policy_update import PaddedRows, PolicyUpdate


@dataclass(frozen=True, slots=True)
class SupervisedMetrics:
    """The metrics of one update.

    `loss` is the loss before the update in nats per token. `gradient_norm` is the norm before clipping.
    """

    version: int
    loss: float
    tokens: int
    gradient_norm: float
    seconds: float


def supervised_step(update: PolicyUpdate, rows: Sequence[TrainingRow]) -> SupervisedMetrics:
    """Make one optimizer step with all rows, and increment the version. `update` must have one minibatch.

    If the gradient is not finite, no step is made and TrainingError is raised.
    """
    started = perf_counter()
    update.optimizer.zero_grad(set_to_none=True)
    tokens, total = sum(row.trained for row in rows), 0.0
    for batch in _batches(update, rows):
        loss = _sum(update, batch) / tokens
        loss.backward()
        total += float(loss.detach())
    norm = update.step()
    update.optimizer.zero_grad(set_to_none=True)
    update.version += 1
    return SupervisedMetrics(update.version, total, tokens, norm, perf_counter() - started)


def supervised_loss(update: PolicyUpdate, rows: Sequence[TrainingRow]) -> float:
    """Return the loss of the current model, in nats per token."""
    with torch.no_grad():
        total = sum(float(_sum(update, batch)) for batch in _batches(update, rows))
    return total / sum(row.trained for row in rows)


def _batches(update: PolicyUpdate, rows: Sequence[TrainingRow]) -> Iterator[PaddedRows]:
    for minibatch in update.minibatches(rows):
        for rows_at_once in minibatch.micro_batches:
            yield PaddedRows(rows_at_once, update.model.device)


def _sum(update: PolicyUpdate, batch: PaddedRows) -> torch.Tensor:
    log_probs, _ = update.log_probs(update.model, batch)
    return -torch.where(batch.mask, log_probs, 0.0).sum()
