"""The sections and keys of an RL config as pydantic models: what the RL guides, the contract and the SDK's own configs name.

The validator, the backend's plan and the page `docs/rl-config.md` (`docs/tools`) all read this one declaration.
A class's docstring is what the page says of its section; a key has what it is and how it is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

MAX_INTEGER = 2**63 - 1
"""The largest whole number that every reader of JSON preserves."""
SMOKE_TEST_SECTIONS = ("trainer", "env", "job")
"""A config without `[algorithm]` and with one of these is the smoke-test form: all else in it may be left out."""
LOCAL_SECTIONS = ("sampler", "gateway", "checkpoints", "models")
"""Sections for a trainer on this machine: a config with one of these, or with `services.task_app`, needs no GPUs."""
AGENT_WORDS = ("agent", "policy", "model")
ENV_WORDS = ("env", "environment", "step")


@dataclass(frozen=True, slots=True)
class Expected:
    """What a value can be, in words. element: what each element of a list can be, where that is not text."""

    words: str
    element: str = "text in quotes"


@dataclass(frozen=True, slots=True)
class Suggested:
    """Values that every trainer accepts; another one is a warning."""

    values: tuple[str, ...]


def is_address(text: str, *, bare: bool = True) -> bool:
    """Whether it is an http address without a user. bare: without a query and a fragment, too; it may then be empty."""
    if bare and not text.strip():
        return True
    if text != text.strip() or not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        return False
    return not bare or not (parts.query or parts.fragment)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("blank")
    return text


def _base_address(text: str) -> str:
    if not is_address(text):
        raise ValueError("no address")
    return text


def _full_address(text: str) -> str:
    if not is_address(text, bare=False):
        raise ValueError("no address")
    return text


def _op(item: Any) -> Any:
    word = item.get("type") if isinstance(item, dict) else item
    if not isinstance(word, str) or word not in AGENT_WORDS + ENV_WORDS:
        raise ValueError("no op")
    return item


def _in_a_list(value: Any) -> Any:
    return [value] if isinstance(value, str) and value.strip() else value


_ADDRESS = Expected('an address such as "http://127.0.0.1:8001"')
Text = Annotated[str, AfterValidator(_not_blank), Expected("text in quotes")]
BaseAddress = Annotated[str, AfterValidator(_base_address), _ADDRESS]
FullAddress = Annotated[str, AfterValidator(_full_address), _ADDRESS]
Texts = Annotated[list[Text], Expected('a list of texts such as ["policy"]')]
TextOrTexts = Annotated[
    list[Text], BeforeValidator(_in_a_list), Expected("text in quotes, or a list of texts", "text in quotes")
]
Ops = Annotated[
    list[Annotated[Any, AfterValidator(_op)]],
    Expected('a list of "agent" and "env", or of tables with a type', '"agent", "env", or a table with such a type'),
]
Seeds = Annotated[
    list[Annotated[int, Field(ge=0, le=MAX_INTEGER)]],
    Expected("a list of whole numbers from 0 on", "a whole number from 0 on"),
]
Table = Annotated[dict[str, Any], Expected("a table")]
Switch = Annotated[bool, Expected("true or false")]
Whole = Annotated[int, Field(ge=0, le=MAX_INTEGER), Expected("a whole number of at least 0")]
Count = Annotated[int, Field(ge=1, le=MAX_INTEGER), Expected("a whole number of at least 1")]
CountOrAll = Annotated[int, Field(ge=-1, le=MAX_INTEGER), Expected("a whole number of at least -1")]
Number = Annotated[float, Expected("a number")]
Weight = Annotated[float, Field(ge=0), Expected("a number of at least 0")]
Positive = Annotated[float, Field(gt=0), Expected("a number above 0")]
Share = Annotated[float, Field(ge=0, le=1), Expected("a number from 0 to 1")]
PositiveShare = Annotated[float, Field(gt=0, le=1), Expected("a number above 0 and at most 1")]
Temperature = Annotated[float, Field(ge=0, le=10), Expected("a number from 0 to 10")]
ClipRange = Annotated[
    list[Annotated[float, Field(gt=0, le=1)]],
    Field(min_length=2, max_length=2),
    Expected("a list of two numbers above 0 and at most 1", "a number above 0 and at most 1"),
]
Levels = Annotated[
    list[Text | Annotated[int, Field(ge=0, le=MAX_INTEGER)]],
    Field(min_length=2),
    Expected("a list of at least two texts or whole numbers", "text in quotes, or a whole number from 0 on"),
]
Names = Annotated[dict[str, Text], Expected('a table of texts such as { "Qwen/Qwen3-0.6B" = "tiny" }')]
TrainerMode = Literal["full", "lora", "qlora"]


def required(about: str, example: str) -> Any:
    """A key that its section needs in the full form. about: what it is, with its unit. example: how it is written."""
    return Field(description=about, examples=[example])


def optional(about: str, example: str) -> Any:
    """A key that may be left out."""
    return Field(default=None, description=about, examples=[example])


LEFT_OUT: Any = None
"""The default of a section that may be left out."""


class ConfigSection(BaseModel):
    """One table of the document. free: keys that it does not declare are accepted without a warning."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, hide_input_in_errors=True)
    free: ClassVar[bool] = False


class MixedEnvironment(BaseModel):
    """One of several environments of a job."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)
    weight: Annotated[int, Field(ge=1, le=1000)]
    env_name: Text | None = None
    task_url: BaseAddress | None = None
    task_app: Text | None = None
    env_config: dict[str, Any] | None = None
    seeds: Seeds | None = None
    eval_seeds: Seeds | None = None


def _environment(item: Any) -> Any:
    MixedEnvironment.model_validate(item)
    return item


Environments = Annotated[
    list[Annotated[dict[str, Any], AfterValidator(_environment)]],
    Field(min_length=2, max_length=100),
    Expected(
        "a list of at least two tables with a weight",
        "a table with weight (a whole number from 1 to 1000), and env_name, env_config, task_url, task_app, seeds, eval_seeds",
    ),
]


class Algorithm(ConfigSection):
    """How the policy learns."""

    type: Literal["online", "offline"] = required("whether rollouts are played while it trains", '"online"')
    method: Literal["policy_gradient", "gspo", "ppo"] = required("the family", '"policy_gradient"')
    variety: Text = required("the member of the family", '"gspo"')


class Services(ConfigSection):
    """Servers that the job uses."""

    task_url: BaseAddress = optional(
        "the task app; an argument and TASK_APP_URL go before it", '"http://127.0.0.1:8001"'
    )
    judge_url: BaseAddress = optional("the judges' server", '"http://127.0.0.1:8002"')
    task_app: Text = optional("the task app's file, for `taskapp train --local`", '"examples/rl/task_app.py"')


class Model(ConfigSection):
    """What is trained: exactly one of source and base."""

    source: Text = optional("the id of a finetuned model, such as an FFT or QLoRA checkpoint", '"ft:my-model"')
    base: Text = optional("the id of a base model", '"Qwen/Qwen3-4B"')
    trainer_mode: TrainerMode = required("what is updated", '"full"')
    label: Text = required("the trained model's label", '"my-run"')


class Policy(ConfigSection):
    """The model and how it samples; stands in for [model] with exactly one of source and model_name."""

    model_name: Text = optional("the id of a base model", '"Qwen/Qwen3-4B"')
    source: Text = optional("the id of a finetuned model", '"ft:my-model"')
    trainer_mode: TrainerMode = optional("what is updated", '"lora"')
    label: Text = optional("the trained model's label", '"my-run"')
    max_tokens: Count = optional("tokens of one answer", "512")
    temperature: Temperature = optional("how freely it samples", "0.7")
    top_p: PositiveShare = optional("nucleus sampling", "0.95")
    top_k: CountOrAll = optional("how many tokens it samples from; -1 for all", "50")
    repetition_penalty: Positive = optional("1 changes nothing", "1.0")
    stop_sequences: Texts = optional("what ends an answer", '["</answer>"]')
    inference_url: FullAddress = optional("where the model answers", '"http://127.0.0.1:8100/v1"')


class Topology(ConfigSection):
    """Who uses which GPUs; [compute.topology] and [topology] are one section, and each key may be in either."""

    type: Text = required("how the GPUs are divided", '"single_node_split"')
    gpus_for_vllm: Count = required("GPUs that run the policy", "2")
    gpus_for_training: Count = required("GPUs that train", "6")
    gpus_for_ref: Whole = required("GPUs of the reference model", "0")
    tensor_parallel: Count = required("GPUs that one copy of the policy is spread over", "2")
    reference_placement: Text = optional('where the reference model runs; "none" when left out', '"none"')


class Compute(ConfigSection):
    """The GPUs; not needed for the trainer of this machine."""

    gpu_type: Text = required("the model of GPU", '"H100"')
    gpu_count: Count = required("GPUs of one machine", "8")
    nodes: Count = optional("machines", "1")
    topology: Topology = LEFT_OUT


class RolloutSection(ConfigSection):
    """How episodes are played."""

    env_name: Text = required("the environment in the task app", '"adder"')
    policy_name: Text = required("the policy in the task app, or a label", '"gold"')
    max_turns: Count = required("turns of one episode", "6")
    episodes_per_batch: Count = required("episodes between two updates", "8")
    max_concurrent_rollouts: Count = required("rollouts at the same time", "4")
    env_config: Table = optional("arguments of the environment", "{ low = 5 }")
    environments: Environments = optional(
        "several environments, or task apps, in place of one, by weights",
        '[{ env_name = "adder", weight = 3 }, { env_name = "words", weight = 1 }]',
    )
    policy_config: Table = optional("the policy's own settings", "{ temperature = 0.7 }")
    batches_per_step: Count = optional("batches of one update", "1")
    ops: Ops = optional("what is played, in order", '["agent", "env"]')
    timeout_seconds: Positive = optional("seconds after which an attempt at a rollout is given up as failed", "1800")
    straggler_seconds: Positive = optional("seconds after which an iteration goes on without a rollout", "900")
    attempts: Count = optional("attempts at a rollout that failed outside of its episode", "2")
    record_tokens: Switch = optional(
        "whether the task app stores token ids and log-probabilities with each rollout", "true"
    )
    failed_share: Share = optional("the job fails when a greater share of its rollouts failed", "0.5")


class WeightSync(ConfigSection):
    """How new weights reach the policy that plays."""

    enable: Switch = optional("whether they do", "true")
    targets: Texts = optional("who gets them", '["policy"]')
    mode: Text = optional("the way", '"direct"')
    direct: Switch = optional("whether from GPU to GPU", "true")
    interval: Count = optional("updates between two syncs", "1")
    verify_every_k: Whole = optional("syncs between two that are verified; 0 for never", "0")


class Lora(ConfigSection):
    """Adapters, with trainer_mode lora or qlora."""

    r: Count = optional("rank", "16")
    alpha: Positive = optional("scale", "32")
    dropout: Share = optional("share that is dropped", "0.05")
    target_modules: TextOrTexts = optional("layers that get an adapter", '["q_proj", "v_proj"]')


class TrainingRewards(ConfigSection):
    """Rewards of steps and events."""

    step_rewards_enabled: Switch = optional("whether steps are rewarded", "true")
    step_rewards_mode: Text = optional("when they are", '"decision_stepwise"')
    step_rewards_indicator_lambda: Weight = optional("the weight of a step's reward", "1.0")
    step_rewards_beta: Number = optional("sent to the trainer", "0.0")
    step_rewards_strategy: Text = optional("how unlocked achievements count", '"consistent"')
    event_rewards_kind: Text = optional("how events are rewarded", '"unique"')


class PpoSection(ConfigSection):
    """Values and advantages of the variety ppo."""

    discount: PositiveShare = optional("how much a reward counts one sampled token earlier", "1.0")
    gae_lambda: Share = optional("how much the error of a later token's value counts one token earlier", "1.0")
    passes: Count = optional("how often an update goes through its minibatches", "2")
    value_learning_rate: PositiveShare = optional("size of a step of the value head", "0.01")
    value_clip: Positive = optional("how far a value may move in one update; any distance when left out", "0.2")


class Training(ConfigSection):
    """How long and how fast it learns."""

    num_epochs: Count = required("passes over the seeds", "1")
    iterations_per_epoch: Count = required("updates of one pass", "10")
    max_turns: Count = required("turns of one episode", "6")
    batch_size: Count = required("groups of one update", "2")
    group_size: Count = required("rollouts of one seed, compared with each other", "4")
    learning_rate: PositiveShare = required("size of an update", "1e-5")
    gradient_accumulation_steps: Count = optional("small batches of one update", "1")
    max_accumulated_minibatch: Count = optional("the most small batches of one update", "1")
    log_interval: Count = optional("updates between two points of the log", "1")
    weight_sync_interval: Count = optional("updates between two syncs of the weights", "1")
    iterations_ahead: Whole = optional(
        "iterations that may be played with earlier weights while the weights are updated; 0 to take turns", "0"
    )
    async_semaphore_max: Count = optional("rollouts at the same time, over the whole job", "4")
    minibatches: Count = optional("optimizer steps of one update, each on other episodes", "1")
    clip: ClipRange = optional("how far a ratio may move below and above 1", "[0.2, 0.28]")
    beta: Weight = optional("weight of the KL divergence from the model that the job started with", "0.0")
    precision: Literal["fp32", "bf16"] = optional("of the computation; the weights are fp32", '"fp32"')
    scale: Literal["none", "group", "batch"] = optional("whose standard deviation divides the advantages", '"none"')
    warmup_iterations: Whole = optional("updates in which the learning rate grows to its value", "0")
    credit: Literal["episode", "turn"] = optional(
        "what shares one advantage; a turn gets the rewards of the steps after it", '"episode"'
    )
    discount: PositiveShare = optional("with credit turn, how much a reward counts one turn earlier", "1.0")
    mask_truncated: Switch = optional("whether answers that max_tokens cut are left out", "false")
    stall_seconds: Positive = optional("the job fails when nothing moved for so many seconds", "2700")
    weight_sync: WeightSync = LEFT_OUT
    lora: Lora = LEFT_OUT
    ppo: PpoSection = LEFT_OUT
    rewards: TrainingRewards = LEFT_OUT


class Evaluation(ConfigSection):
    """The policy is measured at a fixed cadence."""

    instances: Count = required("episodes of one evaluation", "2")
    every_n_iters: Count = required("updates between two evaluations", "1")
    seeds: Seeds = required("the seeds of an evaluation", "[0, 1]")
    temperature: Temperature = optional("how freely it samples; that of training when left out, 0 is greedy", "0.0")
    stop_at: Number = optional("the mean reward of an evaluation that ends the job", "0.95")
    patience: Count = optional("evaluations in a row without a better one that end the job", "3")


class CurriculumSection(ConfigSection):
    """Training goes on to the next difficulty when its reward is high enough."""

    levels: Levels = required("values of a task's difficulty, the easiest first", '["easy", "medium", "hard"]')
    up: Number = required("the mean reward from which the next level is played", "0.8")
    down: Number = optional("the mean reward up to which the level before is played; never when left out", "0.2")
    window: Count = optional("iterations at one level whose mean decides", "1")


class BlendWeights(ConfigSection):
    """Reward = env · return + event · events score + outcome · outcome score; not all 0."""

    env: Weight = optional("weight of the environment's return", "1.0")
    event: Weight = optional("weight of the events score", "0.0")
    outcome: Weight = optional("weight of the outcome score", "0.0")


class JudgeOptions(ConfigSection):
    """Who judges what."""

    free = True
    provider: Annotated[Text, Suggested(("openai", "groq", "gemini"))] = optional("the judge's vendor", '"openai"')
    model: Text = optional("the judge's model", '"gpt-5-nano"')
    rubric_id: Text = optional("the rubric", '"adder/v1"')
    event: Switch = optional("whether events are judged", "true")
    outcome: Switch = optional("whether the outcome is judged", "true")
    rubric_overrides: Table = optional("changes to the rubric", "{}")
    metadata: Table = optional("words for the judge's log", "{}")


class JudgeSection(ConfigSection):
    """Rewards by a judge."""

    enabled: Switch = optional("whether there is one", "true")
    timeout_s: Positive = optional("seconds that a judge may take", "45")
    reward_blend: BlendWeights = LEFT_OUT
    options: JudgeOptions = LEFT_OUT


class DeprecatedRubric(ConfigSection):
    """An older way to name a judge's rubric."""

    free = True


class SamplerSection(ConfigSection):
    """What generates the answers while it trains."""

    engine: Literal["transformers", "vllm", "services"] = optional(
        "the trainer itself, vLLM, or replicas in other processes", '"transformers"'
    )
    replicas: Count = optional("samplers, with the engine services", "2")
    backend: Literal["local", "ray"] = optional("where they run: on this machine, or on a Ray cluster", '"local"')
    deterministic: Switch = optional("one answer at a time: slower, and the same tokens at each run", "true")


class GatewaySection(ConfigSection):
    """Where the trainer answers the task app's calls of the model."""

    url: BaseAddress = optional("the address that the task app calls", '"https://trainer.example.org"')


class CheckpointsSection(ConfigSection):
    """What is saved while it trains."""

    every_n_iters: Count = optional("updates between two checkpoints; the last is always saved", "1")


class ModelsSection(ConfigSection):
    """Names of models."""

    alias: Names = optional("models that stand for others, where the trainer runs", '{ "Qwen/Qwen3-0.6B" = "tiny" }')


class Vllm(ConfigSection):
    """The server that runs the policy; other keys go to a hosted trainer's as they stand."""

    free = True
    tensor_parallel_size: Count = optional("GPUs that one copy of the policy is spread over", "2")
    max_model_len: Count = optional("most tokens of a prompt and its answer together", "4096")
    gpu_memory_utilization: PositiveShare = optional("share of a GPU's memory that it takes", "0.4")
    enforce_eager: Switch = optional("nothing is compiled: a quicker start and slower answers; true here", "false")


class Reference(ConfigSection):
    """The reference model."""

    placement: Text = optional('where it runs; "none" when left out', '"none"')


class Tags(ConfigSection):
    """Words of your own by which the job is found again: text, numbers, switches."""

    free = True


class SmokeSection(ConfigSection):
    """For local smoke tests: never sent with a job."""

    free = True


class SmokeTrainer(ConfigSection):
    """Smoke-test form of [training]."""

    batch_size: Count = optional("as training.batch_size", "2")
    group_size: Count = optional("as training.group_size", "4")


class SmokeEnv(ConfigSection):
    """Smoke-test form of [rollout]."""

    max_steps_per_episode: Count = optional("as rollout.max_turns", "3")


class SmokeJob(ConfigSection):
    """Smoke-test form of [model]."""

    model: Text = optional("as model.base; as model.source when it begins with ft: or rl:", '"Qwen/Qwen3-0.6B"')


class RunnerSection(ConfigSection):
    """How a script follows the job; no trainer reads it."""

    stream_seconds: Weight = optional("seconds for which events are shown; 0 for none", "0")
    empty_polls_threshold: Count = optional("polls without a new event until the script gives up", "5")
    startup_deadline_s: Positive = optional("seconds until the first event", "45")


class DataSection(ConfigSection):
    """The tasks."""

    seeds: Seeds = optional("the seeds that are trained on, in order", "[0, 1, 2, 3]")
    rollouts: Text = optional("the stored rollouts that type offline learns from, a file", '"rollouts.jsonl"')


class RlDocument(ConfigSection):
    """The whole document, in the order of the page. A section without a default is required in the full form."""

    algorithm: Algorithm
    services: Services = LEFT_OUT
    model: Model = LEFT_OUT
    policy: Policy = LEFT_OUT
    compute: Compute
    topology: Topology = LEFT_OUT
    rollout: RolloutSection
    training: Training = LEFT_OUT
    evaluation: Evaluation = LEFT_OUT
    curriculum: CurriculumSection = LEFT_OUT
    sampler: SamplerSection = LEFT_OUT
    gateway: GatewaySection = LEFT_OUT
    checkpoints: CheckpointsSection = LEFT_OUT
    models: ModelsSection = LEFT_OUT
    judge: JudgeSection = LEFT_OUT
    rubric: DeprecatedRubric = Field(default=LEFT_OUT, deprecated="Write [judge] and [judge.options] instead")
    vllm: Vllm = LEFT_OUT
    reference: Reference = LEFT_OUT
    lora: Lora = LEFT_OUT
    tags: Tags = LEFT_OUT
    smoke: SmokeSection = LEFT_OUT
    trainer: SmokeTrainer = LEFT_OUT
    env: SmokeEnv = LEFT_OUT
    job: SmokeJob = LEFT_OUT
    runner: RunnerSection = LEFT_OUT
    data: DataSection = LEFT_OUT


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


def expected(key: FieldInfo) -> Expected:
    """What can be the value of a key, in words."""
    given = next((found for found in key.metadata if isinstance(found, Expected)), None)
    return given or Expected("one of " + ", ".join(f'"{word}"' for word in get_args(key.annotation)))


def example_of(key: FieldInfo) -> str:
    """How a value of the key is written in TOML."""
    return str(key.examples[0]) if key.examples else ""
