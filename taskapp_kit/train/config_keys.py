"""Which keys of an RL config the local trainer uses, which values it accepts, and which keys it ignores.

`docs/tools/config_pages.py` writes these tables into docs/reference/rl-config.md. The trainer uses every key that is
not listed here, and accepts all of its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from taskapp_kit.jobs.client.config.schema import ConfigSection, RlDocument, inner_section, value_at
from taskapp_kit.jobs.client.config.values import name_shown, place_shown
from taskapp_kit.jobs.server.engine import JobDocument
from taskapp_kit.jobs.server.rollout_plan import JobPlan
from taskapp_kit.train.update.update_settings import Loss

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limit:
    """The values of a key that this trainer accepts. `action` is the advice for any other value."""

    values: tuple[Any, ...]
    action: str

    @property
    def words(self) -> str:
        """The accepted values in TOML syntax."""
        return " or ".join(map(written, self.values))


FAMILIES: dict[str, tuple[Loss, ...]] = {"policy_gradient": get_args(Loss), "gspo": ("gspo",), "ppo": ("ppo",)}
"""The varieties of each `algorithm.method`, the default first. Each variety is the name of a loss."""

_NO_4_BITS = "4-bit weights need GPU kernels. Use lora, which trains the same adapters on unquantized weights."
_EACH_UPDATE = "The sampler receives the weights after each update."
_NO_DROPOUT = "The sampler has no dropout, so it would differ from the trained policy."
_NO_TRUNCATION = "Updates are biased unless replies are sampled from the whole distribution. Remove the key."

LIMITS: dict[Path, Limit] = {
    ("algorithm", "variety"): Limit(get_args(Loss), "The variety selects the loss."),
    ("model", "trainer_mode"): Limit(("full", "lora"), _NO_4_BITS),
    ("policy", "trainer_mode"): Limit(("full", "lora"), _NO_4_BITS),
    ("rollout", "batches_per_step"): Limit(
        (1,), "Increase [training] batch_size instead, the number of groups in one update."
    ),
    ("training", "weight_sync_interval"): Limit((1,), _EACH_UPDATE),
    ("training", "weight_sync", "interval"): Limit((1,), _EACH_UPDATE),
    ("training", "weight_sync", "enable"): Limit((True,), "Without new weights, the policy would never improve."),
    ("training", "weight_sync", "targets"): Limit((["policy"],), "Only the policy receives weights."),
    ("training", "rewards", "step_rewards_enabled"): Limit(
        (False,), 'The task app defines the rewards of steps. Use them with [training] credit = "turn".'
    ),
    ("training", "lora", "dropout"): Limit((0,), _NO_DROPOUT),
    ("lora", "dropout"): Limit((0,), _NO_DROPOUT),
}

SAMPLING_LIMITS = {
    name: Limit(values, _NO_TRUNCATION)
    for name, values in {
        "top_p": (1,),
        "top_k": (-1, 0),
        "min_p": (0,),
        "repetition_penalty": (1,),
        "presence_penalty": (0,),
        "frequency_penalty": (0,),
    }.items()
}
"""Accepted values of keys in `[policy]` and `[rollout.policy_config]`. Only the neutral value of each key is accepted."""

READ_BEFORE = {("services", "task_url"), ("services", "task_app"), ("runner",), ("tags",), ("smoke",)}
"""Keys and sections that only the client reads. The job does not use them."""

UNUSED = {
    ("services", "judge_url"),
    ("policy", "inference_url"),
    ("compute",),
    ("topology",),
    *(("training", name) for name in ("gradient_accumulation_steps", "max_accumulated_minibatch", "log_interval")),
    *(("training", "weight_sync", name) for name in ("mode", "direct", "verify_every_k")),
    *(("training", "rewards", f"step_rewards_{name}") for name in ("mode", "indicator_lambda", "beta", "strategy")),
    ("training", "rewards", "event_rewards_kind"),
    ("judge", "timeout_s"),
    ("judge", "options"),
    ("rubric",),
    ("reference", "placement"),
}
"""Keys and sections without an effect. When a job starts, it reports which of them its config contains."""

ADDED: dict[Path, Any] = {("reference", "placement"): "none"}
"""Keys and values that the client adds to each config."""

PPO_SECTION: Path = ("training", "ppo")
"""Used only with the variety ppo."""

OFFLINE_KEYS: tuple[Path, ...] = (("data", "rollouts"),)
"""Used only with the type offline."""

ONLINE_KEYS: tuple[Path, ...] = (
    ("data", "seeds"),
    ("rollout", "record_tokens"),
    ("rollout", "straggler_seconds"),
    ("training", "iterations_ahead"),
    ("curriculum",),
)
"""Ignored with the type offline."""

VLLM_SECTION: Path = ("vllm",)
"""Used only with `[sampler] engine = "vllm"`."""

SERVICE_KEYS: tuple[Path, ...] = (("sampler", "replicas"), ("sampler", "backend"))
"""Used only with `[sampler] engine = "services"`."""

LORA_SECTIONS: tuple[Path, ...] = (("training", "lora"), ("lora",))
"""Used only with the trainer_mode lora."""

TURN_KEYS: tuple[Path, ...] = (("training", "discount"),)
"""Used only with credit per turn."""

TURNS: tuple[Path, ...] = (("rollout", "max_turns"), ("training", "max_turns"), ("env", "max_steps_per_episode"))
"""Keys with the same meaning. The first key that is set is used."""


def limit_of(path: Path) -> Limit | None:
    """Return the accepted values of a key, or None if every value is accepted."""
    return LIMITS.get(path) or (SAMPLING_LIMITS.get(path[1]) if len(path) == 2 and path[0] == "policy" else None)


def use_of(path: Path) -> str:
    """Return how the trainer treats a key or section, as a phrase for docs/reference/rl-config.md."""
    if _within(path, UNUSED):
        return "not used"
    if _within(path, READ_BEFORE):
        return "read by the client"
    limit = limit_of(path)
    return "used" if limit is None else f"only {limit.words}"


def unused_keys(job: JobDocument, plan: JobPlan) -> list[str]:
    """Return the keys of a job's config that have no effect, such as `[training] log_interval`.

    If no key of a section is used, the section is listed instead of its keys.
    """
    config, _ = job.typed_config
    offline, ppo = config.algorithm.type == "offline", "ppo" in (config.algorithm.method, config.algorithm.variety)
    unused = UNUSED.union(
        () if "lora" in (config.model.trainer_mode, config.policy.trainer_mode) else LORA_SECTIONS,
        () if ppo else (PPO_SECTION,),
        () if config.sampler.engine == "vllm" else (VLLM_SECTION,),
        () if config.sampler.engine == "services" else SERVICE_KEYS,
        () if config.training.credit == "turn" and not ppo else TURN_KEYS,
        ONLINE_KEYS if offline else OFFLINE_KEYS,
    )
    return [*_unused_in(RlDocument, job.config, (), unused), *_overruled(config, plan)]


def _unused_in(section: type[ConfigSection], table: Mapping[str, Any], above: Path, unused: set[Path]) -> Iterator[str]:
    for name, value in table.items():
        path = (*above, name)
        field = section.model_fields.get(name)
        inner = None if field is None else inner_section(field)
        if _within(path, READ_BEFORE) or value in ({}, None) or ADDED.get(path) == value:
            continue
        if inner is not None and path not in unused and isinstance(value, Mapping):
            within = list(_unused_in(inner, value, path, unused))
            whole = len(within) == len(value)
            yield from [_shown(path)] if whole else within
        elif path in unused or (field is None and limit_of(path) is None):
            yield _shown(path)


def _overruled(config: RlDocument, plan: JobPlan) -> Iterator[str]:
    """Yield the keys that have no effect because another key with the same meaning has a different value."""
    turns = [(path, value) for path in TURNS if (value := value_at(config, path)) is not None]
    for path, value in turns[1:]:
        if value != turns[0][1]:
            yield f"{_shown(path)} ({_shown(turns[0][0])} counts)"
    if config.rollout.episodes_per_batch not in (None, plan.groups * plan.samples):
        yield f"{_shown(('rollout', 'episodes_per_batch'))} (an update has {plan.groups} groups of {plan.samples})"


def _within(path: Path, some: set[Path]) -> bool:
    return any(path[:length] in some for length in range(1, len(path) + 1))


def _shown(path: Path) -> str:
    """Return the name of a key as `[section] key`, or of a section as `[section]`."""
    return f"[{name_shown(path[0])}]" if len(path) == 1 else place_shown(path)


def written(value: Any) -> str:
    """Return a value in TOML syntax."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(written, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"
