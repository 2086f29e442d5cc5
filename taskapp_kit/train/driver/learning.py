"""The learner and the checkpoints of a job with torch. Updates run on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import orjson

from taskapp_kit.errors import CheckpointError
from taskapp_kit.train.checkpoints.facts import CheckpointFacts
from taskapp_kit.train.checkpoints.state import (
    restore_optimizer,
    restore_value_head,
    restore_weights,
    state_parts,
    value_head_part,
)
from taskapp_kit.train.checkpoints.stored import (
    JOB_STATE,
    StoredCheckpoint,
    by_score,
    checkpoint_folders,
    latest_checkpoint,
)
from taskapp_kit.train.checkpoints.writer import CheckpointPart, CheckpointWriter
from taskapp_kit.train.driver.interfaces import SavedJob
from taskapp_kit.train.turns import PolicySampler, TrainingRow, UpdateMetrics
from taskapp_kit.train.update.policy_update import PolicyUpdate

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


async def on_thread(work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
    """Run `work` on a thread. A cancelled call returns when the work has ended, because threads cannot be stopped."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise


class PolicyLearner:
    """An `interfaces.Learner` with torch. The sampler has a separate model with the same architecture and version."""

    def __init__(self, update: PolicyUpdate, sampler: PolicySampler) -> None:
        self._update, self._sampler = update, sampler

    async def learn(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        """Make one update and replace the sampler's weights. A cancelled call returns when the update has ended."""
        metrics = await on_thread(self._update.train_step, rows)
        await self._sampler.swap(self._update.model.state_dict(), metrics.version)
        return metrics


class JobCheckpoints:
    """An `interfaces.CheckpointSink` that saves checkpoints to the directory of `writer`.

    Args:
        writer: The writer of the checkpoints.
        update: The policy update before its first step. `restore` loads a checkpoint into it.
        sampler: The sampler with the model's initial weights, or None for a job without sampling. `restore` replaces
            the weights.
        facts: The metadata of checkpoints. `save` sets position, version and score.
        parts: Additional files of each checkpoint, such as the model's config and tokenizer.
    """

    def __init__(
        self,
        writer: CheckpointWriter,
        update: PolicyUpdate,
        sampler: PolicySampler | None,
        facts: CheckpointFacts,
        parts: Mapping[str, CheckpointPart],
    ) -> None:
        self._writer, self._update, self._sampler = writer, update, sampler
        self._facts, self._parts = facts, parts

    async def save(self, saved: SavedJob, score: float | None) -> str:
        """Save the weights, the optimizer's state and the job's state, and return the checkpoint's name."""
        facts = replace(self._facts, position=saved.at, weights_version=self._update.version, score=score)
        state = orjson.dumps({"position": saved.position, "state": saved.state})
        parts = {
            **self._parts,
            **state_parts(self._update.model, self._update.optimizer),
            JOB_STATE: CheckpointPart.of(state),
        }
        if (head := self._update.value_head) is not None:
            parts |= value_head_part(head.layer, head.optimizer)
        await on_thread(self._writer.save, facts, parts)
        return str(facts.name)

    async def restore(self) -> SavedJob | None:
        """Load the last complete checkpoint, also into the sampler. Return None if no checkpoint exists."""
        saved = await on_thread(self._restore)
        sampler = self._sampler
        if saved is not None and sampler is not None and self._update.version != sampler.version:
            await sampler.swap(self._update.model.state_dict(), self._update.version)
        return saved

    def _restore(self) -> SavedJob | None:
        checkpoint = latest_checkpoint(self._writer.root)
        if checkpoint is None:
            return None
        position, state = _job_state(checkpoint)
        restore_weights(self._update.model, checkpoint)
        restore_optimizer(self._update.model, self._update.optimizer, checkpoint)
        if (head := self._update.value_head) is not None:
            restore_value_head(head.layer, head.optimizer, checkpoint)
        self._update.version = checkpoint.facts.weights_version
        return SavedJob(position, state, checkpoint.facts.position, str(checkpoint.facts.name))

    async def results(self) -> Mapping[str, Any]:
        """Return the last checkpoint (`model`), the best (`best`, `best_score`), and a list of all (`checkpoints`)."""
        found = await on_thread(checkpoint_folders, self._writer.root)
        stored = [
            {"model": str(facts.name), "iteration": facts.position.iteration, "score": facts.score}
            for facts in found.values()
        ]
        best = next((found[path] for path in by_score(found)), None)
        return {
            "model": stored[-1]["model"] if stored else None,
            "best": None if best is None else str(best.name),
            "best_score": None if best is None else best.score,
            "checkpoints": stored,
        }


def _job_state(checkpoint: StoredCheckpoint) -> tuple[int, dict[str, Any]]:
    """Return the ledger position and the job's state in a checkpoint. Raises CheckpointError if they cannot be read."""
    try:
        value = orjson.loads((checkpoint.path / JOB_STATE).read_bytes())
        position, state = value["position"], value["state"]
        if type(position) is not int or type(state["done"]) is not int:
            raise TypeError("a field has the wrong type")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{JOB_STATE} of the checkpoint {checkpoint.path} cannot be read: {error}. This job cannot resume, but "
            "a new job can start from the checkpoint's weights."
        ) from error
    return position, state
