"""Runs one training job in a trainer, with its model, sampler, gateway, update and driver."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from taskapp_kit.errors import JobError
from taskapp_kit.jobs.server.engine import Event, JobOutcome, Ledger
from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp
from taskapp_kit.records.formatting import counted
from taskapp_kit.train.checkpoints.facts import job_folder
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from taskapp_kit.train.config_keys import unused_keys
from taskapp_kit.train.driver.interfaces import CheckpointSink, Learner
from taskapp_kit.train.driver.job_driver import JobDriver
from taskapp_kit.train.driver.learning import PolicyLearner
from taskapp_kit.train.driver.reachability import check_reachability
from taskapp_kit.train.driver.sources import task_sources
from taskapp_kit.train.driver.stored_units import StoredUnits
from taskapp_kit.train.engine.child_program import OFFLINE
from taskapp_kit.train.engine.trainer_calls import TrainerOrder
from taskapp_kit.train.gateway.gateway_server import Gateway
from taskapp_kit.train.job_settings import TrainingSettings, training_settings
from taskapp_kit.train.job_start import measured_needs, seeds_learned_before, start_events
from taskapp_kit.train.models.adapters import sampler_copy
from taskapp_kit.train.models.loading import LoadedModel, load_model
from taskapp_kit.train.models.sources import ModelSource, description_of, named_model
from taskapp_kit.train.policy_services.policy_order import PolicyOrder, leave_a_processor
from taskapp_kit.train.policy_services.sampling import ReplicatedSampler, SamplerReplica
from taskapp_kit.train.policy_services.updating import (
    PolicyUpdateService,
    UpdateReplica,
    job_checkpoints,
    job_update,
)
from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler
from taskapp_kit.train.sampler.vllm.place import VARIABLE, VllmPlace
from taskapp_kit.train.sampler.vllm.vllm_sampler import Adapter, VllmSampler
from taskapp_kit.train.stored_rollouts import RolloutFit, StoredRollouts, find_rollouts
from taskapp_kit.train.update.policy_update import PolicyUpdate


async def run_job(order: TrainerOrder, ledger: Ledger) -> JobOutcome:
    """Run the rest of the job. If a KitError is raised, its message becomes the job's `error`."""
    settings = training_settings(order.job)
    source = await asyncio.to_thread(named_model, settings, order.models, order.aliases, open_paths=order.open_paths)
    folder = job_folder(order.models, source.origin.base, order.job.job_id)
    needs = await asyncio.to_thread(measured_needs, settings, source, folder)
    if "done" not in order.state:
        await ledger.report(*start_events(settings, needs, unused_keys(order.job, settings.plan)))
    warning = seeds_learned_before(source, order.models, settings.plan)
    if warning is not None and "done" not in order.state:
        await ledger.report(warning)
    leave_a_processor()
    loaded = await asyncio.to_thread(load_model, source)
    await ledger.report(model_loaded(loaded, settings))
    sizes = PolicySizes.of(loaded.model)
    if settings.services is not None:
        loaded = replace(loaded, model=None)  # the services load their own models
    outcome = await _trained(order, settings, loaded, sizes, ledger)
    results = {**outcome.results, "base_model": model_facts(source)}
    if warning is not None:
        results["warnings"] = [*results["warnings"], warning.message]
    return replace(outcome, results=results)


async def _trained(
    order: TrainerOrder,
    settings: TrainingSettings,
    loaded: LoadedModel,
    sizes: PolicySizes,
    ledger: Ledger,
) -> JobOutcome:
    plan = settings.plan
    options = order.gateway if settings.gateway_url is None else order.gateway.at(settings.gateway_url)
    gateways: list[Gateway] = []
    async with contextlib.AsyncExitStack() as opened:
        if settings.services is not None:
            parts = await opened.enter_async_context(services_parts(order, settings, sizes))
        else:
            parts = await opened.enter_async_context(
                own_parts(order, settings, loaded, lambda: gateways[0].open_attempts if gateways else 1)
            )
        if parts.started is not None:
            await ledger.report(parts.started)
        sampler = parts.sampler
        gateway = Gateway(
            sampler,
            loaded.renderer,
            max_open_attempts=plan.at_once,
            host=options.host,
            port=options.port,
            public_url=options.url,
        )
        gateways.append(gateway)
        opened.enter_context(gateway)
        async with OpenedTaskApp.taken_over(order.task_app) as task_app:
            driving = settings.driver(incarnation=order.incarnation, context_tokens=sampler.context_tokens)
            job_id = order.job.job_id
            async with task_sources(plan, task_app, driving.loops.environments) as sources:
                for each in sources:
                    turn = partial(check_reachability, job_id, each.plan, each.task_app, gateway, driving, options)
                    await ledger.report(await each.outage.outlasted(turn))
            stored = None
            if settings.rollouts is not None:
                path = find_rollouts(settings.rollouts, order.models, paths=order.open_paths)
                stored = await asyncio.to_thread(stored_units, path, settings, sizes, job_id)
                if "done" not in order.state:
                    await ledger.report(Event("rl.job.rollouts", stored.rollouts.sentence, data=stored.rollouts.facts))
            driver = JobDriver(
                job_id, plan, task_app, gateway, parts.learner, ledger, driving, parts.checkpoints, stored
            )
            vllm = sampler if isinstance(sampler, VllmSampler) else None
            return await (driver.run(order.state) if vllm is None else while_it_runs(vllm, driver.run(order.state)))


@dataclass(frozen=True, slots=True)
class PolicySizes:
    """The sizes of a policy's vocabulary and context. `context_tokens` limits a prompt together with its reply."""

    vocabulary: int
    context_tokens: int

    @classmethod
    def of(cls, model: Any) -> PolicySizes:
        """Return the sizes of a causal language model from transformers."""
        return cls(model.get_input_embeddings().weight.shape[0], model.config.max_position_embeddings)


@dataclass(frozen=True, slots=True)
class JobParts:
    """The sampler, learner and checkpoints of a job. `started` is the event for processes that were started for the job."""

    sampler: TransformersSampler | VllmSampler | ReplicatedSampler
    learner: Learner
    checkpoints: CheckpointSink
    started: Event | None = None


@contextlib.asynccontextmanager
async def own_parts(
    order: TrainerOrder,
    settings: TrainingSettings,
    loaded: LoadedModel,
    open_attempts: Callable[[], int],
) -> AsyncGenerator[JobParts]:
    """Yield the parts of a job that updates in this process, and samples in this process or with vLLM."""
    update = job_update(loaded.model, settings, order.job.job_id)
    async with contextlib.AsyncExitStack() as opened:
        sampler: TransformersSampler | VllmSampler
        started = None
        if settings.vllm is None:
            sampler = opened.enter_context(
                TransformersSampler(
                    sampler_copy(update.model, settings.update.precision),
                    open_attempts=open_attempts,
                    deterministic=settings.deterministic,
                    version=update.version,
                )
            )
        else:
            sampler = await opened.enter_async_context(vllm_sampler(order, settings, loaded, update))
            started = vllm_started(sampler, order.vllm)
        folder = job_folder(order.models, loaded.source.origin.base, order.job.job_id)
        writer = opened.enter_context(CheckpointWriter(folder))
        checkpoints = job_checkpoints(writer, update, sampler, order.job, order.incarnation, settings, loaded.source)
        yield JobParts(sampler, PolicyLearner(update, sampler), checkpoints, started)


@contextlib.asynccontextmanager
async def services_parts(
    order: TrainerOrder, settings: TrainingSettings, sizes: PolicySizes
) -> AsyncGenerator[JobParts]:
    """Yield the parts of a job with `[sampler] engine = "services"`, whose replicas sample and update."""
    options = settings.services
    assert options is not None, "the job has services"
    policy = PolicyOrder.of(
        order.job, order.models, order.aliases, open_paths=order.open_paths, incarnation=order.incarnation
    )
    began = time.monotonic()
    samplers = SamplerReplica.options(
        num_replicas=options.replicas,
        backend=options.backend,
        concurrent_calls=settings.plan.at_once,
        call_seconds=settings.driving.rollout_seconds,
        queue_seconds=settings.driving.rollout_seconds,
        environment=OFFLINE,
    ).as_service(policy, options.replicas)
    updates = UpdateReplica.options(backend=options.backend, environment=OFFLINE).as_service(policy)
    try:
        await asyncio.gather(updates.start(), samplers.start())
        sampler = ReplicatedSampler(samplers, context_tokens=sizes.context_tokens, vocabulary=sizes.vocabulary)
        update = PolicyUpdateService(updates, sampler)
        seconds = time.monotonic() - began
        where = {"replicas": await sampler.facts(), "update": await update.facts()}
        places = [each.place for service in (samplers, updates) for each in service.stats().replicas]
        text = (
            f"{counted(options.replicas, 'replica')} for sampling and one process for updates "
            f"({'on this machine' if options.backend == 'local' else 'on Ray'}) started in {seconds:.0f} s."
        )
        data = {"backend": options.backend, "seconds": round(seconds, 1), **where, "places": places}
        yield JobParts(sampler, update, update, Event("rl.services.started", text, data=data))
    finally:
        await asyncio.gather(samplers.aclose(), updates.aclose())


async def while_it_runs(vllm: VllmSampler, driving: Coroutine[Any, Any, JobOutcome]) -> JobOutcome:
    """Return the job's outcome. If the job's vLLM ends, raise TrainingError, because all further rollouts would fail."""
    tasks = job, end = asyncio.create_task(driving), asyncio.create_task(vllm.fail_with_child())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return await (job if job.done() else end)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def vllm_sampler(
    order: TrainerOrder, settings: TrainingSettings, loaded: LoadedModel, update: PolicyUpdate
) -> VllmSampler:
    """Return the sampler of a job with `[sampler] engine = "vllm"`, without starting it.

    Raises JobError if the backend has no suitable vLLM.
    """
    assert settings.vllm is not None, "the job samples with vLLM"
    if order.vllm is None:
        raise JobError(f"The job samples with vLLM, but the backend was started without {VARIABLE}.")
    lora = settings.lora
    # the backend's version of vLLM may have changed since the job was submitted
    if refusal := order.vllm.refusal(whole_weights=lora is None):
        raise JobError(refusal, hint=f"Start the backend with the {VARIABLE} that was set when the job started.")
    return VllmSampler(
        update.model,
        order.vllm,
        settings.vllm,
        description=description_of(loaded.source),
        adapter=None if lora is None else Adapter(lora.rank, lora.alpha, lora.targets),
        precision=settings.update.precision,
        version=update.version,
    )


def vllm_started(sampler: VllmSampler, place: VllmPlace | None) -> Event:
    """Return the event with vLLM's address and the duration of its start."""
    url = None if place is None else place.url
    where = f"in {sampler.start_seconds:.0f} s" if url is None else f"at {url}, so [vllm] is not used"
    facts = {"url": url, "seconds": round(sampler.start_seconds, 1), "context_tokens": sampler.context_tokens}
    return Event("rl.sampler.started", f"vLLM samples. It {'started' if url is None else 'runs'} {where}.", data=facts)


def stored_units(path: Path, settings: TrainingSettings, sizes: PolicySizes, job_id: str) -> StoredUnits:
    """Return the stored rollouts of a job with the type offline. Raises ConfigError if they cannot be used."""
    plan = settings.plan
    fit = RolloutFit(
        environment=plan.env_name,
        held_out=frozenset(plan.eval_seeds or ()),
        temperature=settings.update.temperature,
        vocabulary=sizes.vocabulary,
        context_tokens=sizes.context_tokens,
    )
    return StoredUnits(StoredRollouts(path, fit), plan, job_id)


def model_facts(source: ModelSource) -> dict[str, Any]:
    """Return the description of a job's model for the job's status and results."""
    return {"name": source.name, "requested": source.requested, "base": source.origin.base}


def model_loaded(loaded: LoadedModel, settings: TrainingSettings) -> Event:
    """Return the event that names the model."""
    parameters = sum(each.numel() for each in loaded.model.parameters())
    trained = "all weights are" if settings.lora is None else f"an adapter of rank {settings.lora.rank} is"
    words = [f"The model {loaded.source.name} with {parameters:,} parameters is loaded, and {trained} trained."]
    if loaded.source.alias_note:
        words.append(loaded.source.alias_note)
    if loaded.differences:
        named = " and ".join(loaded.differences)
        words.append(f"Its chat template renders {named} differently from this engine. Other prompts are identical.")
    facts: Mapping[str, Any] = {
        **model_facts(loaded.source),
        "parameters": parameters,
        "trainer_mode": "full" if settings.lora is None else "lora",
        "template_differences": list(loaded.differences),
    }
    return Event("rl.model.loaded", " ".join(words), data=facts)
