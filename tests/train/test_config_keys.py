"""What the local trainer does with each key of a config: shown for every key of the schema."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.jobs.client.config.rl_config import load_rl_config
from taskapp_kit.jobs.client.config.schema import SECTIONS, example_of, keys_of
from taskapp_kit.jobs.client.config.sft_config import load_sft_config
from taskapp_kit.jobs.client.job_payload import settled
from taskapp_kit.jobs.server.engine import JobDocument
from taskapp_kit.jobs.server.rollout_plan import JobPlan
from taskapp_kit.train.config_keys import (
    FAMILIES,
    READ_BEFORE,
    SAMPLING_LIMITS,
    TURNS,
    UNUSED,
    limit_of,
    unused_keys,
    use_of,
)
from taskapp_kit.train.job_settings import TrainingSettings, read_training
from taskapp_kit.train.sft.sft_settings import sft_settings

ROOT = Path(__file__).parents[2]
Document = dict[str, Any]

BASE: Document = {"model": {"base": "tiny"}}

BESIDE: dict[str, Document] = {
    "model.source": {"model": {}},
    "model.base": {"model": {}},
    "policy.model_name": {"model": {}},
    "policy.source": {"model": {}},
    "job.model": {"model": {}},
    "lora": {"model": {"base": "tiny", "trainer_mode": "lora"}},
    "training.lora": {"model": {"base": "tiny", "trainer_mode": "lora"}},
    "evaluation": {"evaluation": {"instances": 2, "every_n_iters": 1, "seeds": [0, 1]}},
    "judge.enabled": {"judge": {"reward_blend": {"env": 0.5}}},
    "judge.reward_blend": {"judge": {"reward_blend": {"env": 0.5, "event": 0.5, "outcome": 0.5}}},
    "training.minibatches": {"algorithm": {"variety": "grpo"}},
    "training.ppo": {"algorithm": {"variety": "ppo"}},
    "vllm": {"sampler": {"engine": "vllm"}},
    "sampler.replicas": {"sampler": {"engine": "services"}},
    "sampler.backend": {"sampler": {"engine": "services"}},
    "curriculum": {"curriculum": {"levels": ["easy", "hard"], "up": 0.8}},
    "training.discount": {"training": {"credit": "turn"}},
    "algorithm.type": {"data": {"rollouts": "stored.jsonl"}, "evaluation": {"seeds": [0]}},
    "data.rollouts": {"algorithm": {"type": "offline"}, "evaluation": {"seeds": [0]}},
}
"""What a key needs beside it to be looked at; by key, or by section."""

VALUES: dict[str, tuple[Any, Any]] = {
    "algorithm.type": ("offline", "online"),
    "algorithm.method": ("gspo", "ppo"),
    "algorithm.variety": ("grpo", "dapo"),
    "model.trainer_mode": ("lora", "qlora"),
    "policy.trainer_mode": ("lora", "qlora"),
    "reference.placement": ("dedicated", "none"),
    "policy.top_p": (1.0, 0.5),
    "policy.top_k": (-1, 50),
    "rollout.episodes_per_batch": (8, 80),
    "rollout.policy_config": ({"temperature": 0.7}, {"temperature": 0.8}),
    "rollout.ops": (["agent", "env"], ["agent", "agent", "env"]),
    "rollout.environments": (
        [{"env_name": "adder", "weight": 3}, {"env_name": "words", "weight": 1}],
        [{"env_name": "adder", "weight": 1}, {"env_name": "words", "weight": 1}],
    ),
    "training.clip": ([0.2, 0.28], [0.1, 0.1]),
    "training.credit": ("episode", "turn"),
    "training.precision": ("fp32", "bf16"),
    "training.scale": ("none", "group"),
    "training.minibatches": (1, 2),
    "sampler.engine": ("transformers", "vllm"),
    "sampler.backend": ("local", "ray"),
    "training.lora.dropout": (0.0, 0.05),
    "lora.dropout": (0.0, 0.05),
    "training.lora.target_modules": ("q_proj", ["q_proj", "o_proj"]),
    "lora.target_modules": ("q_proj", ["q_proj", "o_proj"]),
    "training.rewards.step_rewards_enabled": (False, True),
    "training.weight_sync.targets": (["policy"], ["policy", "reference"]),
}
"""Two values of a key: the first one is accepted. Others are made from the example."""

KEYS = [(header, name) for header, section in SECTIONS.items() for name in keys_of(section)]


def two_values(path: str, example: Any) -> tuple[Any, Any]:
    if path in VALUES:
        return VALUES[path]
    if isinstance(example, bool):
        return example, not example
    if isinstance(example, int):
        return example, example + 1
    if isinstance(example, float):
        return example, example / 2 or 0.5
    if isinstance(example, str):
        return example, example + "/2"
    if isinstance(example, list):
        return example, example[:-1]
    assert isinstance(example, dict), path
    return example, {**example, "another": "tiny"}


def with_value(path: tuple[str, ...], value: Any) -> Document:
    dotted = ".".join(path)
    beside = next((BESIDE[name] for name in (dotted, ".".join(path[:-1])) if name in BESIDE), {})
    document: Document = {**BASE, **beside}
    table = document
    for name in path[:-1]:
        table[name] = dict(table.get(name, {}))
        table = table[name]
    table[path[-1]] = value
    return document


def read(document: Document) -> tuple[tuple[JobPlan, TrainingSettings] | None, list[str], JobDocument]:
    job = JobDocument("rl_1", "http://127.0.0.1:1", document)
    settings, problems = read_training(job)
    if settings is None:
        return None, list(problems.values()), job
    plan = settings.plan
    # the driver replaces the address where the model answers by the attempt's own
    config = {name: value for name, value in plan.policy_config.items() if name not in ("inference_url", "model")}
    plan = replace(plan, policy_config=config)
    return (plan, replace(settings, plan=plan)), [], job


def within(path: tuple[str, ...], some: set[tuple[str, ...]]) -> bool:
    return any(path[:end] in some for end in range(1, len(path) + 1))


@pytest.mark.parametrize(("header", "name"), KEYS, ids=[f"{header}.{name}" for header, name in KEYS])
def test_every_key_is_used_or_limited_or_named_as_unused(header: str, name: str) -> None:
    path = (*header.split("."), name)
    example = tomllib.loads(f"value = {example_of(keys_of(SECTIONS[header])[name])}")["value"]
    one, other = two_values(".".join(path), example)
    first, found, job = read(with_value(path, one))
    assert first is not None, found
    named = " ".join(unused_keys(job, first[0]))
    second, found, _ = read(with_value(path, other))
    if (limit := limit_of(path)) is not None:
        assert all(read(with_value(path, value))[0] is not None for value in limit.values)
        assert second is None and len(found) == 1 and name in found[0].split(":")[0], found
        assert not named
        return
    assert second is not None, found
    if within(path, UNUSED):
        assert use_of(path) == "not used" and second == first
        assert f"[{header}]" in named or f"[{path[0]}]" in named
    elif within(path, READ_BEFORE):
        assert second == first and not named
    else:
        assert use_of(path) == "used" and second != first and not named


@pytest.mark.parametrize("name", SAMPLING_LIMITS)
@pytest.mark.parametrize("section", [("policy",), ("rollout", "policy_config")])
def test_sampling_that_would_be_another_policy_is_limited_in_both_places(name: str, section: tuple[str, ...]) -> None:
    for value in SAMPLING_LIMITS[name].values:
        made, found, job = read(with_value((*section, name), value))
        assert made is not None and not unused_keys(job, made[0]), found
    _, found, _ = read(with_value((*section, name), 0.5 if name != "top_k" else 40))
    assert len(found) == 1 and name in found[0]


@pytest.mark.parametrize("method", FAMILIES)
def test_every_method_is_a_family_with_a_default(method: str) -> None:
    made, found, _ = read(with_value(("algorithm", "method"), method))
    assert made is not None, found
    assert made[1].update.loss == {"policy_gradient": "gspo"}.get(method, method)


def unused(document: Mapping[str, Any]) -> list[str]:
    made, found, job = read(dict(document))
    assert made is not None, found
    return unused_keys(job, made[0])


LORA = {"model": {"base": "tiny", "trainer_mode": "lora"}, "lora": {"r": 4}}
PPO = {"training": {"num_epochs": 1, "ppo": {"passes": 2}}}
VLLM = {"vllm": {"tensor_parallel_size": 2, "trust_remote_code": True}}
REPLICAS = {"replicas": 2, "backend": "ray"}
PLAYED = {
    "data": {"rollouts": "stored.jsonl", "seeds": [1]},
    "evaluation": {"seeds": [0]},
    "rollout": {"record_tokens": True, "max_turns": 2},
}
GROUPS = {"training": {"batch_size": 2, "group_size": 4}}


@pytest.mark.parametrize(
    ("document", "keys"),
    [
        ({"compute": {"gpu_type": "H100", "topology": {"gpus_for_vllm": 2}}, "mystery": {"a": 1}, "loose": 1}, ["[compute]", "[mystery]", "[loose]"]),
        ({"training": {"log_interval": 1, "num_epochs": 1, "warmup": 3}}, ["[training] log_interval", "[training] warmup"]),
        ({"training": {"num_epochs": 1, "weight_sync": {"mode": "direct"}}}, ["[training.weight_sync]"]),
        ({"tags": {"anything": 1}, "runner": {}}, []),
        ({"lora": {"r": 4}}, ["[lora]"]),
        (LORA, []),
        (PPO, ["[training.ppo]"]),
        ({**PPO, "algorithm": {"method": "ppo"}}, []),
        (VLLM, ["[vllm]"]),
        ({**VLLM, "sampler": {"engine": "vllm"}}, ["[vllm] trust_remote_code"]),
        ({"sampler": {**REPLICAS, "engine": "transformers"}}, ["[sampler] replicas", "[sampler] backend"]),
        ({"sampler": {**REPLICAS, "engine": "services"}}, []),
        (PLAYED, ["[data] rollouts"]),
        ({**PLAYED, "algorithm": {"type": "offline"}}, ["[data] seeds", "[rollout] record_tokens"]),
        (
            {section: {name: number} for number, (section, name) in enumerate(TURNS, start=3)},
            ["[training] max_turns ([rollout] max_turns counts)", "[env] max_steps_per_episode ([rollout] max_turns counts)"],
        ),
        ({**GROUPS, "rollout": {"episodes_per_batch": 9}}, ["[rollout] episodes_per_batch (an update has 2 groups of 4)"]),
        ({**GROUPS, "rollout": {"episodes_per_batch": 8}}, []),
    ],
)  # fmt: skip
def test_the_keys_that_change_nothing_are_named_a_whole_section_once(document: Document, keys: list[str]) -> None:
    assert unused({**BASE, **document}) == keys


def test_what_the_client_adds_is_not_named() -> None:
    assert unused(settled({"job": {"model": "tiny"}})) == []


CONFIGS = sorted((ROOT / "examples").rglob("*.toml"))


@pytest.mark.parametrize(
    "file", [path for path in CONFIGS if path.name == "sft.toml"], ids=lambda path: path.parent.name
)
def test_the_examples_of_fine_tuning_are_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = load_sft_config(file)
    assert config.warnings == () and sft_settings(config).reserved is not None


@pytest.mark.parametrize("file", [path for path in CONFIGS if path.name != "sft.toml"], ids=lambda path: path.name)
def test_the_examples_are_read_by_this_trainer(file: Path) -> None:
    config = load_rl_config(file)
    made, found, job = read(settled(config.document))
    assert made is not None and not config.warnings, found
    if "learn" in file.name:
        assert unused_keys(job, made[0]) == []
