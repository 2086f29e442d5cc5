"""Updates a policy, with one `train_step` for each batch of rows.

    rows (ppo first computes values and advantages) -> minibatches -> micro-batches -> gradients -> optimizer steps

The old policy is the policy at the start of the update. For the first minibatch, its log-probabilities are the current
log-probabilities. For later minibatches, the sampler's log-probabilities are used if they agree with the current ones
in the first minibatch and all rows have the update's version. Otherwise the old policy's log-probabilities are computed
before the first optimizer step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from taskapp_kit.errors import BadArgument, TrainingError
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.train.turns import NOT_SAMPLED, TrainingRow, UpdateMetrics
from taskapp_kit.train.update.losses import TokenStatistics, joined, mean, row_means, token_losses
from taskapp_kit.train.update.memory import (
    Minibatch,
    ModelShape,
    in_order,
    micro_batches,
    plan_minibatches,
    predicted_positions,
)
from taskapp_kit.train.update.ppo import ValueHead
from taskapp_kit.train.update.update_settings import UpdateSettings


class PaddedRows:
    """The rows of a micro-batch as tensors, padded on the right and reduced to the predicted positions."""

    def __init__(self, rows: Sequence[TrainingRow], device: Any) -> None:
        longest = max(len(row.ids) for row in rows)
        kept = predicted_positions(rows)

        def tensor(columns: Sequence[Sequence[float]], dtype: Any) -> torch.Tensor:
            padded = [[*column, *[0] * (longest - len(column))] for column in columns]
            return torch.tensor(padded, dtype=dtype, device=device)

        self.ids = tensor([row.ids for row in rows], torch.long)
        self.attention = tensor([[1] * len(row.ids) for row in rows], torch.long)
        self.kept = torch.tensor(kept, device=device)
        self.targets = self.ids[:, kept]
        self.mask = tensor([row.mask for row in rows], torch.bool)[:, kept]
        self.sampler = tensor([row.log_probs for row in rows], torch.float32)[:, kept]
        self.advantages = tensor([row.advantages for row in rows], torch.float32)[:, kept]
        self.weights = torch.tensor([[row.weight] for row in rows], device=device)


class PolicyUpdate:
    """Updates a causal language model from transformers in place. The weights must be fp32.

    Parameters that do not require a gradient do not change. Dropout is off, as in the sampler. `value_head` is None
    unless the loss is ppo.

    Args:
        model: The policy.
        settings: The settings of each update.
        reference: The reference model for the KL term. Required if beta is greater than 0.
        version: The number of updates that were already made.

    Raises:
        BadArgument: `reference` is missing although beta is greater than 0, or is given although beta is 0, or the
            weights are not fp32.
    """

    def __init__(self, model: Any, settings: UpdateSettings, *, reference: Any = None, version: int = 0) -> None:
        if (reference is None) != (settings.beta == 0):
            raise BadArgument(
                f"`beta` is {settings.beta} {'without' if reference is None else 'with'} a reference model. "
                "Pass a reference model if and only if beta is greater than 0."
            )
        wrong = sorted({str(each.dtype) for each in model.parameters() if each.dtype != torch.float32})
        if wrong:
            raise BadArgument(
                f"The model has weights of type {', '.join(wrong)}. Expected torch.float32, because smaller types "
                'lose small steps. To compute with bf16, set precision = "bf16".'
            )
        self.model = model.eval()
        self.settings = settings
        self.version = version
        self.optimizer = torch.optim.AdamW(
            [each for each in model.parameters() if each.requires_grad],
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
        )
        ppo = settings.loss == "ppo"
        self.value_head = ValueHead(model.config.hidden_size, settings.ppo, model.device) if ppo else None
        self._passes = settings.ppo.passes if ppo else 1
        self._reference = reference.eval() if reference is not None else None
        self._shape = ModelShape.of(model.config)

    def train_step(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        """Make one update, increment the version, and return the metrics.

        A minibatch without a gradient makes no optimizer step.

        Raises:
            BadArgument: A row is unsuitable for training. Nothing has changed.
            TrainingError: A gradient is not finite. Earlier minibatches may already have changed the weights, so return
                to a checkpoint.
        """
        started = perf_counter()
        self._check(rows)
        rate = self.settings.rate(self.version + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        values = None
        if self.value_head is not None:
            rows, values = self.value_head.learn(rows, self._features)
        parts = self.minibatches(rows)
        plan = parts * self._passes
        statistics = TokenStatistics()
        losses: list[float] = []
        norms: list[float] = []
        old: dict[tuple[int, int], torch.Tensor] = {}
        """The old policy's log-probabilities by minibatch and micro-batch. If empty, the sampler's are used instead."""
        agrees = False
        for number, minibatch in enumerate(plan):
            self.optimizer.zero_grad(set_to_none=True)
            for place, micro_batch in enumerate(minibatch.micro_batches):
                batch = PaddedRows(micro_batch, self.model.device)
                before = old.get((number % len(parts), place), batch.sampler if number else None)
                losses.append(self._backward(batch, before, minibatch.episodes, statistics))
            if number == 0:
                agrees = self._agrees(rows, statistics)
                if not agrees:
                    old = {
                        (later, place): self._old(PaddedRows(micro_batch, self.model.device), statistics)
                        for later in range(self._passes == 1, len(parts))
                        for place, micro_batch in enumerate(parts[later].micro_batches)
                    }
            # No step without a gradient, because Adam's momentum would still change the weights.
            if minibatch.micro_batches:
                norms.append(self.step())
        self.optimizer.zero_grad(set_to_none=True)
        self.version += 1
        trained = [row for each in parts for micro_batch in each.micro_batches for row in micro_batch]
        ages = [
            self.version - 1 - min(version for version, on in zip(row.versions, row.mask, strict=True) if on)
            for row in trained
        ]
        mismatch = statistics.mismatch()
        return UpdateMetrics(
            version=self.version,
            learning_rate=rate,
            loss=sum(losses) / len(plan),
            steps=len(norms),
            episodes=sum(each.episodes for each in parts),
            rows=len(trained),
            idle_rows=len(rows) - len(trained),
            tokens=sum(row.trained for row in trained),
            gradient_norm=max(norms, default=0.0),
            entropy=mean(joined(statistics.entropies)),
            clip_share=mean(joined(statistics.clipped)),
            kl=mean(joined(statistics.kls)),
            mismatch_mean=mean(mismatch),
            mismatch_p99=float(mismatch.quantile(0.99)) if len(mismatch) else None,
            mismatch_largest=float(mismatch.max()) if len(mismatch) else None,
            effective_share=statistics.effective_share(),
            sampler_agrees=agrees,
            age_mean=sum(ages) / len(ages) if ages else 0.0,
            age_largest=max(ages, default=0),
            value_loss=None if values is None else values.loss,
            explained_variance=None if values is None else values.explained_variance,
            seconds=perf_counter() - started,
        )

    def with_own_log_probs(self, rows: Sequence[TrainingRow]) -> list[TrainingRow]:
        """Return the rows with log-probabilities and versions as if the current weights had sampled the tokens."""
        completed = []
        for several in micro_batches(in_order(rows), self._shape, self.settings.micro_batch_bytes):
            batch = PaddedRows(several, self.model.device)
            with torch.no_grad():
                log_probs, _ = self.log_probs(self.model, batch)
            for row, own in zip(several, log_probs.tolist(), strict=True):
                by_place = dict(zip(batch.kept.tolist(), own, strict=True))
                completed.append(
                    replace(
                        row,
                        log_probs=tuple(by_place[place] if on else 0.0 for place, on in enumerate(row.mask)),
                        versions=tuple(self.version if on else NOT_SAMPLED for on in row.mask),
                    )
                )
        return completed

    def minibatches(self, rows: Sequence[TrainingRow]) -> list[Minibatch]:
        """Return the minibatches into which the next `train_step` would divide the rows."""
        settings = self.settings
        order = derived_rng("update", settings.draw, self.version)
        return plan_minibatches(
            rows, settings.minibatches, settings.beta, self._shape, settings.micro_batch_bytes, order
        )

    def _check(self, rows: Sequence[TrainingRow]) -> None:
        if not rows:
            raise BadArgument("An update has no rows. Expected at least one row.")
        context = self.model.config.max_position_embeddings
        for row in rows:
            if len(row.ids) > context:
                raise BadArgument(
                    f"A row of rollout {row.rollout!r} has {len(row.ids)} tokens. Expected at most {context}, the model's "
                    "context."
                )
            for log_prob, version, trained in zip(row.log_probs, row.versions, row.mask, strict=True):
                if trained and not 0 <= version <= self.version:
                    raise BadArgument(
                        f"A token of rollout {row.rollout!r} was sampled by version {version}. Expected at most the current "
                        f"version, {self.version}."
                    )
                if trained and not math.isfinite(log_prob):
                    raise BadArgument(
                        f"A token of rollout {row.rollout!r} has the log-probability {log_prob}. Expected a finite number."
                    )

    def _agrees(self, rows: Sequence[TrainingRow], statistics: TokenStatistics) -> bool:
        """Return whether the measured log-probabilities of the sampler can replace the old policy's log-probabilities."""
        # This detects the effects of bfloat16, a mask that is off by one, and rows from older weights. Log-probabilities that
        # are then computed in the same micro-batches have equal rounding errors, which cancel.
        mismatch = mean(statistics.mismatch())
        stale = any(0 <= version < self.version for row in rows for version in row.versions)
        return not stale and mismatch is not None and mismatch <= self.settings.largest_mismatch

    def _backward(
        self, batch: PaddedRows, old: torch.Tensor | None, episodes: int, statistics: TokenStatistics
    ) -> float:
        """Add the gradient of a micro-batch, and return its share of the loss. `old` is None if it equals the current policy."""
        current, entropies = self.log_probs(self.model, batch)
        reference = None
        if self._reference is not None:
            with torch.no_grad():
                reference, _ = self.log_probs(self._reference, batch)
        if old is None:
            old = current.detach()
            statistics.drifts.append((old - batch.sampler)[batch.mask].cpu())
        losses = token_losses(
            self.settings,
            current=current,
            old=old,
            sampler=batch.sampler,
            reference=reference,
            advantages=batch.advantages,
            mask=batch.mask,
        )
        loss = (row_means(losses.per_token, batch.mask) * batch.weights).sum() / episodes
        loss.backward()
        statistics.clipped.append(losses.clipped[batch.mask].cpu())
        statistics.entropies.append(entropies[batch.mask].cpu())
        if losses.kl is not None:
            statistics.kls.append(losses.kl.detach()[batch.mask].cpu())
        return float(loss.detach())

    def _old(self, batch: PaddedRows, statistics: TokenStatistics) -> torch.Tensor:
        with torch.no_grad():
            old, _ = self.log_probs(self.model, batch)
        statistics.drifts.append((old - batch.sampler)[batch.mask].cpu())
        return old

    def _features(self, rows: Sequence[TrainingRow]) -> Iterator[tuple[TrainingRow, torch.Tensor]]:
        """Yield each row with its last hidden states, of shape (tokens, width), in a canonical order."""
        for several in micro_batches(in_order(rows), self._shape, self.settings.micro_batch_bytes):
            batch = PaddedRows(several, self.model.device)
            with torch.no_grad(), self._arithmetic():
                output = self.model.base_model(input_ids=batch.ids, attention_mask=batch.attention, use_cache=False)
            for row, states in zip(several, output.last_hidden_state, strict=True):
                yield row, states[: len(row.ids)]

    def _arithmetic(self) -> Any:
        return torch.autocast(self.model.device.type, dtype=torch.bfloat16, enabled=self.settings.precision == "bf16")

    def log_probs(self, model: Any, batch: PaddedRows) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probability of each target at the temperature, and the entropy, which has no gradient."""
        with self._arithmetic():
            output = model(
                input_ids=batch.ids, attention_mask=batch.attention, use_cache=False, logits_to_keep=batch.kept - 1
            )
        logits = output.logits.float()
        if logits.shape[1] != len(batch.kept):
            raise TrainingError(
                f"{type(model).__name__} returned logits for {logits.shape[1]} positions. Expected the "
                f"{len(batch.kept)} positions in logits_to_keep.",
                hint="The installed version of transformers does not support logits_to_keep for this model.",
            )
        if self.settings.temperature != 1:
            logits = logits / self.settings.temperature
        norms = logits.logsumexp(dim=-1)
        log_probs = logits.gather(-1, batch.targets[..., None]).squeeze(-1) - norms
        with torch.no_grad():
            entropies = torch.stack([_entropy(row, norm) for row, norm in zip(logits, norms, strict=True)])
        return log_probs, entropies

    def step(self) -> float:
        """Make an optimizer step with the accumulated gradient, and return the gradient's norm before clipping.

        If the gradient is not finite, no step is made and TrainingError is raised.
        """
        parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.settings.largest_gradient_norm))
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise TrainingError(
                f"The gradient of update {self.version + 1} has the norm {norm}. Expected a finite number. "
                "No step was made with this gradient.",
                hint="Return to a checkpoint and lower the learning rate.",
            )
        self.optimizer.step()
        return norm


def _entropy(logits: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
    """Return the entropy at each position of one row. A softmax over all rows would need as much memory as the logits."""
    chances = (logits - norms[:, None]).exp()
    return norms - (chances * logits).sum(dim=-1)
