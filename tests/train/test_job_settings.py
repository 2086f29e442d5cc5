"""What the local trainer reads of a config, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from taskapp_kit.backend.engine import JobDocument
from taskapp_kit.train.job_settings import LoraSettings, TrainingSettings, training_settings
from taskapp_kit.train.update.memory import LINEAR_LAYERS

CONFIG: dict[str, Any] = {
    "algorithm": {"type": "online", "method": "policy_gradient", "variety": "gspo"},
    "model": {"base": "tiny", "trainer_mode": "full", "label": "my-run"},
    "rollout": {"env_name": "adder", "max_turns": 2},
    "training": {"learning_rate": 1e-3, "batch_size": 2, "group_size": 4},
    "evaluation": {"instances": 2, "every_n_iters": 1, "seeds": [0, 1]},
}


def job(config: dict[str, Any], **more: Any) -> JobDocument:
    return JobDocument("rl_1", "http://127.0.0.1:1", config, **more)


def merged(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The config with changes, section by section."""
    made = {name: dict(section) for name, section in config.items()}
    for name, section in changes.items():
        made[name] = {**made.get(name, {}), **section}
    return made


def settings(changes: dict[str, Any] | None = None) -> TrainingSettings:
    made, problems = training_settings(job(merged(CONFIG, changes or {})))
    assert made is not None, problems
    return made


def problems(changes: dict[str, Any]) -> list[str]:
    made, found = training_settings(job(merged(CONFIG, changes)))
    assert made is None and found
    return found


def test_a_config_becomes_settings() -> None:
    made = settings(
        {
            "policy": {"temperature": 0.7, "max_tokens": 9, "stop_sequences": ["</a>"], "top_p": 1.0, "top_k": -1},
            "training": {"clip": [0.1, 0.2], "beta": 0.5, "minibatches": 4, "precision": "bf16", "scale": "group"},
            "sampler": {"deterministic": True},
            "gateway": {"url": "https://trainer.example.org/"},
            "checkpoints": {"every_n_iters": 5},
            "models": {"alias": {"Qwen/Qwen3-0.6B": "tiny"}},
            "evaluation": {"temperature": 0.0},
        }
    )
    assert (made.model, made.label, made.aliases) == ("tiny", "my-run", {"Qwen/Qwen3-0.6B": "tiny"})
    assert made.temperature == made.update.temperature == 0.7
    assert (made.max_tokens, made.stop, made.evaluation_temperature) == (9, ("</a>",), 0.0)
    assert (made.update.clip, made.update.beta, made.update.minibatches) == ((0.1, 0.2), 0.5, 4)
    assert (made.update.precision, made.rows.scale, made.deterministic) == ("bf16", "group", True)
    assert (made.gateway_url, made.checkpoint_every) == ("https://trainer.example.org", 5)
    driver = made.driver(incarnation=3, context_tokens=256)
    assert (driver.incarnation, driver.generation.context_tokens, driver.generation.temperature) == (3, 256, 0.7)


def test_the_rollouts_own_policy_config_goes_before_the_policys() -> None:
    made = settings({"policy": {"temperature": 0.7}, "rollout": {"policy_config": {"temperature": 0.9}}})
    assert made.temperature == made.update.temperature == 0.9


def test_a_job_without_a_config_has_its_models_name() -> None:
    made, found = training_settings(job({}, model="tiny", trainer={"batch_size": 2}))
    assert made is not None and made.model == "tiny" and not found
    assert training_settings(job({}))[1] == [
        '[model]: names no model to train. Add for example base = "tiny" below [model].'
    ]


def test_a_group_of_one_needs_a_loss_without_groups() -> None:
    changes = {"algorithm": {"method": "ppo", "variety": "ppo"}, "training": {"group_size": 1}}
    assert settings(changes).update.loss == "ppo"
    assert len(training_settings(job(merged(CONFIG, {}), trainer={"group_size": 1}))[1]) == 1
    smoke = {name: section for name, section in CONFIG.items() if name != "training"} | {"trainer": {"group_size": 1}}
    assert len(training_settings(job(smoke))[1]) == 1


def test_lora_has_a_section_of_two_names() -> None:
    mode = {"trainer_mode": "lora"}
    assert settings({"model": mode}).lora == LoraSettings(targets=LINEAR_LAYERS)
    for name in ("training", "lora"):
        section = {"r": 4, "alpha": 8, "target_modules": "q_proj"}
        found = settings({"model": mode, name: {"lora": section} if name == "training" else section})
        assert found.lora == LoraSettings(4, 8.0, ("q_proj",))
    assert settings({"model": mode, "lora": {"target_modules": ["all-linear"]}}).lora == LoraSettings()


def test_with_rollouts_ahead_gspo_clips_later() -> None:
    assert settings().update.clip is None
    assert settings({"training": {"iterations_ahead": 2}}).update.clip == (0.05, 0.06)
    assert settings({"training": {"iterations_ahead": 2}, "algorithm": {"variety": "grpo"}}).update.clip is None
    assert settings({"training": {"iterations_ahead": 2, "clip": [0.1, 0.2]}}).update.clip == (0.1, 0.2)


def test_a_longer_rollout_makes_the_jobs_deadline_longer() -> None:
    assert settings({"rollout": {"timeout_seconds": 3600}}).stall_seconds == 5400


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"algorithm": {"type": "offline"}, "evaluation": {"seeds": [1]}},
            "[data] rollouts: missing;",
        ),
        (
            {
                "algorithm": {"type": "offline", "method": "ppo", "variety": "ppo"},
                "data": {"rollouts": "a.jsonl"},
                "evaluation": {"seeds": [1]},
            },
            '[algorithm] type: found "offline"; expected "online" with the variety ppo.',
        ),
        (
            {
                "algorithm": {"type": "offline"},
                "data": {"rollouts": "a.jsonl"},
                "training": {"credit": "turn"},
            },
            '[training] credit: found "turn"; expected "episode" with type offline.',
        ),
        (
            {"algorithm": {"method": "ppo", "variety": "gspo"}},
            '[algorithm] variety: found "gspo"; expected "ppo" of the method "ppo".',
        ),
        (
            {"algorithm": {"method": "gspo", "variety": "ppo"}},
            '[algorithm] variety: found "ppo"; expected "gspo" of the method "gspo".',
        ),
        (
            {"algorithm": {"method": "ppo", "variety": "ppo"}, "training": {"scale": "group"}},
            '[training] scale: found "group"; expected "none" or "batch" with the variety ppo.',
        ),
        (
            {"algorithm": {"variety": "dapo"}},
            '[algorithm] variety: found "dapo"; expected "gspo" or "grpo" or "reinforce" or "ppo".',
        ),
        (
            {"algorithm": {"method": "gspo", "variety": "grpo"}},
            '[algorithm] variety: found "grpo"; expected "gspo" of the method "gspo".',
        ),
        ({"model": {"trainer_mode": "qlora"}}, '[model] trainer_mode: found "qlora"; expected "full" or "lora".'),
        ({"policy": {"trainer_mode": "lora"}}, '[policy] trainer_mode: found "lora"; expected "full" as in [model].'),
        ({"policy": {"top_p": 0.9}}, "[policy] top_p: found 0.9; expected 1."),
        ({"policy": {"top_k": 50}}, "[policy] top_k: found 50; expected -1 or 0."),
        ({"policy": {"min_p": 0.1}}, "[policy] min_p: found 0.1; expected 0."),
        ({"policy": {"repetition_penalty": 1.1}}, "[policy] repetition_penalty: found 1.1; expected 1."),
        ({"policy": {"presence_penalty": 0.5}}, "[policy] presence_penalty: found 0.5; expected 0."),
        (
            {"rollout": {"policy_config": {"top_p": 0.9}}},
            "[rollout] policy_config.top_p: found 0.9; expected 1.",
        ),
        (
            {"policy": {"temperature": 0.0}},
            "[policy] temperature: found 0.0; expected a number above 0 and at most 10.",
        ),
        ({"rollout": {"policy_config": {"temperature": "hot"}}}, '[rollout] policy_config.temperature: found "hot"; '),
        ({"rollout": {"policy_config": {"max_tokens": 0}}}, "[rollout] policy_config.max_tokens: found 0; expected a "),
        (
            {"rollout": {"policy_config": {"stop": 5}}},
            "[rollout] policy_config.stop: found 5; expected a text or a list",
        ),
        (
            {"rollout": {"policy_config": {"stop": ["a", 5]}}},
            "[rollout] policy_config.stop: found a list of 2; expected",
        ),
        (
            {"sampler": {"engine": "vllm", "deterministic": True}},
            '[sampler] deterministic: found true; expected false with [sampler] engine = "vllm".',
        ),
        (
            {"sampler": {"engine": "services", "replicas": 65}},
            "[sampler] replicas: found 65; expected at most 64. Each is a process with the whole model.",
        ),
        ({"training": {"weight_sync_interval": 2}}, "[training] weight_sync_interval: found 2; expected 1."),
        (
            {"training": {"weight_sync": {"enable": False}}},
            "[training.weight_sync] enable: found false; expected true.",
        ),
        (
            {"training": {"rewards": {"step_rewards_enabled": True}}},
            "[training.rewards] step_rewards_enabled: found true; expected false.",
        ),
        *(
            (
                {"algorithm": {"variety": variety}, "training": {"group_size": 1}},
                "[training] group_size: found 1; expected at ",
            )
            for variety in ("gspo", "grpo", "reinforce")
        ),
        ({"rollout": {"batches_per_step": 2}}, "[rollout] batches_per_step: found 2; expected 1."),
        ({"lora": {"dropout": 0.05}}, "[lora] dropout: found 0.05; expected 0."),
        (
            {"algorithm": {"variety": "reinforce"}, "training": {"minibatches": 2}},
            "[training] minibatches: found 2; expected 1 with the variety reinforce.",
        ),
        (
            {"algorithm": {"variety": "reinforce"}, "training": {"clip": [0.1, 0.1]}},
            "[training] clip: found a list of 2; expected none with the variety reinforce.",
        ),
        (
            {"model": {"trainer_mode": "lora"}, "lora": {"target_modules": ["c_attn"]}},
            '[lora] target_modules: found "c_attn"; expected "all-linear" or some of "q_proj"',
        ),
        (
            {"model": {"trainer_mode": "lora"}, "lora": {"r": 4}, "training": {"lora": {"r": 8}}},
            "[lora]: found other values than in [training.lora];",
        ),
        ({"policy": {"model_name": "other"}}, '[policy] model_name: found "other"; expected "tiny", which the config '),
        (
            {"training": {"stall_seconds": 60}},
            "[training] stall_seconds: found 60; expected more than [rollout] timeout_seconds, 1800.",
        ),
        (
            {"training": {"iterations_per_epoch": 124_999}, "evaluation": {"instances": 8, "every_n_iters": 124_999}},
            "the job has 1000008 rollouts with the evaluation before its first update; at most 1000000 are played.",
        ),
    ],
)
def test_what_this_trainer_does_not_do_is_refused_in_one_sentence(changes: dict[str, Any], expected: str) -> None:
    (found,) = problems(changes)
    assert found.startswith(expected)


@pytest.mark.parametrize("value", [None, True, -1, 10**18, 0.5, "x", "", [], ["x"], [[1]], {}, {"a": [1]}])
@pytest.mark.parametrize(
    "name", ["temperature", "max_tokens", "stop", "top_p", "top_k", "model", "inference_url", "sample"]
)
def test_no_value_of_the_free_table_breaks_the_check(name: str, value: Any) -> None:
    made, found = training_settings(job(merged(CONFIG, {"rollout": {"policy_config": {name: value}}})))
    assert (made is None) == bool(found)


def test_problems_of_the_plan_are_reported_there_only() -> None:
    assert training_settings(job(merged(CONFIG, {"training": {"batch_size": 0}}))) == (None, [])
    (found,) = problems({"training": {"batch_size": 0, "weight_sync_interval": 2}})
    assert found.startswith("[training] weight_sync_interval")


def test_a_job_of_stored_rollouts_needs_held_out_seeds() -> None:
    document = {"model": {"base": "tiny"}, "algorithm": {"type": "offline"}, "data": {"rollouts": "a.jsonl"}}
    (found,) = training_settings(job(document))[1]
    assert found.startswith("[evaluation] seeds: missing;")
    made, _ = training_settings(job({**document, "evaluation": {"seeds": [7]}}))
    assert made is not None and made.rollouts == "a.jsonl"
