"""The update of a job in a separate process: `UpdateReplica`, and `PolicyUpdateService` for the driver.

The weights, the optimizer and the checkpoints stay in the separate process. If the process dies, all updates since the
last checkpoint are lost, and the new process has the initial weights. Each call therefore contains the expected
version, and a mismatch raises `ReplicaDied`. The job then returns to its last checkpoint.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from taskapp_kit.errors import BadArgument, CheckpointError, EndpointRaised, ReplicaDied, TrainingError
from taskapp_kit.jobs.server.engine import JobDocument
from taskapp_kit.services import Actor, ServiceHandle, endpoint
from taskapp_kit.train.checkpoints.facts import CheckpointFacts, JobPosition
from taskapp_kit.train.checkpoints.state import trained_part
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from taskapp_kit.train.driver.interfaces import SavedJob
from taskapp_kit.train.driver.learning import JobCheckpoints
from taskapp_kit.train.job_settings import TrainingSettings
from taskapp_kit.train.models.adapters import adapter_part
from taskapp_kit.train.models.loading import load_model
from taskapp_kit.train.models.sources import ModelSource, described_by
from taskapp_kit.train.policy_services.policy_order import (
    WEIGHTS,
    OrderedPolicy,
    PolicyOrder,
    leave_a_processor,
    trained_policy,
)
from taskapp_kit.train.policy_services.sampling import ReplicatedSampler, own_process
from taskapp_kit.train.turns import PolicySampler, TrainingRow, UpdateMetrics
from taskapp_kit.train.update.policy_update import PolicyUpdate
from taskapp_kit.train.workflow.shared_folder import KNOWN_VERSIONS, WeightsFolder

Result = TypeVar("Result")

LOCK_SECONDS = 60.0
"""Seconds to wait until the process of a killed trainer ends and releases the checkpoints."""

_RAISED: Mapping[str, type[TrainingError | CheckpointError | BadArgument | ReplicaDied]] = {
    each.__name__: each for each in (BadArgument, CheckpointError, ReplicaDied, TrainingError)
}
"""Errors of the update by class name. The driver raises them with their original class."""


class UpdateReplica(Actor, call_seconds=6 * 3600.0):
    """Updates a job's policy, writes the new weights for the samplers, and saves and restores the job's checkpoints."""

    def __init__(self, order: PolicyOrder) -> None:
        leave_a_processor()
        ordered = OrderedPolicy.read(order)
        settings = ordered.settings
        self._update = job_update(load_model(ordered.source).model, settings, order.job.job_id)
        self._writer = CheckpointWriter(ordered.folder, lock_seconds=LOCK_SECONDS)
        for old in ordered.folder.glob(f"{WEIGHTS}*"):
            if old != ordered.weights:
                shutil.rmtree(old)
        self._folder = ordered.weights
        self._weights = WeightsFolder(self._folder)
        self._checkpoints = job_checkpoints(
            self._writer, self._update, None, order.job, order.incarnation, settings, ordered.source
        )

    @endpoint
    def train_step(self, rows: Sequence[TrainingRow], version: int) -> UpdateMetrics:
        """Make one update, and write the new weights for the samplers. `version` is the version that the weights must have.

        Raises BadArgument or TrainingError if the update fails, and ReplicaDied if this process has another version.
        """
        self._check(version)
        metrics = self._update.train_step(rows)
        self._write()
        return metrics

    @endpoint
    async def save(self, saved: SavedJob, score: float | None, version: int) -> str:
        """Save a checkpoint of the weights with this version, and return its name.

        Raises CheckpointError if it cannot be saved, and ReplicaDied if this process has another version.
        """
        self._check(version)
        return await self._checkpoints.save(saved, score)

    @endpoint
    async def restore(self) -> tuple[SavedJob | None, int]:
        """Restore the last complete checkpoint, and write its weights for the samplers.

        Return the job at the checkpoint (None if no checkpoint exists) and the version of the weights. Raises
        CheckpointError if the checkpoint does not fit the model, and TrainingError if the weights cannot be written.
        """
        saved = await self._checkpoints.restore()
        if self._update.version:
            await asyncio.to_thread(self._write)
        return saved, self._update.version

    @endpoint(idempotent=True)
    async def results(self) -> dict[str, Any]:
        """Return the part of the job's results that describes the checkpoints."""
        return dict(await self._checkpoints.results())

    @endpoint(idempotent=True)
    def facts(self) -> dict[str, str | int]:
        """Return the host and process id of this replica."""
        return own_process()

    def close(self) -> None:
        """Remove the weights that were written for the samplers, and unlock the directory of checkpoints."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._writer.close()

    def _check(self, version: int) -> None:
        if self._update.version != version:
            raise ReplicaDied(
                f"The updating process has the weights of version {self._update.version}, not version {version}. The "
                "previous process died, and its updates since the last checkpoint are lost."
            )

    def _write(self) -> None:
        version = self._update.version
        versions = [(each, each) for each in range(max(1, version - KNOWN_VERSIONS), version + 1)]
        self._weights.write(versions, trained_part(self._update.model))


class PolicyUpdateService:
    """The `Learner` and the `CheckpointSink` of a job whose update is a service with one `UpdateReplica`.

    All methods raise ReplicaDied if the replica has died. In this case, the job must return to its last checkpoint.
    """

    def __init__(self, service: ServiceHandle, sampler: ReplicatedSampler) -> None:
        self._service, self._sampler = service, sampler
        self._version = 0

    async def learn(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        """Make one update, and replace the sampler's weights with the new weights.

        Raises BadArgument if a row is unsuitable for training, and TrainingError if the update fails.
        """
        metrics: UpdateMetrics = await _result(self._service.train_step.route(rows, self._version))
        self._version = metrics.version
        await self._sampler.use(metrics.version)
        return metrics

    async def save(self, saved: SavedJob, score: float | None) -> str:
        """Save a checkpoint and return its name. Raises CheckpointError if it cannot be saved."""
        name: str = await _result(self._service.save.route(saved, score, self._version))
        return name

    async def restore(self) -> SavedJob | None:
        """Restore the last complete checkpoint, also in the sampler. Return None if no checkpoint exists."""
        saved: SavedJob | None
        saved, self._version = await _result(self._service.restore.route())
        if self._version != self._sampler.version:
            await self._sampler.use(self._version)
        return saved

    async def results(self) -> Mapping[str, Any]:
        """Return the part of the job's results that describes the checkpoints."""
        found: dict[str, Any] = await _result(self._service.results.route())
        return found

    async def facts(self) -> Mapping[str, object]:
        """Return the host name (`host`) and the process id (`pid`) of the replica."""
        found: dict[str, object] = await _result(self._service.facts.route())
        return found


def job_update(model: Any, settings: TrainingSettings, job_id: str) -> PolicyUpdate:
    """Return a job's `PolicyUpdate` before its first step. `model` is the initial model, which is changed in place."""
    reference = copy.deepcopy(model) if settings.update.beta else None
    policy = trained_policy(model, settings.lora)
    return PolicyUpdate(policy, replace(settings.update, draw=job_id), reference=reference)


def job_checkpoints(
    writer: CheckpointWriter,
    update: PolicyUpdate,
    sampler: PolicySampler | None,
    job: JobDocument,
    incarnation: int,
    settings: TrainingSettings,
    source: ModelSource,
) -> JobCheckpoints:
    """Return the `JobCheckpoints` of a job. `sampler` is the sampler in this process, or None if it runs in another."""
    facts = CheckpointFacts(
        job=job.job_id,
        position=JobPosition(0, incarnation),
        weights_version=update.version,
        origin=source.origin,
        config=job.config,
        seeds={"train": settings.plan.seeds, "evaluation": settings.plan.eval_seeds},
    )
    parts = described_by(source) | ({} if settings.lora is None else adapter_part(settings.lora))
    return JobCheckpoints(writer, update, sampler, facts, parts)


async def _result(call: Awaitable[Result]) -> Result:
    """Return the result of a call to the update service. Errors of the update are raised with their original classes."""
    try:
        return await call
    except EndpointRaised as error:
        raise _RAISED.get(error.error_type, TrainingError)(f"{error.error_text}") from error
