"""What the local trainer reads of a config, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from taskapp_kit.errors import JobError
from taskapp_kit.jobs.client.config.values import Place
from taskapp_kit.jobs.server.engine import JobDocument
from taskapp_kit.train.job_settings import LoraSettings, TrainingSettings, read_training, training_settings
from taskapp_kit.train.loops.loop_settings import Curriculum, EarlyStopping, LoopSettings
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
    made = {name: dict(section) for name, section in config.items()}
    for name, section in changes.items():
        made[name] = {**made.get(name, {}), **section}
    return made


def settings(changes: dict[str, Any] | None = None) -> TrainingSettings:
    return training_settings(job(merged(CONFIG, changes or {})))


def problems(changes: dict[str, Any]) -> dict[Place, str]:
    made, found = read_training(job(merged(CONFIG, changes)))
    assert (made is None) == bool(found)
    return found


def test_a_config_becomes_settings() -> None:
    """The rollouts' own policy config goes before the policy's."""
    made = settings(
        {
            "policy": {"temperature": 0.7, "max_tokens": 9},
            "rollout": {"policy_config": {"temperature": 0.9}},
            "training": {"clip": [0.1, 0.2]},
            "gateway": {"url": "https://trainer.example.org/"},
            "models": {"alias": {"Qwen/Qwen3-0.6B": "tiny"}},
            "evaluation": {"temperature": 0.0},
        }
    )
    assert (made.model, made.label, made.aliases) == ("tiny", "my-run", {"Qwen/Qwen3-0.6B": "tiny"})
    assert made.driving.generation.temperature == made.update.temperature == 0.9
    assert (made.driving.generation.max_tokens, made.driving.evaluation_temperature) == (9, 0.0)
    assert (made.update.clip, made.gateway_url) == ((0.1, 0.2), "https://trainer.example.org")
    driver = made.driver(incarnation=3, context_tokens=256)
    assert (driver.incarnation, driver.generation.context_tokens, driver.generation.temperature) == (3, 256, 0.9)


def test_a_job_without_a_config_has_its_models_name() -> None:
    assert training_settings(job({}, model="tiny", trainer={"batch_size": 2})).model == "tiny"
    assert list(read_training(job({}))[1]) == [("model",)]
    with pytest.raises(JobError, match="the model to train is missing"):
        training_settings(job({}))


def test_a_group_of_one_needs_a_loss_without_groups() -> None:
    changes = {"algorithm": {"method": "ppo", "variety": "ppo"}, "training": {"group_size": 1}}
    assert settings(changes).update.loss == "ppo"
    assert list(read_training(job(CONFIG, trainer={"group_size": 1}))[1]) == [("training", "group_size")]
    smoke = {name: section for name, section in CONFIG.items() if name != "training"} | {"trainer": {"group_size": 1}}
    assert list(read_training(job(smoke))[1]) == [("trainer", "group_size")]


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
    assert settings({"rollout": {"timeout_seconds": 3600}}).driving.stall_seconds == 5400


def varieties(variety: str, method: str = "policy_gradient", **training: Any) -> dict[str, Any]:
    return {"algorithm": {"method": method, "variety": variety}, "training": training}


def offline(method: str = "policy_gradient", variety: str = "gspo", **sections: Any) -> dict[str, Any]:
    algorithm = {"type": "offline", "method": method, "variety": variety}
    return {"algorithm": algorithm, "data": {"rollouts": "a.jsonl"}, **sections}


def environments(*more: dict[str, Any]) -> dict[str, Any]:
    return {"environments": [{"weight": 1}, *more]}


LORA = {"trainer_mode": "lora"}


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        ("data.rollouts", {"algorithm": {"type": "offline"}}),
        ("evaluation.seeds", offline(evaluation={"seeds": None})),
        ("algorithm.type", offline("ppo", "ppo")),
        ("training.credit", offline(training={"credit": "turn"})),
        ("algorithm.variety", varieties("gspo", "ppo")),
        ("algorithm.variety", varieties("ppo", "gspo")),
        ("algorithm.variety", varieties("grpo", "gspo")),
        ("algorithm.variety", varieties("dapo")),
        ("training.scale", varieties("ppo", "ppo", scale="group")),
        ("training.minibatches", varieties("reinforce", minibatches=2)),
        ("training.clip", varieties("reinforce", clip=[0.1, 0.1])),
        ("training.clip", {"training": {"iterations_ahead": 1, "clip": [3e-4, 0.2]}}),
        *(("training.group_size", varieties(variety, group_size=1)) for variety in ("gspo", "grpo", "reinforce")),
        ("policy.trainer_mode", {"policy": LORA}),
        ("lora.target_modules", {"model": LORA, "lora": {"target_modules": ["c_attn"]}}),
        ("lora", {"model": LORA, "lora": {"r": 4}, "training": {"lora": {"r": 8}}}),
        ("policy.temperature", {"policy": {"temperature": 0.0}}),
        ("rollout.policy_config.temperature", {"rollout": {"policy_config": {"temperature": "hot"}}}),
        ("rollout.policy_config.max_tokens", {"rollout": {"policy_config": {"max_tokens": 0}}}),
        ("rollout.policy_config.stop", {"rollout": {"policy_config": {"stop": 5}}}),
        ("rollout.policy_config.stop", {"rollout": {"policy_config": {"stop": ["a", 5]}}}),
        ("sampler.deterministic", {"sampler": {"engine": "vllm", "deterministic": True}}),
        ("sampler.deterministic", {"sampler": {"deterministic": True}, "training": {"iterations_ahead": 1}}),
        ("sampler.replicas", {"sampler": {"engine": "services", "replicas": 65}}),
        ("training.stall_seconds", {"training": {"stall_seconds": 60}}),
        ("curriculum.levels", {"curriculum": {"levels": ["a", "a"]}}),
        ("curriculum.down", {"curriculum": {"levels": ["a", "b"], "up": 0.5, "down": 0.5}}),
        ("curriculum", {"curriculum": {"levels": ["a", "b"]}, "rollout": environments({"weight": 1})}),
        ("rollout.environments", {"rollout": environments({"weight": 1, "task_app": "keys.py"})}),
        (
            "evaluation.instances",
            {"training": {"iterations_per_epoch": 124_999}, "evaluation": {"instances": 8, "every_n_iters": 124_999}},
        ),
    ],
)
def test_what_this_trainer_does_not_do_is_one_problem_at_its_place(place: str, changes: dict[str, Any]) -> None:
    config = merged(CONFIG, changes)
    config["evaluation"] = {name: value for name, value in config["evaluation"].items() if value is not None}
    assert list(read_training(job(config))[1]) == [tuple(place.split("."))]


@pytest.mark.parametrize(
    "name", ["temperature", "max_tokens", "stop", "top_p", "top_k", "model", "inference_url", "sample"]
)
def test_no_value_of_the_free_table_breaks_the_check(name: str) -> None:
    for value in (None, True, -1, 10**18, 0.5, "x", "", [], ["x"], [[1]], {}, {"a": [1]}):
        problems({"rollout": {"policy_config": {name: value}}})


def test_problems_of_the_plan_and_of_the_trainer_are_reported_together() -> None:
    found = problems({"training": {"batch_size": 0, "weight_sync_interval": 2}})
    assert list(found) == [("training", "batch_size"), ("training", "weight_sync_interval")]


def test_each_loop_is_off_unless_it_is_named() -> None:
    assert settings().driving.loops == LoopSettings()
    assert settings(offline()).rollouts == "a.jsonl"


@pytest.mark.parametrize("is_offline", [False, True])
def test_loops_are_read_and_an_offline_job_plays_evaluations_only(is_offline: bool) -> None:
    changes = {
        "evaluation": {"stop_at": 0.9, "patience": 3},
        "training": {"iterations_ahead": 2},
        "curriculum": {"levels": ["easy", 2], "up": 0.7, "down": 0.1, "window": 4},
    }
    found = settings({**changes, **(offline() if is_offline else {})}).driving.loops
    played = (Curriculum(), 0) if is_offline else (Curriculum(("easy", 2), 0.7, 0.1, 4), 2)
    assert (found.curriculum, found.ahead) == played
    assert found.stopping == EarlyStopping(0.9, 3)


def test_several_environments_have_names_of_their_own() -> None:
    given = [
        {"env_name": "a", "weight": 3, "env_config": {"x": 1}, "seeds": [1]},
        {"env_name": "a", "weight": 1, "task_url": "http://127.0.0.1:2/", "task_app": "served.py"},
        {"weight": 1},
    ]
    found = settings({"rollout": {"environments": given}}).driving.loops.environments
    assert [(each.name, each.weight, each.env_name, each.task_url) for each in found] == [
        ("a", 3, "a", None),
        ("a_2", 1, "a", "http://127.0.0.1:2"),
        ("environment_3", 1, None, None),
    ]
    assert (found[0].env_config, found[0].seeds, found[1].seeds) == ({"x": 1}, (1,), None)
