"""The sections and keys of an RL config: what the RL guides, the contract and the SDK's own configs name.

The one declaration that the validator, the payload and `docs/rl-config.md` (through `key_table`) read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "url", "whole", "number", "switch", "texts", "text or texts", "seeds", "ops", "table"]

MOST = 2**63 - 1
"""The largest whole number that every reader of JSON keeps."""
SHORT_FORM = ("trainer", "env", "job")
"""A config without `[algorithm]` and with one of these is the smoke-test form: all else in it may be left out."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key. about: what it is, with its unit. low, high: bounds, both allowed; above: a bound that is not itself allowed.

    choices: nothing else is taken. advised: anything else is a warning. required: when its section has to be there at
    all, or is there. example: how it is written.
    """

    name: str
    kind: Kind
    about: str
    example: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    advised: tuple[str, ...] = ()
    required: bool = False

    @property
    def expected(self) -> str:
        """What can stand there, in words."""
        if self.choices:
            return "one of " + ", ".join(f'"{word}"' for word in self.choices)
        bounds = _bounds(self)
        return {
            "text": "text in quotes",
            "url": 'an address such as "http://127.0.0.1:8001"',
            "whole": f"a whole number{bounds}",
            "number": f"a number{bounds}",
            "switch": "true or false",
            "texts": 'a list of texts such as ["policy"]',
            "text or texts": "text in quotes, or a list of texts",
            "seeds": "a list of whole numbers from 0 on",
            "ops": 'a list of "agent" and "env", or of tables with a type',
            "table": "a table",
        }[self.kind]


@dataclass(frozen=True, slots=True)
class ConfigSection:
    """One section. name: with dots, as in its header. required: in the full form. free: other keys are taken silently."""

    name: str
    about: str
    keys: tuple[ConfigKey, ...] = ()
    required: bool = False
    free: bool = False
    warning: str = ""

    @property
    def path(self) -> tuple[str, ...]:
        """Its place in the document."""
        return tuple(self.name.split("."))

    def key(self, name: str) -> ConfigKey | None:
        """The key of that name; None when there is none."""
        return next((key for key in self.keys if key.name == name), None)


def _bounds(key: ConfigKey) -> str:
    if key.above is not None:
        return f" above {key.above:g}" + (f" and at most {key.high:g}" if key.high is not None else "")
    if key.low is not None and key.high is not None:
        return f" from {key.low:g} to {key.high:g}"
    return f" of at least {key.low:g}" if key.low is not None else ""


def _text(name: str, about: str, example: str, **more: object) -> ConfigKey:
    return ConfigKey(name, "text", about, f'"{example}"', **more)  # type: ignore[arg-type]


def _count(name: str, about: str, example: int, *, low: int = 1, required: bool = False) -> ConfigKey:
    return ConfigKey(name, "whole", about, str(example), low=low, high=None, required=required)


def _number(name: str, about: str, example: str, **more: object) -> ConfigKey:
    return ConfigKey(name, "number", about, example, **more)  # type: ignore[arg-type]


TOPOLOGY = (
    _text("type", "how the GPUs are divided", "single_node_split", required=True),
    _count("gpus_for_vllm", "GPUs that run the policy", 2, required=True),
    _count("gpus_for_training", "GPUs that train", 6, required=True),
    _count("gpus_for_ref", "GPUs of the reference model", 0, low=0, required=True),
    _count("tensor_parallel", "GPUs that one copy of the policy is spread over", 2, required=True),
    _text("reference_placement", 'where the reference model runs; "none" when left out', "none"),
)
LORA = (
    _count("r", "rank", 16),
    _number("alpha", "scale", "32", above=0),
    _number("dropout", "share that is dropped", "0.05", low=0, high=1),
    ConfigKey("target_modules", "text or texts", "layers that get an adapter", '["q_proj", "v_proj"]'),
)
MODES = ("full", "lora", "qlora")

SECTIONS: tuple[ConfigSection, ...] = (
    ConfigSection(
        "algorithm",
        "how the policy learns",
        (
            _text(
                "type",
                "whether rollouts are played while it trains",
                "online",
                choices=("online", "offline"),
                required=True,
            ),
            _text("method", "the family", "policy_gradient", choices=("policy_gradient", "gspo", "ppo"), required=True),
            _text("variety", "the member of the family", "gspo", required=True),
        ),
        required=True,
    ),
    ConfigSection(
        "services",
        "servers that the job uses",
        (
            ConfigKey(
                "task_url", "url", "the task app; an argument and TASK_APP_URL go before it", '"http://127.0.0.1:8001"'
            ),
            ConfigKey("judge_url", "url", "the judges' server", '"http://127.0.0.1:8002"'),
        ),
    ),
    ConfigSection(
        "model",
        "what is trained: exactly one of source and base",
        (
            _text("source", "the id of a finetuned model, such as an FFT or QLoRA checkpoint", "ft:my-model"),
            _text("base", "the id of a base model", "Qwen/Qwen3-4B"),
            _text("trainer_mode", "what is updated", "full", choices=MODES, required=True),
            _text("label", "the trained model's label", "my-run", required=True),
        ),
    ),
    ConfigSection(
        "policy",
        "the model and how it samples; stands in for [model] with exactly one of source and model_name",
        (
            _text("model_name", "the id of a base model", "Qwen/Qwen3-4B"),
            _text("source", "the id of a finetuned model", "ft:my-model"),
            _text("trainer_mode", "what is updated", "lora", choices=MODES),
            _text("label", "the trained model's label", "my-run"),
            _count("max_tokens", "tokens of one answer", 512),
            _number("temperature", "how freely it samples", "0.7", low=0, high=10),
            _number("top_p", "nucleus sampling", "0.95", above=0, high=1),
            ConfigKey("top_k", "whole", "how many tokens it samples from; -1 for all", "50", low=-1),
            _number("repetition_penalty", "1 changes nothing", "1.0", above=0),
            ConfigKey("stop_sequences", "texts", "what ends an answer", '["</answer>"]'),
            ConfigKey("inference_url", "url", "where the model answers", '"http://127.0.0.1:8100/v1"'),
        ),
    ),
    ConfigSection(
        "compute",
        "the GPUs",
        (
            _text("gpu_type", "the model of GPU", "H100", required=True),
            _count("gpu_count", "GPUs of one machine", 8, required=True),
            _count("nodes", "machines", 1),
        ),
        required=True,
    ),
    ConfigSection("compute.topology", "who uses which GPUs; [topology] is the same", TOPOLOGY),
    ConfigSection("topology", "who uses which GPUs; [compute.topology] is the same", TOPOLOGY),
    ConfigSection(
        "rollout",
        "how episodes are played",
        (
            _text("env_name", "the environment in the task app", "adder", required=True),
            _text("policy_name", "the policy in the task app, or a label", "gold", required=True),
            _count("max_turns", "turns of one episode", 6, required=True),
            _count("episodes_per_batch", "episodes between two updates", 8, required=True),
            _count("max_concurrent_rollouts", "rollouts at the same time", 4, required=True),
            ConfigKey("env_config", "table", "arguments of the environment", "{ low = 5 }"),
            ConfigKey("policy_config", "table", "the policy's own settings", "{ temperature = 0.7 }"),
            _count("batches_per_step", "batches of one update", 1),
            ConfigKey("ops", "ops", "what is played, in order", '["agent", "env"]'),
        ),
        required=True,
    ),
    ConfigSection(
        "training",
        "how long and how fast it learns",
        (
            _count("num_epochs", "passes over the seeds", 1, required=True),
            _count("iterations_per_epoch", "updates of one pass", 10, required=True),
            _count("max_turns", "turns of one episode", 6, required=True),
            _count("batch_size", "groups of one update", 2, required=True),
            _count("group_size", "rollouts of one seed, compared with each other", 4, required=True),
            _number("learning_rate", "size of an update", "1e-5", above=0, high=1, required=True),
            _count("gradient_accumulation_steps", "small batches of one update", 1),
            _count("max_accumulated_minibatch", "the most small batches of one update", 1),
            _count("log_interval", "updates between two points of the log", 1),
            _count("weight_sync_interval", "updates between two syncs of the weights", 1),
            _count("async_semaphore_max", "rollouts at the same time, over the whole job", 4),
        ),
    ),
    ConfigSection(
        "training.weight_sync",
        "how new weights reach the policy that plays",
        (
            ConfigKey("enable", "switch", "whether they do", "true"),
            ConfigKey("targets", "texts", "who gets them", '["policy"]'),
            _text("mode", "the way", "direct"),
            ConfigKey("direct", "switch", "whether from GPU to GPU", "true"),
            _count("interval", "updates between two syncs", 1),
            _count("verify_every_k", "syncs between two that are verified; 0 for never", 0, low=0),
        ),
    ),
    ConfigSection("training.lora", "adapters, with trainer_mode lora or qlora", LORA),
    ConfigSection(
        "training.rewards",
        "rewards of steps and events",
        (
            ConfigKey("step_rewards_enabled", "switch", "whether steps are rewarded", "true"),
            _text("step_rewards_mode", "when they are", "decision_stepwise"),
            _number("step_rewards_indicator_lambda", "the weight of a step's reward", "1.0", low=0),
            _number("step_rewards_beta", "told to the trainer", "0.0"),
            _text("step_rewards_strategy", "how unlocked achievements count", "consistent"),
            _text("event_rewards_kind", "how events are rewarded", "unique"),
        ),
    ),
    ConfigSection(
        "evaluation",
        "the policy is measured at a fixed cadence",
        (
            _count("instances", "episodes of one evaluation", 2, required=True),
            _count("every_n_iters", "updates between two evaluations", 1, required=True),
            ConfigKey("seeds", "seeds", "the seeds of an evaluation", "[0, 1]", required=True),
        ),
    ),
    ConfigSection(
        "judge",
        "rewards by a judge",
        (
            ConfigKey("enabled", "switch", "whether there is one", "true"),
            _number("timeout_s", "seconds that a judge may take", "45", above=0),
        ),
    ),
    ConfigSection(
        "judge.reward_blend",
        "reward = env · return + event · events score + outcome · outcome score; not all 0",
        (
            _number("env", "weight of the environment's return", "1.0", low=0),
            _number("event", "weight of the events score", "0.0", low=0),
            _number("outcome", "weight of the outcome score", "0.0", low=0),
        ),
    ),
    ConfigSection(
        "judge.options",
        "who judges what",
        (
            _text("provider", "the judge's vendor", "openai", advised=("openai", "groq", "gemini")),
            _text("model", "the judge's model", "gpt-5-nano"),
            _text("rubric_id", "the rubric", "adder/v1"),
            ConfigKey("event", "switch", "whether events are judged", "true"),
            ConfigKey("outcome", "switch", "whether the outcome is judged", "true"),
            ConfigKey("rubric_overrides", "table", "changes to the rubric", "{}"),
            ConfigKey("metadata", "table", "words for the judge's log", "{}"),
        ),
        free=True,
    ),
    ConfigSection(
        "rubric",
        "an older way to name a judge's rubric",
        free=True,
        warning="is deprecated. Write [judge] and [judge.options] instead",
    ),
    ConfigSection(
        "vllm",
        "the server that runs the policy; other keys go to it as they stand",
        (_count("tensor_parallel_size", "GPUs that one copy of the policy is spread over", 2),),
        free=True,
    ),
    ConfigSection(
        "reference", "the reference model", (_text("placement", 'where it runs; "none" when left out', "none"),)
    ),
    ConfigSection("lora", "adapters, with trainer_mode lora or qlora", LORA),
    ConfigSection("tags", "words of your own by which the job is found again: text, numbers, switches", free=True),
    ConfigSection("smoke", "for local smoke tests: never sent with a job", free=True),
    ConfigSection(
        "trainer",
        "smoke-test form of [training]",
        (
            _count("batch_size", "as training.batch_size", 2),
            _count("group_size", "as training.group_size", 4),
        ),
    ),
    ConfigSection(
        "env",
        "smoke-test form of [rollout]",
        (_count("max_steps_per_episode", "as rollout.max_turns", 3),),
    ),
    ConfigSection(
        "job",
        "smoke-test form of [model]",
        (
            _text(
                "model",
                "as model.base; as model.source when it begins with ft: or rl:",
                "Qwen/Qwen3-0.6B",
            ),
        ),
    ),
    ConfigSection(
        "runner",
        "how a script follows the job; no trainer reads it",
        (
            _number("stream_seconds", "seconds for which events are shown; 0 for none", "0", low=0),
            _count("empty_polls_threshold", "polls without a new event until the script gives up", 5),
            _number("startup_deadline_s", "seconds until the first event", "45", above=0),
        ),
    ),
    ConfigSection(
        "data", "the tasks", (ConfigKey("seeds", "seeds", "the seeds that are trained on, in order", "[0, 1, 2, 3]"),)
    ),
)

BY_NAME = {section.name: section for section in SECTIONS}
TOP_LEVEL = tuple(section.name for section in SECTIONS if "." not in section.name)
"""Names of the sections that stand at the top of a document."""


def inner_sections(section: ConfigSection) -> dict[str, ConfigSection]:
    """The sections directly inside this one, by their last name."""
    return {
        inner.path[-1]: inner for inner in SECTIONS if inner.path[:-1] == section.path and inner.path != section.path
    }
