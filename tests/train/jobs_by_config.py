"""Runs the job of an RL config on a task app over HTTP, in this process: model, sampler, gateway, update and driver."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from taskapp_kit.jobs.server.engine import JobDocument, JobOutcome
from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp, TaskAppAddresses
from taskapp_kit.train.checkpoints.facts import CheckpointFacts, JobPosition, TrainedModelName
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from taskapp_kit.train.driver.job_driver import JobDriver
from taskapp_kit.train.driver.learning import JobCheckpoints, PolicyLearner
from taskapp_kit.train.engine.training_run import PolicySizes, stored_units
from taskapp_kit.train.gateway.gateway_server import Gateway
from taskapp_kit.train.job_settings import training_settings
from taskapp_kit.train.models.adapters import adapter_part, sampler_copy, with_adapter
from taskapp_kit.train.models.loading import load_model
from taskapp_kit.train.models.sources import described_by, find_model
from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler
from taskapp_kit.train.update.policy_update import PolicyUpdate


def config_of(path: Path, **training: Any) -> dict[str, Any]:
    """An RL config, with other values in `[training]`."""
    config = tomllib.loads(path.read_text(encoding="utf-8"))
    config["training"] |= training
    return config


async def run_job(
    config: Mapping[str, Any],
    url: str,
    key: str,
    ledger: Any,
    *,
    job_id: str,
    models: Path,
    learner: type[PolicyLearner] = PolicyLearner,
    save: bool = False,
) -> JobOutcome:
    """Run the job to its end. job_id: names its random streams. save: checkpoints."""
    job = JobDocument(job_id, url, config)
    settings = training_settings(job)
    plan = settings.plan
    policy = load_model(find_model(settings.model, models, settings.aliases))
    reference = copy.deepcopy(policy.model) if settings.update.beta else None
    trained = policy.model if settings.lora is None else with_adapter(policy.model, settings.lora)
    update = PolicyUpdate(trained, replace(settings.update, draw=job_id), reference=reference)
    gateways: list[Gateway] = []
    with (
        TransformersSampler(
            sampler_copy(trained, settings.update.precision),
            open_attempts=lambda: gateways[0].open_attempts if gateways else 1,
            deterministic=settings.deterministic,
        ) as sampler,
        Gateway(sampler, policy.renderer, max_open_attempts=plan.at_once) as gateway,
    ):
        gateways.append(gateway)
        async with OpenedTaskApp(url, key, TaskAppAddresses(local=True), (key,), 0) as task_app:
            driver = settings.driver(incarnation=1, context_tokens=sampler.context_tokens)
            with ExitStack() as stack:
                kept = None
                if save:
                    origin = policy.source.origin
                    name = TrainedModelName.of(origin.base, job_id, "checkpoint-0")
                    writer = stack.enter_context(CheckpointWriter(name.folder(models).parent))
                    facts = CheckpointFacts(job_id, JobPosition(0, 1), 0, origin, dict(config), {"seeds": plan.seeds})
                    parts = described_by(policy.source) | ({} if settings.lora is None else adapter_part(settings.lora))
                    kept = JobCheckpoints(writer, update, sampler, facts, parts)
                learns, stored = learner(update, sampler), None
                if settings.rollouts is not None:
                    stored = stored_units(Path(settings.rollouts), settings, PolicySizes.of(trained), job_id)
                return await JobDriver(job_id, plan, task_app, gateway, learns, ledger, driver, kept, stored).run({})
