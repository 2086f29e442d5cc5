"""The sections and keys of an RL config as pydantic models, from the RL guides, the contract and the SDK's configs.

The validator, the backend's plan and the page `docs/reference/rl-config.md` (`docs/tools`) all use these models. A class's
docstring describes its section on the page. Each key has a description and an example.
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
"""A config without `[algorithm]` and with one of these is the smoke-test form: all else in it may be left out."""
LOCAL_SECTIONS = ("sampler", "gateway", "checkpoints", "models")
"""Sections for a trainer on this machine: a config with one of these, or with `services.task_app`, needs no GPUs."""
REQUIRED: dict[str, Any] = {"required": True}


def required(about: str, example: str) -> Any:
    """A key that its section needs in the full form. about: what it is, with its unit. example: how it is written."""
    return Field(default=None, description=about, examples=[example], json_schema_extra=REQUIRED)


def optional(about: str, example: str) -> Any:
    """A key that may be left out."""
    return Field(default=None, description=about, examples=[example])


def section(kind: type[ConfigSection], *, required: bool = False, deprecated: str | None = None) -> Any:
    """A section, with no key set where the document leaves it out. required: in the full form."""
    return Field(default_factory=kind, deprecated=deprecated, json_schema_extra=REQUIRED if required else None)


class ConfigSection(BaseModel):
    """One table of the document. free: keys that it does not declare are accepted without a warning."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, hide_input_in_errors=True)
    free: ClassVar[bool] = False

    @field_validator("*", mode="before")
    @classmethod
    def _is_given(cls, value: Any) -> Any:
        """None is how a key that is left out is read; the JSON of a job cannot write it."""
        if value is None:
            raise ValueError("null")
        return value


class Algorithm(ConfigSection):
    """How the policy learns."""

    type: Literal["online", "offline"] | None = required("whether rollouts are played while it trains", '"online"')
    method: Literal["policy_gradient", "gspo", "ppo"] | None = required("the family", '"policy_gradient"')
    variety: Text | None = required("the member of the family", '"gspo"')


class Services(ConfigSection):
    """Servers that the job uses."""

    task_url: BaseAddress | None = optional(
        "the task app; an argument and TASK_APP_URL go before it", '"http://127.0.0.1:8001"'
    )
    judge_url: BaseAddress | None = optional("the judges' server", '"http://127.0.0.1:8002"')
    task_app: Text | None = optional("the task app's file, for `taskapp train --local`", '"examples/rl/task_app.py"')


class Model(ConfigSection):
    """What is trained: exactly one of source and base."""

    source: Text | None = optional("the id of a finetuned model, such as an FFT or QLoRA checkpoint", '"ft:my-model"')
    base: Text | None = optional("the id of a base model", '"Qwen/Qwen3-4B"')
    trainer_mode: TrainerMode | None = required("what is updated", '"full"')
    label: Text | None = required("the trained model's label", '"my-run"')


class Policy(ConfigSection):
    """The model and its sampling. With exactly one of source and model_name, it replaces [model]."""

    model_name: Text | None = optional("the id of a base model", '"Qwen/Qwen3-4B"')
    source: Text | None = optional("the id of a finetuned model", '"ft:my-model"')
    trainer_mode: TrainerMode | None = optional("what is updated", '"lora"')
    label: Text | None = optional("the trained model's label", '"my-run"')
    max_tokens: Count | None = optional("tokens of one answer", "512")
    temperature: Temperature | None = optional("how freely it samples", "0.7")
    top_p: PositiveShare | None = optional("nucleus sampling", "0.95")
    top_k: CountOrAll | None = optional("how many tokens it samples from; -1 for all", "50")
    repetition_penalty: Positive | None = optional("1 changes nothing", "1.0")
    stop_sequences: Texts | None = optional("what ends an answer", '["</answer>"]')
    inference_url: FullAddress | None = optional("where the model answers", '"http://127.0.0.1:8100/v1"')


class Topology(ConfigSection):
    """Who uses which GPUs; [compute.topology] and [topology] are one section, and each key may be in either."""

    type: Text | None = required("how the GPUs are divided", '"single_node_split"')
    gpus_for_vllm: Count | None = required("GPUs that run the policy", "2")
    gpus_for_training: Count | None = required("GPUs that train", "6")
    gpus_for_ref: Whole | None = required("GPUs of the reference model", "0")
    tensor_parallel: Count | None = required("GPUs that one copy of the policy is spread over", "2")
    reference_placement: Text | None = optional('where the reference model runs; "none" by default', '"none"')


class Compute(ConfigSection):
    """The GPUs; not needed for the trainer on this machine."""

    gpu_type: Text | None = required("the model of GPU", '"H100"')
    gpu_count: Count | None = required("GPUs of one machine", "8")
    nodes: Count | None = optional("machines", "1")
    topology: Topology = section(Topology)


class RolloutSection(ConfigSection):
    """How episodes are played."""

    env_name: Text | None = required("the environment in the task app", '"adder"')
    policy_name: Text | None = required("the policy in the task app, or a label", '"gold"')
    max_turns: Count | None = required("turns of one episode", "6")
    episodes_per_batch: Count | None = required("episodes between two updates", "8")
    max_concurrent_rollouts: Count | None = required("rollouts at the same time", "4")
    env_config: Table | None = optional("arguments of the environment", "{ low = 5 }")
    environments: Environments | None = optional(
        "several environments, or task apps, instead of one, by weights",
        '[{ env_name = "adder", weight = 3 }, { env_name = "words", weight = 1 }]',
    )
    policy_config: Table | None = optional("the policy's own settings", "{ temperature = 0.7 }")
    batches_per_step: Count | None = optional("batches of one update", "1")
    ops: Ops | None = optional("what is played, in order", '["agent", "env"]')
    timeout_seconds: Positive | None = optional(
        "seconds after which an attempt at a rollout is abandoned and counts as failed", "1800"
    )
    straggler_seconds: Positive | None = optional("seconds after which an iteration continues without a rollout", "900")
    attempts: Count | None = optional("attempts at a rollout that failed outside of its episode", "2")
    record_tokens: Switch | None = optional(
        "whether the task app stores token ids and log-probabilities with each rollout", "true"
    )
    failed_share: Share | None = optional("the job fails when a greater share of its rollouts failed", "0.5")


class WeightSync(ConfigSection):
    """How new weights reach the policy that plays."""

    enable: Switch | None = optional("whether they do", "true")
    targets: Texts | None = optional("who gets them", '["policy"]')
    mode: Text | None = optional("the way", '"direct"')
    direct: Switch | None = optional("whether from GPU to GPU", "true")
    interval: Count | None = optional("updates between two syncs", "1")
    verify_every_k: Whole | None = optional("syncs between two that are verified; 0 for never", "0")


class Lora(ConfigSection):
    """Adapters, with trainer_mode lora or qlora."""

    r: Count | None = optional("rank", "16")
    alpha: Positive | None = optional("scale", "32")
    dropout: Share | None = optional("share that is dropped", "0.05")
    target_modules: TextOrTexts | None = optional("layers that get an adapter", '["q_proj", "v_proj"]')


class TrainingRewards(ConfigSection):
    """Rewards of steps and events."""

    step_rewards_enabled: Switch | None = optional("whether steps are rewarded", "true")
    step_rewards_mode: Text | None = optional("when they are", '"decision_stepwise"')
    step_rewards_indicator_lambda: Weight | None = optional("the weight of a step's reward", "1.0")
    step_rewards_beta: Number | None = optional("sent to the trainer", "0.0")
    step_rewards_strategy: Text | None = optional("how unlocked achievements count", '"consistent"')
    event_rewards_kind: Text | None = optional("how events are rewarded", '"unique"')


class PpoSection(ConfigSection):
    """Values and advantages of the variety ppo."""

    discount: PositiveShare | None = optional("how much a reward counts one sampled token earlier", "1.0")
    gae_lambda: Share | None = optional("how much the error of a later token's value counts one token earlier", "1.0")
    passes: Count | None = optional("how often an update goes through its minibatches", "2")
    value_learning_rate: PositiveShare | None = optional("size of a step of the value head", "0.01")
    value_clip: Positive | None = optional("how far a value may move in one update; not limited by default", "0.2")


class Training(ConfigSection):
    """How long and how fast it learns."""

    num_epochs: Count | None = required("passes over the seeds", "1")
    iterations_per_epoch: Count | None = required("updates of one pass", "10")
    max_turns: Count | None = required("turns of one episode", "6")
    batch_size: Count | None = required("groups of one update", "2")
    group_size: Count | None = required("rollouts of one seed, compared with each other", "4")
    learning_rate: PositiveShare | None = required("size of an update", "1e-5")
    gradient_accumulation_steps: Count | None = optional("small batches of one update", "1")
    max_accumulated_minibatch: Count | None = optional("the most small batches of one update", "1")
    log_interval: Count | None = optional("updates between two points of the log", "1")
    weight_sync_interval: Count | None = optional("updates between two syncs of the weights", "1")
    iterations_ahead: Whole | None = optional(
        "iterations that may be played with earlier weights while the weights are updated; 0 to take turns", "0"
    )
    async_semaphore_max: Count | None = optional("rollouts at the same time, over the whole job", "4")
    minibatches: Count | None = optional("optimizer steps of one update, each on other episodes", "1")
    clip: ClipRange | None = optional("how far a ratio may move below and above 1", "[0.2, 0.28]")
    beta: Weight | None = optional("weight of the KL divergence from the model that the job started with", "0.0")
    precision: Literal["fp32", "bf16"] | None = optional("of the computation; the weights are fp32", '"fp32"')
    scale: Literal["none", "group", "batch"] | None = optional(
        "whose standard deviation divides the advantages", '"none"'
    )
    warmup_iterations: Whole | None = optional("updates in which the learning rate grows to its value", "0")
    credit: Literal["episode", "turn"] | None = optional(
        "what shares one advantage; a turn gets the rewards of the steps after it", '"episode"'
    )
    discount: PositiveShare | None = optional("with credit turn, how much a reward counts one turn earlier", "1.0")
    mask_truncated: Switch | None = optional("whether answers that max_tokens cut are left out", "false")
    stall_seconds: Positive | None = optional("the job fails after this many seconds without progress", "2700")
    weight_sync: WeightSync = section(WeightSync)
    lora: Lora = section(Lora)
    ppo: PpoSection = section(PpoSection)
    rewards: TrainingRewards = section(TrainingRewards)


class Evaluation(ConfigSection):
    """The policy is measured at a fixed cadence."""

    instances: Count | None = required("episodes of one evaluation", "2")
    every_n_iters: Count | None = required("updates between two evaluations", "1")
    seeds: Seeds | None = required("the seeds of an evaluation", "[0, 1]")
    temperature: Temperature | None = optional("the sampling temperature; default: as in training; 0 is greedy", "0.0")
    stop_at: Number | None = optional("the mean reward of an evaluation that ends the job", "0.95")
    patience: Count | None = optional("evaluations in a row without improvement that end the job", "3")


class CurriculumSection(ConfigSection):
    """Training continues with the next difficulty once the reward is high enough."""

    levels: Levels | None = required("values of a task's difficulty, the easiest first", '["easy", "medium", "hard"]')
    up: Number | None = required("the mean reward from which the next level is played", "0.8")
    down: Number | None = optional("the mean reward up to which the level before is played; by default never", "0.2")
    window: Count | None = optional("iterations at one level whose mean decides", "1")


class BlendWeights(ConfigSection):
    """Reward = env · return + event · events score + outcome · outcome score; not all 0."""

    env: Weight | None = optional("weight of the environment's return", "1.0")
    event: Weight | None = optional("weight of the events score", "0.0")
    outcome: Weight | None = optional("weight of the outcome score", "0.0")


class JudgeOptions(ConfigSection):
    """Who judges what."""

    free = True
    provider: JudgeProvider | None = optional("the judge's vendor", '"openai"')
    model: Text | None = optional("the judge's model", '"gpt-5-nano"')
    rubric_id: Text | None = optional("the rubric", '"adder/v1"')
    event: Switch | None = optional("whether events are judged", "true")
    outcome: Switch | None = optional("whether the outcome is judged", "true")
    rubric_overrides: Table | None = optional("changes to the rubric", "{}")
    metadata: Table | None = optional("words for the judge's log", "{}")


class JudgeSection(ConfigSection):
    """Rewards by a judge."""

    enabled: Switch | None = optional("whether there is one", "true")
    timeout_s: Positive | None = optional("seconds that a judge may take", "45")
    reward_blend: BlendWeights = section(BlendWeights)
    options: JudgeOptions = section(JudgeOptions)


class DeprecatedRubric(ConfigSection):
    """An older way to name a judge's rubric."""

    free = True


class SamplerSection(ConfigSection):
    """What generates the answers while it trains."""

    engine: Literal["transformers", "vllm", "services"] | None = optional(
        "the trainer itself, vLLM, or replicas in other processes", '"transformers"'
    )
    replicas: Count | None = optional("samplers, with the engine services", "2")
    backend: Literal["local", "ray"] | None = optional(
        "where they run: on this machine, or on a Ray cluster", '"local"'
    )
    deterministic: Switch | None = optional("one answer at a time: slower, and the same tokens at each run", "true")


class GatewaySection(ConfigSection):
    """Where the trainer answers the task app's calls of the model."""

    url: BaseAddress | None = optional("the address that the task app calls", '"https://trainer.example.org"')


class CheckpointsSection(ConfigSection):
    """What is saved while it trains."""

    every_n_iters: Count | None = optional("updates between two checkpoints; the last is always saved", "1")


class ModelsSection(ConfigSection):
    """Names of models."""

    alias: Names | None = optional("models that replace other models", '{ "Qwen/Qwen3-0.6B" = "tiny" }')


class Vllm(ConfigSection):
    """The server that runs the policy. Other keys are passed unchanged to a hosted trainer's server."""

    free = True
    tensor_parallel_size: Count | None = optional("GPUs that one copy of the policy is spread over", "2")
    max_model_len: Count | None = optional("most tokens of a prompt and its answer together", "4096")
    gpu_memory_utilization: PositiveShare | None = optional("share of a GPU's memory that it takes", "0.4")
    enforce_eager: Switch | None = optional(
        "nothing is compiled: a quicker start and slower answers; true here", "false"
    )


class Reference(ConfigSection):
    """The reference model."""

    placement: Text | None = optional('where it runs; "none" by default', '"none"')


class Tags(ConfigSection):
    """Your own labels for finding the job again: text, numbers, true or false."""

    free = True


class SmokeSection(ConfigSection):
    """For local smoke tests: never sent with a job."""

    free = True


class SmokeTrainer(ConfigSection):
    """Smoke-test form of [training]."""

    batch_size: Count | None = optional("as training.batch_size", "2")
    group_size: Count | None = optional("as training.group_size", "4")


class SmokeEnv(ConfigSection):
    """Smoke-test form of [rollout]."""

    max_steps_per_episode: Count | None = optional("as rollout.max_turns", "3")


class SmokeJob(ConfigSection):
    """Smoke-test form of [model]."""

    model: Text | None = optional("as model.base; as model.source when it begins with ft: or rl:", '"Qwen/Qwen3-0.6B"')


class RunnerSection(ConfigSection):
    """How a script follows the job; no trainer reads it."""

    stream_seconds: Weight | None = optional("seconds for which events are shown; 0 for none", "0")
    empty_polls_threshold: Count | None = optional("polls without a new event until the script gives up", "5")
    startup_deadline_s: Positive | None = optional("seconds until the first event", "45")


class DataSection(ConfigSection):
    """The tasks."""

    seeds: Seeds | None = optional("the seeds that are trained on, in order", "[0, 1, 2, 3]")
    rollouts: Text | None = optional("the stored rollouts that type offline learns from, a file", '"rollouts.jsonl"')


class RlDocument(ConfigSection):
    """The whole document, in the order of the page."""

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
    """The section that a field holds; None where it is a key."""
    kind = key.annotation
    return kind if isinstance(kind, type) and issubclass(kind, ConfigSection) else None


def keys_of(section: type[ConfigSection]) -> dict[str, FieldInfo]:
    """Name to field of the keys of a section, without the sections inside it."""
    return {name: key for name, key in section.model_fields.items() if inner_section(key) is None}


def sections_of(section: type[ConfigSection], above: str = "") -> Iterator[tuple[str, type[ConfigSection]]]:
    """Yield the sections inside a section: the name with dots, as in its header, and the section."""
    for name, key in section.model_fields.items():
        inner = inner_section(key)
        if inner is not None:
            yield above + name, inner
            yield from sections_of(inner, f"{above}{name}.")


SECTIONS = dict(sections_of(RlDocument))
"""Name with dots, as in its header, to section."""


def is_required(key: FieldInfo) -> bool:
    """Return whether the full form requires the key or section."""
    return key.json_schema_extra == REQUIRED


def expected(key: FieldInfo) -> Expected:
    """Return a description of the values that a key accepts."""
    kind, _ = get_args(key.annotation)  # of `kind | None`
    words = next((each for each in getattr(kind, "__metadata__", ()) if isinstance(each, Expected)), None)
    return words or Expected("one of " + ", ".join(f'"{word}"' for word in get_args(kind)))


def value_at(config: ConfigSection, place: Sequence[str]) -> Any:
    """Return the value of a key that the schema has, by its place: for tables of keys."""
    return functools.reduce(getattr, place, config)


def from_section(kind: type[Settings], section: ConfigSection, **more: Any) -> Settings:
    """Return a data class with the values of a section's keys of the same names, and with `more`, which takes precedence."""
    names = {member.name for member in fields(kind)}
    return kind(**{name: value for name, value in section if name in names and value is not None} | more)


def example_of(key: FieldInfo) -> str:
    """Return an example of the key's value in TOML."""
    return str(key.examples[0]) if key.examples else ""
