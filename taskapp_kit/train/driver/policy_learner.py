"""The learner with torch: an update on a thread, and its weights into the sampler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from taskapp_kit.train.turns import PolicySampler, TrainingRow
from taskapp_kit.train.update.metrics import UpdateMetrics
from taskapp_kit.train.update.policy_update import PolicyUpdate

Given = ParamSpec("Given")
Result = TypeVar("Result")


async def on_thread(work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """Return the result of the work. A call that is cancelled returns when it has ended: a thread cannot be stopped."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise


class PolicyLearner:
    """See `checkpoints.Learner`. The sampler has a model of its own, of the same architecture and version."""

    def __init__(self, update: PolicyUpdate, sampler: PolicySampler) -> None:
        self._update, self._sampler = update, sampler

    async def learn(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        """Make one update and swap the sampler's weights. A call that is cancelled returns when the update has ended."""
        metrics = await on_thread(self._update.train_step, rows)
        await self._sampler.swap(self._update.model.state_dict(), metrics.version)
        return metrics
