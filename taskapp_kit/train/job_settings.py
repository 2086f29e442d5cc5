"""The settings of a job of the local trainer: the plan, and how the job samples, updates and saves.

This module does not import torch, because the backend uses it to check submitted jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from taskapp_kit.errors import JobError
from taskapp_kit.jobs.client.config.cross_section_checks import models_named
from taskapp_kit.jobs.client.config.review import Review
from taskapp_kit.jobs.client.config.schema import (
    Algorithm,
    CurriculumSection,
    Lora,
    RlDocument,
    Training,
    from_section,
    value_at,
)
from taskapp_kit.jobs.client.config.value_types import MixedEnvironment
from taskapp_kit.jobs.client.config.values import Place
from taskapp_kit.jobs.server.engine import JobDocument
from taskapp_kit.jobs.server.rollout_plan import MAX_ROLLOUTS, JobPlan, read_plan
from taskapp_kit.services.replicas import Backend
from taskapp_kit.train.config_keys import FAMILIES, LIMITS, SAMPLING_LIMITS, Limit, written
from taskapp_kit.train.driver.driver_settings import ROLLOUT_SECONDS, STALL_SECONDS, DriverSettings, rollout_count
from taskapp_kit.train.gateway.attempt import AttemptSettings
from taskapp_kit.train.loops.loop_settings import Curriculum, EarlyStopping, EnvironmentShare, LoopSettings
from taskapp_kit.train.rows import RowOptions
from taskapp_kit.train.sampler.vllm.place import VllmSettings
from taskapp_kit.train.update.memory import LINEAR_LAYERS
from taskapp_kit.train.update.update_settings import CLIP_RANGES, Loss, PpoSettings, UpdateSettings

# defaults of keys that are not in the config
LEARNING_RATE = 1e-5
LOSS: Loss = "gspo"  # with one minibatch, gspo, grpo and reinforce have the same gradient
MAX_TOKENS = 512
TEMPERATURE = 1.0
MOST_REPLICAS = 64
"""Maximum number of sampler processes of one job."""
LORA_RANK, LORA_ALPHA = 16, 32.0
ALL_LINEAR = "all-linear"
"""The name in peft's configs that means all LINEAR_LAYERS."""
ASYNC_GSPO_CLIP = (0.05, 0.06)
"""The clip range of gspo with rollouts ahead. Test jobs improved with it, but 3e-4 and 4e-4 clipped most tokens."""


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The adapter to train. `targets` are the names of its linear layers, such as `q_proj`."""

    rank: int = LORA_RANK
    alpha: float = LORA_ALPHA
    targets: tuple[str, ...] = LINEAR_LAYERS


@dataclass(frozen=True, slots=True)
class PolicyServiceSettings:
    """The services of a job with `[sampler] engine = "services"`.

    Attributes:
        replicas: The number of sampler processes. An additional process makes the updates.
        backend: Whether the processes run on this machine or on a Ray cluster.
    """

    replicas: int = 1
    backend: Backend = "local"


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """The settings of a training job.

    Attributes:
        plan: The rollouts that the job plays.
        model: The model's name in the config, before aliases are applied.
        driving: How rollouts are played. The method `driver` completes these settings.
        update: How the weights are updated. `update.draw` is "", and the caller must set it to the job's id.
        label: The trained model's label, or "" if it is not set.
        aliases: The config's own aliases of models.
        lora: The adapter, or None for full training.
        deterministic: Whether prompts are sampled one at a time.
        vllm: The settings for sampling with vLLM, or None.
        services: The processes that sample and update, or None. If `vllm` and `services` are None, the trainer's
            process samples and updates.
        gateway_url: The address at which the task app calls the gateway. None means the address on which the gateway
            listens.
        rollouts: The file with stored rollouts to learn from, or None to play rollouts.
    """

    plan: JobPlan
    model: str
    driving: DriverSettings
    update: UpdateSettings
    label: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    lora: LoraSettings | None = None
    deterministic: bool = False
    vllm: VllmSettings | None = None
    services: PolicyServiceSettings | None = None
    gateway_url: str | None = None
    rollouts: str | None = None

    def driver(self, *, incarnation: int, context_tokens: int) -> DriverSettings:
        """Return the driver's settings. `context_tokens` is the sampler's limit for a prompt together with the reply."""
        generation = replace(self.driving.generation, context_tokens=context_tokens)
        return replace(self.driving, generation=generation, incarnation=incarnation)


def training_settings(job: JobDocument) -> TrainingSettings:
    """Return the settings of a job. Raises JobError, with all problems in the message, if the job cannot be run."""
    settings, problems = read_training(job)
    if settings is None:
        raise JobError("The job cannot be run: " + " ".join(problems.values()))
    return settings


def read_training(job: JobDocument) -> tuple[TrainingSettings | None, dict[Place, str]]:
    """Return the settings and no problems, or None and all problems by location, including problems in the plan."""
    config, _ = job.typed_config
    plan, problems = read_plan(job)
    policy_config = {} if plan is None else plan.policy_config
    review = Review(dict(problems))
    for place, limit in LIMITS.items():
        check_limit(review, place, value_at(config, place), limit)
    for name, limit in SAMPLING_LIMITS.items():
        check_limit(review, _sampling_place(config, name), policy_config.get(name), limit)
    loss = _loss(review, config.algorithm)
    _check_loss(review, config, loss)
    _check_offline(review, config, loss)
    _check_sampler(review, config)
    clip, loops, lora = _clip(review, config.training, loss), _loops(review, config), _lora(review, config)
    generation = _generation(review, config, policy_config)
    model, stall_seconds = _model(review, job), _stall_seconds(review, config)
    if plan is not None:
        _check_size(review, config, plan, loss)
    if plan is None or review.problems:
        return None, review.problems
    training, engine = config.training, config.sampler.engine
    rows = from_section(RowOptions, training)
    settings = TrainingSettings(
        plan=plan,
        model=model,
        driving=from_section(
            DriverSettings,
            config.rollout,
            generation=generation,
            rows=rows,
            evaluation_temperature=config.evaluation.temperature,
            rollout_seconds=config.rollout.timeout_seconds or ROLLOUT_SECONDS,
            stall_seconds=stall_seconds,
            checkpoint_every=config.checkpoints.every_n_iters or 1,
            loops=loops,
        ),
        update=UpdateSettings(
            learning_rate=training.learning_rate or LEARNING_RATE,
            loss=loss,
            clip=clip,
            beta=float(training.beta or 0),
            temperature=generation.temperature,
            minibatches=training.minibatches or 1,
            precision=training.precision or "fp32",
            ppo=from_section(PpoSettings, training.ppo, whitened=rows.scale == "batch")
            if loss == "ppo"
            else PpoSettings(),
            warmup=training.warmup_iterations or 0,
        ),
        label=config.model.label or config.policy.label or "",
        aliases=config.models.alias or {},
        lora=lora,
        deterministic=config.sampler.deterministic or False,
        vllm=from_section(VllmSettings, config.vllm) if engine == "vllm" else None,
        services=from_section(PolicyServiceSettings, config.sampler) if engine == "services" else None,
        gateway_url=(config.gateway.url or "").strip().rstrip("/") or None,
        rollouts=config.data.rollouts if config.algorithm.type == "offline" else None,
    )
    return settings, {}


def check_limit(review: Review, place: Place, value: Any, limit: Limit) -> None:
    """Add a problem for a value that this trainer does not accept."""
    if value is not None and value not in limit.values:
        review.mismatch(place, value, limit.words, limit.action)


def _check_size(review: Review, config: RlDocument, plan: JobPlan, loss: Loss) -> None:
    if plan.samples == 1 and loss != "ppo":
        section = (
            "training" if config.training.group_size is not None or config.trainer.group_size is None else "trainer"
        )
        action = "A group of one rollout has nothing to compare. The variety ppo works without groups."
        review.mismatch((section, "group_size"), 1, "at least 2", action)
    if rollout_count(plan) > MAX_ROLLOUTS >= plan.total:
        review.problem(
            ("evaluation", "instances"),
            f"the job has {rollout_count(plan)} rollouts, including the evaluation before its first update. Expected at "
            f"most {MAX_ROLLOUTS}.",
        )


def _loss(review: Review, algorithm: Algorithm) -> Loss:
    method, variety = algorithm.method or "", algorithm.variety
    members = FAMILIES.get(method, ())
    # The client accepts combinations that the guides use for hosted trainers. This trainer supports only some of them.
    if members and variety is not None and variety not in members:
        expected = f"{written(members[0])} with the method {written(method)}"
        action = 'Change the variety or the method. The method "policy_gradient" supports all varieties.'
        review.mismatch(("algorithm", "variety"), variety, expected, action)
    named = [loss for loss in FAMILIES["policy_gradient"] if loss == variety]
    return next(iter(named or members), LOSS)


def _check_loss(review: Review, config: RlDocument, loss: Loss) -> None:
    training = config.training
    if loss == "reinforce" and (training.minibatches or 1) > 1:
        action = 'reinforce does not correct for earlier steps of an update. For more steps, use variety = "grpo".'
        review.mismatch(("training", "minibatches"), training.minibatches, "1 with the variety reinforce", action)
    if loss == "reinforce" and training.clip is not None:
        action = "reinforce has no ratio to clip. Remove the key."
        review.mismatch(("training", "clip"), training.clip, "none with the variety reinforce", action)
    if loss == "ppo" and training.scale == "group":
        action = "ppo compares a rollout with learned values, not with a group."
        review.mismatch(("training", "scale"), "group", '"none" or "batch" with the variety ppo', action)


def _check_offline(review: Review, config: RlDocument, loss: Loss) -> None:
    if config.algorithm.type != "offline":
        return
    if config.data.rollouts is None:
        text = (
            '[data] rollouts: missing. With type = "offline", set it to a file from `taskapp export --format tokens`.'
        )
        review.problem(("data", "rollouts"), text)
    if not config.evaluation.seeds:
        text = "[evaluation] seeds: missing. Stored rollouts do not show how well the policy plays. Add held-out seeds."
        review.problem(("evaluation", "seeds"), text)
    if config.training.credit == "turn":
        action = "The file of stored rollouts has only one reward for each rollout."
        review.mismatch(("training", "credit"), "turn", '"episode" with type offline', action)
    if loss == "ppo":
        action = "ppo can only learn values from rollouts that the policy itself played."
        review.mismatch(("algorithm", "type"), "offline", '"online" with the variety ppo', action)


def _check_sampler(review: Review, config: RlDocument) -> None:
    sampler, place = config.sampler, ("sampler", "deterministic")
    if sampler.deterministic and _ahead(config):
        expected = "false with [training] iterations_ahead"
        review.mismatch(place, True, expected, "Otherwise timing determines which weights sample a rollout.")
    if sampler.deterministic and sampler.engine == "vllm":
        action = "vLLM samples many replies concurrently."
        review.mismatch(place, True, 'false with [sampler] engine = "vllm"', action)
    if sampler.engine == "services" and (sampler.replicas or 1) > MOST_REPLICAS:
        action = "Each replica is a process with a copy of the model."
        review.mismatch(("sampler", "replicas"), sampler.replicas, f"at most {MOST_REPLICAS}", action)


def _generation(review: Review, config: RlDocument, policy_config: Mapping[str, Any]) -> AttemptSettings:
    """Return the settings of each generation, with 0 for `context_tokens`. `policy_config` comes from the plan."""
    temperature, max_tokens = policy_config.get("temperature", TEMPERATURE), policy_config.get("max_tokens", MAX_TOKENS)
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 < temperature <= 10:
        place, expected = _sampling_place(config, "temperature"), "a number greater than 0 and at most 10"
        action = "At 0, all rollouts of a group are equal. Only [evaluation] temperature may be 0."
        review.mismatch(place, temperature, expected, action)
        temperature = TEMPERATURE
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        place = _sampling_place(config, "max_tokens")
        review.mismatch(place, max_tokens, "an integer of at least 1", "For example, write max_tokens = 64.")
        max_tokens = MAX_TOKENS
    stop = policy_config.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        place = ("rollout", "policy_config", "stop")
        review.mismatch(place, stop, "a string or a list of strings", 'For example, write stop = ["</answer>"].')
    return AttemptSettings(float(temperature), max_tokens, context_tokens=0)


def _sampling_place(config: RlDocument, name: str) -> tuple[str, ...]:
    """Return where the RL config sets this key of the plan's `policy_config`."""
    inner = (config.rollout.policy_config or {}).get(name)
    return ("policy", name) if inner is None else ("rollout", "policy_config", name)


def _clip(review: Review, training: Training, loss: Loss) -> tuple[float, float] | None:
    """Return the clip range, or None for the loss's default. With `iterations_ahead`, gspo needs a wider range."""
    ahead = loss == "gspo" and bool(training.iterations_ahead)
    if training.clip is None:
        return ASYNC_GSPO_CLIP if ahead else None
    below, above = training.clip
    lower, upper = CLIP_RANGES["gspo"]
    if ahead and (below <= lower or above <= upper):
        expected = f"more than {lower:g} and {upper:g} with [training] iterations_ahead"
        action = f"For example, write clip = {list(ASYNC_GSPO_CLIP)}."
        review.mismatch(("training", "clip"), training.clip, expected, action)
    return float(below), float(above)


def _lora(review: Review, config: RlDocument) -> LoraSettings | None:
    """Return the adapter of a config, or None for full training."""
    mode, other = config.model.trainer_mode, config.policy.trainer_mode
    if mode is not None and other is not None and mode != other:
        review.mismatch(("policy", "trainer_mode"), other, f'"{mode}" as in [model]', "Set it in one section only.")
    if "lora" not in (mode, other):
        return None
    inner, outer = "lora" in config.training.model_fields_set, "lora" in config.model_fields_set
    if inner and outer and config.training.lora != config.lora:
        review.problem(
            ("lora",),
            "[lora]: the values differ from the values in [training.lora]. Remove one of the two sections.",
        )
    if inner:
        return lora_settings(review, config.training.lora, ("training", "lora"))
    return lora_settings(review, config.lora, ("lora",))


def lora_settings(review: Review, section: Lora, place: tuple[str, ...]) -> LoraSettings:
    """Return the adapter that a section describes. `place` is the section's location in the config."""
    targets: Sequence[str] = section.target_modules or ()
    if section.target_modules in (None, [ALL_LINEAR]):
        targets = LINEAR_LAYERS
    for target in targets:
        if target not in LINEAR_LAYERS:
            expected = f'"{ALL_LINEAR}", or one or more of {", ".join(map(written, LINEAR_LAYERS))}'
            review.mismatch((*place, "target_modules"), target, expected, "Only these layers can have an adapter.")
    return LoraSettings(section.r or LORA_RANK, float(section.alpha or LORA_ALPHA), tuple(dict.fromkeys(targets)))


def _model(review: Review, job: JobDocument) -> str:
    named = models_named(job.document)
    if not named and not job.model:
        review.problem(
            ("model",), '[model]: the model to train is missing. For example, write base = "tiny" below [model].'
        )
    return named[0][2] if named else job.model


def _stall_seconds(review: Review, config: RlDocument) -> float:
    """Return after how many seconds without progress the job ends. The value must exceed the timeout of a rollout."""
    rollout_seconds, seconds = config.rollout.timeout_seconds or ROLLOUT_SECONDS, config.training.stall_seconds
    if seconds is None:
        return max(STALL_SECONDS, rollout_seconds * STALL_SECONDS / ROLLOUT_SECONDS)
    if seconds <= rollout_seconds:
        expected = f"more than [rollout] timeout_seconds, which is {rollout_seconds:g}"
        action = "Otherwise one rollout that hangs would end the job."
        review.mismatch(("training", "stall_seconds"), seconds, expected, action)
    return seconds


def _ahead(config: RlDocument) -> int:
    """Return how many iterations are played ahead of their update: 0 for type offline, which only plays evaluations."""
    return 0 if config.algorithm.type == "offline" else config.training.iterations_ahead or 0


def _loops(review: Review, config: RlDocument) -> LoopSettings:
    environments, curriculum = config.rollout.environments or [], _curriculum(review, config.curriculum)
    for number, each in enumerate(environments, start=1):
        if each.task_app and not each.task_url:
            review.problem(
                ("rollout", "environments"),
                f"[rollout] environments: environment {number} has a `task_app`, which only `taskapp train --local` can serve. "
                "Serve this file yourself and set task_url to the address.",
            )
    if environments and curriculum.levels:
        review.problem(
            ("curriculum",),
            "[curriculum]: cannot be combined with [rollout] environments, because a curriculum selects the level of one "
            "environment. Remove one of the two.",
        )
    return LoopSettings(
        stopping=from_section(EarlyStopping, config.evaluation),
        curriculum=Curriculum() if config.algorithm.type == "offline" else curriculum,
        ahead=_ahead(config),
        environments=_shares(environments),
    )


def _curriculum(review: Review, section: CurriculumSection) -> Curriculum:
    if not section.levels:
        return Curriculum()
    curriculum = from_section(Curriculum, section, levels=tuple(section.levels))
    if len(set(section.levels)) != len(section.levels):
        place = ("curriculum", "levels")
        review.mismatch(place, section.levels, "different levels", "List each level once.")
    if section.down is not None and section.down >= curriculum.up:
        expected = f"less than up, which is {curriculum.up:g}"
        action = "Otherwise one reward would move the level both up and down."
        review.mismatch(("curriculum", "down"), section.down, expected, action)
    return curriculum


def _shares(environments: Sequence[MixedEnvironment]) -> tuple[EnvironmentShare, ...]:
    shares: list[EnvironmentShare] = []
    for number, each in enumerate(environments, start=1):
        name = each.env_name or f"environment_{number}"
        if name in {share.name for share in shares}:
            name = f"{name}_{number}"
        shares.append(
            EnvironmentShare(
                name,
                each.weight,
                each.env_name,
                (each.task_url or "").rstrip("/") or None,
                each.env_config or {},
                seeds=tuple(each.seeds) if each.seeds else None,
                eval_seeds=tuple(each.eval_seeds) if each.eval_seeds else None,
            )
        )
    return tuple(shares)
