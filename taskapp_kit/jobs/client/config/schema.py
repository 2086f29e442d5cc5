"""The sections and keys of an RL config as pydantic models, from the RL guides, the API contract and SDK 0.3.9.

The validator, the backend's plan and the page `docs/reference/rl-config.md` all use these models. The page (generated
by `docs/tools`) shows each class's docstring, and each key's description and example.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo

from taskapp_kit.jobs.client.config.value_types import (
    BaseAddress,
    ClipRange,
    Count,
    CountOrAll,
    Environments,
    Expected,
    FullAddress,
    JudgeProvider,
    Levels,
    Names,
    Number,
    Ops,
    Positive,
    PositiveShare,
    Seeds,
    Share,
    Switch,
    Table,
    Temperature,
    Text,
    TextOrTexts,
    Texts,
    TrainerMode,
    Weight,
    Whole,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")

SMOKE_TEST_SECTIONS = ("trainer", "env", "job")
"""A config without `[algorithm]` and with one of these sections has the smoke-test form: all else is optional."""
LOCAL_SECTIONS = ("sampler", "gateway", "checkpoints", "models")
"""Sections for the local trainer. A config with one of them, or with `services.task_app`, needs no GPU settings."""
REQUIRED: dict[str, Any] = {"required": True}


def required(about: str, example: str) -> Any:
    """Declare a key that is required, except in the smoke-test form.

    about: The meaning and the unit of the key. example: A value in TOML.
    """
    return Field(default=None, description=about, examples=[example], json_schema_extra=REQUIRED)


def optional(about: str, example: str) -> Any:
    """Declare an optional key. about: The meaning and the unit of the key. example: A value in TOML."""
    return Field(default=None, description=about, examples=[example])


def section(kind: type[ConfigSection], *, required: bool = False, deprecated: str | None = None) -> Any:
    """Declare a section. If the document omits it, all its keys are None.

    required: Whether the section is required, except in the smoke-test form.
    """
    return Field(default_factory=kind, deprecated=deprecated, json_schema_extra=REQUIRED if required else None)


class ConfigSection(BaseModel):
    """One table of the document. free: Whether undeclared keys are accepted without a warning."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, hide_input_in_errors=True)
    free: ClassVar[bool] = False

    @field_validator("*", mode="before")
    @classmethod
    def _is_given(cls, value: Any) -> Any:
        """Reject null in a job's JSON, because None means that a key is omitted."""
        if value is None:
            raise ValueError("null")
        return value


class Algorithm(ConfigSection):
    """How the policy learns."""

    type: Literal["online", "offline"] | None = required("whether rollouts are played during training", '"online"')
    method: Literal["policy_gradient", "gspo", "ppo"] | None = required("the algorithm family", '"policy_gradient"')
    variety: Text | None = required("the algorithm within the family", '"gspo"')


class Services(ConfigSection):
    """Servers that the job uses."""

    task_url: BaseAddress | None = optional(
        "the task app's address; an argument or TASK_APP_URL takes precedence", '"http://127.0.0.1:8001"'
    )
    judge_url: BaseAddress | None = optional("the address of the judges' server", '"http://127.0.0.1:8002"')
    task_app: Text | None = optional("the task app's file, for `taskapp train --local`", '"examples/rl/task_app.py"')


class Model(ConfigSection):
    """The model to train: either source or base."""

    source: Text | None = optional("the id of a fine-tuned model, such as an FFT or QLoRA checkpoint", '"ft:my-model"')
    base: Text | None = optional("the id of a base model", '"Qwen/Qwen3-4B"')
    trainer_mode: TrainerMode | None = required("which weights are updated", '"full"')
    label: Text | None = required("the trained model's label", '"my-run"')


class Policy(ConfigSection):
    """The model and its sampling parameters. If either source or model_name is set, this section replaces [model]."""

    model_name: Text | None = optional("the id of a base model", '"Qwen/Qwen3-4B"')
    source: Text | None = optional("the id of a fine-tuned model", '"ft:my-model"')
    trainer_mode: TrainerMode | None = optional("which weights are updated", '"lora"')
    label: Text | None = optional("the trained model's label", '"my-run"')
    max_tokens: Count | None = optional("the maximum number of tokens per reply", "512")
    temperature: Temperature | None = optional("the sampling temperature", "0.7")
    top_p: PositiveShare | None = optional("nucleus sampling", "0.95")
    top_k: CountOrAll | None = optional("how many of the most likely tokens are sampled from; -1 for all", "50")
    repetition_penalty: Positive | None = optional("the penalty on repeated tokens; 1 for none", "1.0")
    stop_sequences: Texts | None = optional("strings that end a reply", '["</answer>"]')
    inference_url: FullAddress | None = optional("the address of the model's API", '"http://127.0.0.1:8100/v1"')


class Topology(ConfigSection):
    """How the GPUs are used. [compute.topology] and [topology] are the same section: each key may be in either."""

    type: Text | None = required("how the GPUs are divided", '"single_node_split"')
    gpus_for_vllm: Count | None = required("GPUs that run the policy", "2")
    gpus_for_training: Count | None = required("GPUs that update the weights", "6")
    gpus_for_ref: Whole | None = required("GPUs that run the reference model", "0")
    tensor_parallel: Count | None = required("GPUs per copy of the policy", "2")
    reference_placement: Text | None = optional('where the reference model runs; "none" by default', '"none"')


class Compute(ConfigSection):
    """The GPUs. The local trainer does not need this section."""

    gpu_type: Text | None = required("the GPU model", '"H100"')
    gpu_count: Count | None = required("GPUs per machine", "8")
    nodes: Count | None = optional("machines", "1")
    topology: Topology = section(Topology)


class RolloutSection(ConfigSection):
    """How episodes are played."""

    env_name: Text | None = required("the environment in the task app", '"adder"')
    policy_name: Text | None = required("the policy in the task app, or a label of your choice", '"gold"')
    max_turns: Count | None = required("the maximum number of turns per episode", "6")
    episodes_per_batch: Count | None = required("episodes between updates", "8")
    max_concurrent_rollouts: Count | None = required("concurrent rollouts", "4")
    env_config: Table | None = optional("arguments of the environment", "{ low = 5 }")
    environments: Environments | None = optional(
        "several environments or task apps instead of one, each with a weight",
        '[{ env_name = "adder", weight = 3 }, { env_name = "words", weight = 1 }]',
    )
    policy_config: Table | None = optional("arguments of the policy", "{ temperature = 0.7 }")
    batches_per_step: Count | None = optional("batches per update", "1")
    ops: Ops | None = optional("the sequence of policy and environment turns", '["agent", "env"]')
    timeout_seconds: Positive | None = optional(
        "seconds after which an attempt at a rollout is aborted and counts as failed", "1800"
    )
    straggler_seconds: Positive | None = optional("seconds to wait for an iteration's last rollouts", "900")
    attempts: Count | None = optional("attempts per rollout if it fails outside of its episode", "2")
    record_tokens: Switch | None = optional(
        "whether the task app stores token ids and log-probabilities with each rollout", "true"
    )
    failed_share: Share | None = optional("the job fails if a greater share of its rollouts fails", "0.5")


class WeightSync(ConfigSection):
    """How the policy's inference server receives new weights."""

    enable: Switch | None = optional("whether it receives them", "true")
    targets: Texts | None = optional("the models that receive them", '["policy"]')
    mode: Text | None = optional("the way", '"direct"')
    direct: Switch | None = optional("whether weights are copied directly from GPU to GPU", "true")
    interval: Count | None = optional("updates between syncs", "1")
    verify_every_k: Whole | None = optional("how many syncs pass until one is verified; 0 for never", "0")


class Lora(ConfigSection):
    """The adapters, for trainer_mode lora or qlora."""

    r: Count | None = optional("the rank", "16")
    alpha: Positive | None = optional("the scale", "32")
    dropout: Share | None = optional("the dropout probability", "0.05")
    target_modules: TextOrTexts | None = optional("layers that get an adapter", '["q_proj", "v_proj"]')


class TrainingRewards(ConfigSection):
    """Rewards for steps and events."""

    step_rewards_enabled: Switch | None = optional("whether steps are rewarded", "true")
    step_rewards_mode: Text | None = optional("when steps are rewarded", '"decision_stepwise"')
    step_rewards_indicator_lambda: Weight | None = optional("the weight of step rewards", "1.0")
    step_rewards_beta: Number | None = optional("a parameter of the step rewards, sent to the trainer", "0.0")
    step_rewards_strategy: Text | None = optional("how unlocked achievements are counted", '"consistent"')
    event_rewards_kind: Text | None = optional("how events are rewarded", '"unique"')


class PpoSection(ConfigSection):
    """How values and advantages are estimated if `variety` is "ppo"."""

    discount: PositiveShare | None = optional("the factor by which a reward is discounted per sampled token", "1.0")
    gae_lambda: Share | None = optional("the lambda of GAE, per token", "1.0")
    passes: Count | None = optional("passes over the minibatches per update", "2")
    value_learning_rate: PositiveShare | None = optional("the learning rate of the value head", "0.01")
    value_clip: Positive | None = optional("how far a value may change in one update; unlimited by default", "0.2")


class Training(ConfigSection):
    """The length of training, the learning rate and the loss."""

    num_epochs: Count | None = required("passes over the seeds", "1")
    iterations_per_epoch: Count | None = required("updates per epoch", "10")
    max_turns: Count | None = required("the maximum number of turns per episode", "6")
    batch_size: Count | None = required("groups per update", "2")
    group_size: Count | None = required("rollouts per seed, which are compared with each other", "4")
    learning_rate: PositiveShare | None = required("the learning rate", "1e-5")
    gradient_accumulation_steps: Count | None = optional("gradient accumulation steps per update", "1")
    max_accumulated_minibatch: Count | None = optional("the maximum number of accumulated batches per update", "1")
    log_interval: Count | None = optional("updates between logged points", "1")
    weight_sync_interval: Count | None = optional("updates between weight syncs", "1")
    iterations_ahead: Whole | None = optional(
        "how many iterations may be played with older weights during updates; 0 to alternate playing and updating", "0"
    )
    async_semaphore_max: Count | None = optional("concurrent rollouts of the whole job", "4")
    minibatches: Count | None = optional("optimizer steps per update, each on different episodes", "1")
    clip: ClipRange | None = optional("clips ratios this far below and above 1", "[0.2, 0.28]")
    beta: Weight | None = optional("the weight of the KL divergence from the job's initial model", "0.0")
    precision: Literal["fp32", "bf16"] | None = optional("used to compute; the weights are fp32", '"fp32"')
    scale: Literal["none", "group", "batch"] | None = optional(
        "the rollouts by whose standard deviation advantages are divided", '"none"'
    )
    warmup_iterations: Whole | None = optional("updates during which the learning rate rises to its final value", "0")
    credit: Literal["episode", "turn"] | None = optional(
        "the unit with one advantage; a turn is credited with the rewards of the steps after it", '"episode"'
    )
    discount: PositiveShare | None = optional("the discount factor per turn, with credit turn", "1.0")
    mask_truncated: Switch | None = optional("whether to ignore replies cut off at max_tokens", "false")
    stall_seconds: Positive | None = optional("the job fails after this many seconds without progress", "2700")
    weight_sync: WeightSync = section(WeightSync)
    lora: Lora = section(Lora)
    ppo: PpoSection = section(PpoSection)
    rewards: TrainingRewards = section(TrainingRewards)


class Evaluation(ConfigSection):
    """Evaluations of the policy during training."""

    instances: Count | None = required("episodes per evaluation", "2")
    every_n_iters: Count | None = required("updates between evaluations", "1")
    seeds: Seeds | None = required("the seeds of an evaluation", "[0, 1]")
    temperature: Temperature | None = optional("the sampling temperature; defaults to training's; 0 is greedy", "0.0")
    stop_at: Number | None = optional("ends the job at this mean reward of an evaluation", "0.95")
    patience: Count | None = optional("consecutive evaluations without improvement after which the job ends", "3")


class CurriculumSection(ConfigSection):
    """Raises the difficulty when the reward is high enough."""

    levels: Levels | None = required("values of a task's difficulty, the easiest first", '["easy", "medium", "hard"]')
    up: Number | None = required("the mean reward for the next level", "0.8")
    down: Number | None = optional("the mean reward for the previous level; by default never", "0.2")
    window: Count | None = optional("how many iterations at a level the mean covers", "1")


class BlendWeights(ConfigSection):
    """Weights of the reward: env · return + event · events score + outcome · outcome score.

    At least one must be above 0.
    """

    env: Weight | None = optional("the weight of the environment's return", "1.0")
    event: Weight | None = optional("the weight of the events score", "0.0")
    outcome: Weight | None = optional("the weight of the outcome score", "0.0")


class JudgeOptions(ConfigSection):
    """The judge, and what it scores."""

    free = True
    provider: JudgeProvider | None = optional("the judge's vendor", '"openai"')
    model: Text | None = optional("the judge's model", '"gpt-5-nano"')
    rubric_id: Text | None = optional("the rubric", '"adder/v1"')
    event: Switch | None = optional("whether events are judged", "true")
    outcome: Switch | None = optional("whether the outcome is judged", "true")
    rubric_overrides: Table | None = optional("changes to the rubric", "{}")
    metadata: Table | None = optional("values that the judge logs", "{}")


class JudgeSection(ConfigSection):
    """Rewards from a judge."""

    enabled: Switch | None = optional("whether a judge is used", "true")
    timeout_s: Positive | None = optional("the time limit of a judge, in seconds", "45")
    reward_blend: BlendWeights = section(BlendWeights)
    options: JudgeOptions = section(JudgeOptions)


class DeprecatedRubric(ConfigSection):
    """An older way to name a judge's rubric."""

    free = True


class SamplerSection(ConfigSection):
    """The sampler, which generates the replies during training."""

    engine: Literal["transformers", "vllm", "services"] | None = optional(
        "the trainer itself, vLLM, or replicas in other processes", '"transformers"'
    )
    replicas: Count | None = optional("the number of samplers, if the engine is services", "2")
    backend: Literal["local", "ray"] | None = optional(
        "where the samplers run: on this machine, or on a Ray cluster", '"local"'
    )
    deterministic: Switch | None = optional("one reply at a time: slower, but reproducible", "true")


class GatewaySection(ConfigSection):
    """The gateway, through which the task app calls the trained model."""

    url: BaseAddress | None = optional("the address that the task app calls", '"https://trainer.example.org"')


class CheckpointsSection(ConfigSection):
    """Checkpoints that are saved during training."""

    every_n_iters: Count | None = optional("updates between checkpoints; one is always saved at the end", "1")


class ModelsSection(ConfigSection):
    """Aliases of models."""

    alias: Names | None = optional("maps a model's name to the model to use instead", '{ "Qwen/Qwen3-0.6B" = "tiny" }')


class Vllm(ConfigSection):
    """The server that runs the policy. Other keys are passed unchanged to a hosted trainer's server."""

    free = True
    tensor_parallel_size: Count | None = optional("GPUs per copy of the policy", "2")
    max_model_len: Count | None = optional("the maximum number of tokens in a prompt and its reply together", "4096")
    gpu_memory_utilization: PositiveShare | None = optional("the share of a GPU's memory that the server uses", "0.4")
    enforce_eager: Switch | None = optional(
        "run without compilation: starts faster, replies more slowly; always true in the local trainer", "false"
    )


class Reference(ConfigSection):
    """The reference model."""

    placement: Text | None = optional('where it runs; "none" by default', '"none"')


class Tags(ConfigSection):
    """Your own labels, which let you find the job: strings, numbers, true or false."""

    free = True


class SmokeSection(ConfigSection):
    """Settings for local smoke tests. They are never sent with a job."""

    free = True


class SmokeTrainer(ConfigSection):
    """The smoke-test form of [training]."""

    batch_size: Count | None = optional("same as training.batch_size", "2")
    group_size: Count | None = optional("same as training.group_size", "4")


class SmokeEnv(ConfigSection):
    """The smoke-test form of [rollout]."""

    max_steps_per_episode: Count | None = optional("same as rollout.max_turns", "3")


class SmokeJob(ConfigSection):
    """The smoke-test form of [model]."""

    model: Text | None = optional("same as model.base or (ft:…, rl:…) model.source", '"Qwen/Qwen3-0.6B"')


class RunnerSection(ConfigSection):
    """How a script follows the job. Trainers ignore this section."""

    stream_seconds: Weight | None = optional("seconds for which events are shown; 0 for none", "0")
    empty_polls_threshold: Count | None = optional("consecutive polls without events until it stops", "5")
    startup_deadline_s: Positive | None = optional("seconds to wait for the first event", "45")


class DataSection(ConfigSection):
    """The tasks."""

    seeds: Seeds | None = optional("the training seeds, in order", "[0, 1, 2, 3]")
    rollouts: Text | None = optional("the file of stored rollouts to learn from, with type offline", '"rollouts.jsonl"')


class RlDocument(ConfigSection):
    """The whole document, with its sections in the order of the documentation page."""

    algorithm: Algorithm = section(Algorithm, required=True)
    services: Services = section(Services)
    model: Model = section(Model)
    policy: Policy = section(Policy)
    compute: Compute = section(Compute, required=True)
    topology: Topology = section(Topology)
    rollout: RolloutSection = section(RolloutSection, required=True)
    training: Training = section(Training)
    evaluation: Evaluation = section(Evaluation)
    curriculum: CurriculumSection = section(CurriculumSection)
    sampler: SamplerSection = section(SamplerSection)
    gateway: GatewaySection = section(GatewaySection)
    checkpoints: CheckpointsSection = section(CheckpointsSection)
    models: ModelsSection = section(ModelsSection)
    judge: JudgeSection = section(JudgeSection)
    rubric: DeprecatedRubric = section(DeprecatedRubric, deprecated="Write [judge] and [judge.options] instead")
    vllm: Vllm = section(Vllm)
    reference: Reference = section(Reference)
    lora: Lora = section(Lora)
    tags: Tags = section(Tags)
    smoke: SmokeSection = section(SmokeSection)
    trainer: SmokeTrainer = section(SmokeTrainer)
    env: SmokeEnv = section(SmokeEnv)
    job: SmokeJob = section(SmokeJob)
    runner: RunnerSection = section(RunnerSection)
    data: DataSection = section(DataSection)


def inner_section(key: FieldInfo) -> type[ConfigSection] | None:
    """Return the section that a field contains, or None if the field is a key."""
    kind = key.annotation
    return kind if isinstance(kind, type) and issubclass(kind, ConfigSection) else None


def keys_of(section: type[ConfigSection]) -> dict[str, FieldInfo]:
    """Return the keys of a section, by name, without the sections inside it."""
    return {name: key for name, key in section.model_fields.items() if inner_section(key) is None}


def sections_of(section: type[ConfigSection], above: str = "") -> Iterator[tuple[str, type[ConfigSection]]]:
    """Yield the sections inside a section, each with its dotted name, as in its header."""
    for name, key in section.model_fields.items():
        inner = inner_section(key)
        if inner is not None:
            yield above + name, inner
            yield from sections_of(inner, f"{above}{name}.")


SECTIONS = dict(sections_of(RlDocument))
"""Every section by its dotted name, as in its header."""


def is_required(key: FieldInfo) -> bool:
    """Return whether the key or section is required, except in the smoke-test form."""
    return key.json_schema_extra == REQUIRED


def expected(key: FieldInfo) -> Expected:
    """Return a description of the values that a key accepts."""
    kind, _ = get_args(key.annotation)  # the annotation is `kind | None`
    words = next((each for each in getattr(kind, "__metadata__", ()) if isinstance(each, Expected)), None)
    return words or Expected("one of " + ", ".join(f'"{word}"' for word in get_args(kind)))


def value_at(config: ConfigSection, place: Sequence[str]) -> Any:
    """Return the value of a key in a config, given the key's path."""
    return functools.reduce(getattr, place, config)


def from_section(kind: type[Settings], section: ConfigSection, **more: Any) -> Settings:
    """Create an object of a data class from the section's keys that are also its fields. `more` takes precedence."""
    names = {member.name for member in fields(kind)}
    return kind(**{name: value for name, value in section if name in names and value is not None} | more)


def example_of(key: FieldInfo) -> str:
    """Return an example of the key's value in TOML."""
    return str(key.examples[0]) if key.examples else ""
