"""What the local trainer reads of a job beside its plan (`backend.rollout_plan`): how it samples, learns and saves.

    training_settings(job) -> TrainingSettings, or one sentence for each thing that this trainer does not do

No torch is needed: the backend checks jobs with this when they are submitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taskapp_kit.backend.engine import JobDocument
from taskapp_kit.backend.rollout_plan import MAX_ROLLOUTS, read_plan
from taskapp_kit.client.config.consistency import models_named
from taskapp_kit.client.config.review import Review, check_schema
from taskapp_kit.services.options import Backend
from taskapp_kit.train.config_keys import FAMILIES, LIMITS, SAMPLING_LIMITS, Limit, written
from taskapp_kit.train.driver.settings import (
    ATTEMPTS,
    FAILED_SHARE,
    ROLLOUT_SECONDS,
    STALL_SECONDS,
    STRAGGLER_SECONDS,
    DriverSettings,
    rollout_count,
)
from taskapp_kit.train.gateway.attempt import AttemptSettings
from taskapp_kit.train.loop_keys import clip_range, read_loops
from taskapp_kit.train.loops.settings import LoopSettings
from taskapp_kit.train.rows import RowOptions
from taskapp_kit.train.sampler.vllm.place import VllmSettings
from taskapp_kit.train.update.memory import LINEAR_LAYERS
from taskapp_kit.train.update.settings import Loss, PpoSettings, UpdateSettings

LEARNING_RATE = 1e-5
"""Of a job that names none."""
LOSS: Loss = "gspo"
"""Of a job that names none; with one minibatch gspo, grpo and reinforce have the same gradient."""
PPO_KEYS = ("discount", "gae_lambda", "passes", "value_learning_rate", "value_clip")
GROUP_SIZES = (("training", "group_size"), ("trainer", "group_size"))
MAX_TOKENS = 512
"""Of one answer, in a job that names no limit; the model's context may end it earlier."""
TEMPERATURE = 1.0
MOST_REPLICAS = 64
"""Sampler processes of one job."""
LORA_RANK, LORA_ALPHA = 16, 32.0
ALL_LINEAR = "all-linear"
"""What peft's configs call all of LINEAR_LAYERS."""


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The adapter that is trained. targets: names of linear layers such as `q_proj`."""

    rank: int = LORA_RANK
    alpha: float = LORA_ALPHA
    targets: tuple[str, ...] = LINEAR_LAYERS


@dataclass(frozen=True, slots=True)
class PolicyServiceSettings:
    """The services of a job with `[sampler] engine = "services"`. replicas: samplers, beside one process that updates.

    backend: where these processes run, on this machine or on a Ray cluster.
    """

    replicas: int = 1
    backend: Backend = "local"


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """The settings of a training job.

    model: as the config names it, before aliases. label: the job's own word for what it trains, "" for none. lora: None
    for full training. update.draw: "", the caller replaces it by the job's id. max_tokens: of one answer.
    evaluation_temperature: None for `temperature`, that of sampling and of the update. stop: texts that end an answer;
    they are part of the plan's `policy_config`, too, and reach the gateway with each call. deterministic: one prompt at a
    time. vllm, services: None of both samples and updates in the trainer itself. checkpoint_every: iterations between two
    checkpoints; the last iteration always has one. gateway_url: the gateway's address for the task app, None for its own.
    rollouts: the file of stored rollouts to learn from, None to play them. The deadlines are those of `DriverSettings`.
    """

    model: str
    label: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    lora: LoraSettings | None = None
    update: UpdateSettings = field(default_factory=lambda: UpdateSettings(LEARNING_RATE))
    rows: RowOptions = field(default_factory=RowOptions)
    max_tokens: int = MAX_TOKENS
    temperature: float = TEMPERATURE
    evaluation_temperature: float | None = None
    stop: tuple[str, ...] = ()
    deterministic: bool = False
    vllm: VllmSettings | None = None
    services: PolicyServiceSettings | None = None
    checkpoint_every: int = 1
    gateway_url: str | None = None
    rollouts: str | None = None
    rollout_seconds: float = ROLLOUT_SECONDS
    straggler_seconds: float = STRAGGLER_SECONDS
    stall_seconds: float = STALL_SECONDS
    failed_share: float = FAILED_SHARE
    attempts: int = ATTEMPTS
    loops: LoopSettings = field(default_factory=LoopSettings)

    def driver(self, *, incarnation: int, context_tokens: int) -> DriverSettings:
        """Return the driver's settings. context_tokens: the sampler's, for a prompt and its answer together."""
        return DriverSettings(
            generation=AttemptSettings(self.temperature, self.max_tokens, context_tokens),
            rows=self.rows,
            evaluation_temperature=self.evaluation_temperature,
            rollout_seconds=self.rollout_seconds,
            straggler_seconds=self.straggler_seconds,
            stall_seconds=self.stall_seconds,
            failed_share=self.failed_share,
            attempts=self.attempts,
            checkpoint_every=self.checkpoint_every,
            incarnation=incarnation,
            loops=self.loops,
        )


def training_settings(job: JobDocument) -> tuple[TrainingSettings | None, list[str]]:
    """Return the settings, and the problems that `read_plan` does not report, one sentence each.

    There are no settings where either of them has problems.
    """
    review = Review(dict(job.config))
    check_schema(review, required_in=lambda _: False)
    reported = set(review.problems)
    plan, _ = read_plan(job)
    made = _settings(review, job, {} if plan is None else plan.policy_config)
    if plan is not None and plan.samples == 1 and _loss(review) != "ppo":
        place = next((place for place in GROUP_SIZES if review.at(*place) is not None), GROUP_SIZES[0])
        action = "A group of one has nothing to compare; the variety ppo needs no groups."
        review.mismatch(place, 1, "at least 2", action)
    if plan is not None and rollout_count(plan) > MAX_ROLLOUTS >= plan.total:
        review.problem(
            ("evaluation", "instances"),
            f"the job has {rollout_count(plan)} rollouts with the evaluation before its first update; at most "
            f"{MAX_ROLLOUTS} are played.",
        )
    problems = [text for place, text in review.problems.items() if place not in reported]
    return (None if plan is None or review.problems else made), problems


def _settings(review: Review, job: JobDocument, policy_config: Mapping[str, Any]) -> TrainingSettings | None:
    """Return the settings, None where a problem made them impossible. policy_config: the plan's."""
    _check_limits(review)
    _check_sampling(review, policy_config)
    loss = _loss(review)
    minibatches = review.at("training", "minibatches") or 1
    clip = clip_range(review, loss)
    loops = read_loops(review)
    scale = _first(review, "none", ("training", "scale"))
    if loss == "reinforce":
        _refuse_beside_reinforce(review, minibatches, review.at("training", "clip"))
    if loss == "ppo" and scale == "group":
        action = "It compares a rollout with its values, not with its group."
        review.mismatch(("training", "scale"), scale, '"none" or "batch" with the variety ppo', action)
    temperature = _temperature(review, policy_config)
    rollout_seconds = review.at("rollout", "timeout_seconds") or ROLLOUT_SECONDS
    rollouts = _rollouts(review, loss)
    lora = lora_settings(review)
    model = _model(review, job)
    stall_seconds = _stall_seconds(review, rollout_seconds)
    max_tokens = _max_tokens(review, policy_config)
    stop = _stop(review, policy_config)
    vllm = _vllm(review)
    if review.problems:
        return None
    failed_share = review.at("rollout", "failed_share")
    return TrainingSettings(
        model=model,
        label=_first(review, "", ("model", "label"), ("policy", "label")),
        aliases=dict(review.at("models", "alias") or {}),
        lora=lora,
        update=UpdateSettings(
            learning_rate=_first(review, LEARNING_RATE, ("training", "learning_rate")),
            loss=loss,
            clip=clip,
            beta=float(_first(review, 0.0, ("training", "beta"))),
            temperature=temperature,
            minibatches=minibatches,
            precision=_first(review, "fp32", ("training", "precision")),
            ppo=_ppo(review, whitened=scale == "batch") if loss == "ppo" else PpoSettings(),
            warmup=_first(review, 0, ("training", "warmup_iterations")),
        ),
        rows=RowOptions(
            scale=scale,
            credit=_first(review, "episode", ("training", "credit")),
            discount=float(_first(review, 1.0, ("training", "discount"))),
            mask_truncated=_first(review, False, ("training", "mask_truncated")),
        ),
        max_tokens=max_tokens,
        temperature=temperature,
        evaluation_temperature=review.at("evaluation", "temperature"),
        stop=stop,
        deterministic=_first(review, False, ("sampler", "deterministic")),
        vllm=vllm,
        services=_services(review),
        checkpoint_every=_first(review, 1, ("checkpoints", "every_n_iters")),
        gateway_url=_first(review, "", ("gateway", "url")).strip().rstrip("/") or None,
        rollouts=rollouts,
        rollout_seconds=rollout_seconds,
        straggler_seconds=_first(review, STRAGGLER_SECONDS, ("rollout", "straggler_seconds")),
        stall_seconds=stall_seconds,
        failed_share=FAILED_SHARE if failed_share is None else failed_share,
        attempts=_first(review, ATTEMPTS, ("rollout", "attempts")),
        loops=loops,
    )


def _first(review: Review, default: Any, *places: tuple[str, ...]) -> Any:
    """Return the value of the first of these places that has one."""
    return next((value for place in places if (value := review.at(*place)) is not None), default)


def _check_limits(review: Review) -> None:
    for place, limit in LIMITS.items():
        check_limit(review, place, review.at(*place), limit)


def check_limit(review: Review, place: tuple[str, ...], value: Any, limit: Limit) -> None:
    """Add a problem for a value that this trainer does not accept."""
    if value is not None and value not in limit.values:
        review.mismatch(place, value, limit.words, limit.action)


def _check_sampling(review: Review, policy_config: Mapping[str, Any]) -> None:
    for name, limit in SAMPLING_LIMITS.items():
        check_limit(review, _sampling_place(review, name), policy_config.get(name), limit)


def _loss(review: Review) -> Loss:
    method, variety = review.at("algorithm", "method"), review.at("algorithm", "variety")
    members = FAMILIES.get(method, ())
    if members and variety is not None and variety not in members:
        expected = f"{written(members[0])} of the method {written(method)}"
        review.mismatch(("algorithm", "variety"), variety, expected, 'Change one of them: "policy_gradient" has all.')
    known = [loss for loss in FAMILIES["policy_gradient"] if loss == variety]
    return next(iter(known or members), LOSS)


def _rollouts(review: Review, loss: Loss) -> str | None:
    """Return the file that a job of type offline learns from."""
    if review.at("algorithm", "type") != "offline":
        return None
    found: str | None = review.at("data", "rollouts")
    if found is None:
        text = '[data] rollouts: missing; type = "offline" learns from a file of `taskapp export --format tokens`. Name it.'
        review.problem(("data", "rollouts"), text)
    if not review.at("evaluation", "seeds"):
        text = "[evaluation] seeds: missing; the rewards of stored rollouts say nothing of the policy. Name held-out seeds."
        review.problem(("evaluation", "seeds"), text)
    if (credit := review.at("training", "credit")) == "turn":
        action = "The file has one reward for each rollout."
        review.mismatch(("training", "credit"), credit, '"episode" with type offline', action)
    if loss == "ppo":
        action = "Its values are those of the policy that played."
        review.mismatch(("algorithm", "type"), "offline", '"online" with the variety ppo', action)
    return found


def _ppo(review: Review, *, whitened: bool) -> PpoSettings:
    given = {name: value for name, value in (review.at("training", "ppo") or {}).items() if name in PPO_KEYS}
    return PpoSettings(**given, whitened=whitened)


def _refuse_beside_reinforce(review: Review, minibatches: int, clip: Any) -> None:
    if minibatches > 1:
        action = 'Its later steps would need a ratio that corrects for the earlier ones; or take variety = "grpo".'
        review.mismatch(("training", "minibatches"), minibatches, "1 with the variety reinforce", action)
    if clip is not None:
        action = "It has no ratio. Take it out."
        review.mismatch(("training", "clip"), clip, "none with the variety reinforce", action)


def _temperature(review: Review, policy_config: Mapping[str, Any]) -> float:
    value = policy_config.get("temperature", TEMPERATURE)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 10:
        action = "A policy that does not sample has nothing to compare; [evaluation] temperature may be 0."
        review.mismatch(_sampling_place(review, "temperature"), value, "a number above 0 and at most 10", action)
        return TEMPERATURE
    return float(value)


def _max_tokens(review: Review, policy_config: Mapping[str, Any]) -> int:
    value = policy_config.get("max_tokens", MAX_TOKENS)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        place = _sampling_place(review, "max_tokens")
        review.mismatch(place, value, "a whole number of at least 1", "Write for example max_tokens = 64.")
        return MAX_TOKENS
    return value


def _stop(review: Review, policy_config: Mapping[str, Any]) -> tuple[str, ...]:
    value = policy_config.get("stop") or []
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        place = ("rollout", "policy_config", "stop")
        review.mismatch(place, value, "a text or a list of texts", 'Write for example stop = ["</answer>"].')
        return ()
    return tuple(texts)


def _sampling_place(review: Review, name: str) -> tuple[str, ...]:
    """Return where a member of the plan's policy_config was written."""
    inner = ("rollout", "policy_config", name)
    return ("policy", name) if review.at(*inner) is None else inner


def lora_settings(review: Review) -> LoraSettings | None:
    """Return the adapter of a config, None for full training."""
    modes = {place: review.at(*place) for place in (("model", "trainer_mode"), ("policy", "trainer_mode"))}
    named = {place: mode for place, mode in modes.items() if mode is not None}
    if len(set(named.values())) > 1:
        place, expected = ("policy", "trainer_mode"), f'"{named["model", "trainer_mode"]}" as in [model]'
        review.mismatch(place, named[place], expected, "Name it once.")
    if "lora" not in named.values():
        return None
    sections = [name for name in (("training", "lora"), ("lora",)) if review.at(*name) is not None]
    if len(sections) == 2 and review.at(*sections[0]) != review.at(*sections[1]):
        review.problem(
            ("lora",),
            "[lora]: found other values than in [training.lora]; expected one of the two sections. Take one out.",
        )
    section = sections[0] if sections else ("lora",)
    targets = review.at(*section, "target_modules")
    targets = [targets] if isinstance(targets, str) else targets
    if targets is None or targets == [ALL_LINEAR]:
        targets = LINEAR_LAYERS
    for target in targets:
        if target not in LINEAR_LAYERS:
            expected = f'"{ALL_LINEAR}" or some of {", ".join(map(written, LINEAR_LAYERS))}'
            review.mismatch((*section, "target_modules"), target, expected, "These layers can have an adapter.")
    return LoraSettings(
        rank=_first(review, LORA_RANK, (*section, "r")),
        alpha=float(_first(review, LORA_ALPHA, (*section, "alpha"))),
        targets=tuple(dict.fromkeys(targets)),
    )


def _vllm(review: Review) -> VllmSettings | None:
    if review.at("sampler", "engine") != "vllm":
        return None
    if review.at("sampler", "deterministic"):
        action = "It samples many answers at once."
        review.mismatch(("sampler", "deterministic"), True, 'false with [sampler] engine = "vllm"', action)
    return VllmSettings.of(review.at("vllm") or {})


def _services(review: Review) -> PolicyServiceSettings | None:
    if review.at("sampler", "engine") != "services":
        return None
    replicas = _first(review, 1, ("sampler", "replicas"))
    if replicas > MOST_REPLICAS:
        action = "Each is a process with the whole model."
        review.mismatch(("sampler", "replicas"), replicas, f"at most {MOST_REPLICAS}", action)
    return PolicyServiceSettings(replicas=replicas, backend=_first(review, "local", ("sampler", "backend")))


def _model(review: Review, job: JobDocument) -> str:
    named = models_named(review.document)
    for place, _, model in named:
        if model != named[0][2]:
            review.mismatch(place, model, f'"{named[0][2]}", which the config names, too', "Name the model once.")
    if named:
        return named[0][2]
    if not job.model:
        review.problem(("model",), '[model]: names no model to train. Add for example base = "tiny" below [model].')
    return job.model


def _stall_seconds(review: Review, rollout_seconds: float) -> float:
    """Return the deadline of the whole job: longer than that of a rollout, which would otherwise end it."""
    place = ("training", "stall_seconds")
    given: float | None = review.at(*place)
    if given is None:
        return max(STALL_SECONDS, rollout_seconds * STALL_SECONDS / ROLLOUT_SECONDS)
    if given <= rollout_seconds:
        expected = f"more than [rollout] timeout_seconds, {rollout_seconds:g}"
        review.mismatch(place, given, expected, "One rollout that hangs would end the job before it is given up.")
    return given
