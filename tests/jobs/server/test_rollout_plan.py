"""What the rollouts engine reads of a config."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.jobs.client.config.review import read_document
from taskapp_kit.jobs.client.config.schema import RlDocument
from taskapp_kit.jobs.server.engine import JobDocument
from taskapp_kit.jobs.server.rewards import RewardBlend
from taskapp_kit.jobs.server.rollout_plan import JobPlan, SeedRange, cycled, draw, ranges_of, read_plan
from taskapp_kit.jobs.server.rollouts_engine import RolloutsEngine
from taskapp_kit.records.seeds import size


def plan(config: dict[str, Any], **more: Any) -> JobPlan:
    made, problems = read_plan(JobDocument("rl_1", "http://127.0.0.1:1", config, **more))
    assert made is not None, problems
    return made


def test_iterations_groups_and_evaluations_are_counted() -> None:
    made = plan(
        {
            "training": {"num_epochs": 2, "iterations_per_epoch": 3, "batch_size": 4, "group_size": 5},
            "evaluation": {"instances": 7, "every_n_iters": 2, "seeds": [1]},
        }
    )
    units = [made.unit(index) for index in range(made.units)]
    assert [(unit.phase, unit.number, unit.epoch) for unit in units] == [
        ("train", 1, 1), ("train", 2, 1), ("eval", 2, 1), ("train", 3, 1), ("train", 4, 2), ("eval", 4, 2),
        ("train", 5, 2), ("train", 6, 2), ("eval", 6, 2),
    ]  # fmt: skip
    assert made.total == sum(made.size(unit) for unit in units) == 6 * 20 + 3 * 7


@pytest.mark.parametrize(
    ("ops", "turns", "expected"),
    [
        (None, 2, ["agent", "env"] * 2),
        (None, None, []),
        (["agent", "env"], 3, ["agent", "env"] * 3),
        (["agent", "env"] * 3, 2, ["agent", "env"] * 2),
        (["policy", "policy", "env"], 3, ["policy", "policy", "env", "policy"]),
        (["agent", "env"], None, ["agent", "env"]),
        (["env"], 5, ["env"]),
        ([{"type": "env", "tool": "add", "args": {}}], 5, [{"type": "env", "tool": "add", "args": {}}]),
        ([{"type": "agent"}, {"type": "env"}], 2, [{"type": "agent"}, {"type": "env"}] * 2),
    ],
)
def test_a_pattern_of_ops_is_repeated_for_the_turns(ops: Any, turns: int | None, expected: list[Any]) -> None:
    rollout = {name: value for name, value in (("ops", ops), ("max_turns", turns)) if value is not None}
    assert list(plan({"rollout": rollout}).ops) == expected


def test_the_smaller_limit_of_concurrency_wins() -> None:
    assert plan({"training": {"async_semaphore_max": 3}, "rollout": {"max_concurrent_rollouts": 9}}).at_once == 3
    assert plan({"training": {"async_semaphore_max": 30}, "rollout": {"max_concurrent_rollouts": 9}}).at_once == 9
    assert plan({"training": {"async_semaphore_max": 30}}).at_once == 30
    assert plan({}).at_once == 8


def test_every_problem_is_reported() -> None:
    config = {
        "training": {"num_epochs": True, "batch_size": 0, "iterations_per_epoch": 2.5},
        "rollout": {"ops": "agent", "env_name": "", "policy_config": []},
        "data": {"seeds": [-1]},
        "evaluation": {"instances": -1, "seeds": []},
        "judge": {"reward_blend": {"env": -1}},
    }
    made, problems = read_plan(JobDocument("rl_1", "http://h", config))
    assert made is None
    assert {".".join(map(str, place)) for place in problems} == {
        "training.num_epochs", "training.batch_size", "training.iterations_per_epoch", "rollout.ops", "rollout.env_name",
        "rollout.policy_config", "data.seeds.0", "evaluation.seeds", "evaluation.instances", "judge.reward_blend.env",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("training", "num_epochs", 100_001),
        ("training", "iterations_per_epoch", 1_000_001),
        ("training", "batch_size", 10_001),
        ("training", "group_size", 1_001),
        ("training", "async_semaphore_max", 1_000_001),
        ("rollout", "max_concurrent_rollouts", 1_000_001),
        ("rollout", "max_turns", 100_001),
        ("rollout", "env_name", "x" * 513),
        ("rollout", "policy_name", "a\nb"),
        ("rollout", "ops", ["agent"] * 200_001),
        ("policy", "inference_url", "http://h/" + "x" * 512),
        ("data", "seeds", []),
        ("evaluation", "instances", 1_000_001),
    ],
)
def test_what_the_engine_cannot_do_is_a_problem_though_the_config_is_valid(section: str, key: str, value: Any) -> None:
    config = {"job": {"model": "m"}, section: {key: value}}
    assert read_document(RlDocument, config)[1] == {}
    made, problems = read_plan(JobDocument("rl_1", "http://h", config))
    assert made is None and list(problems) == [(section, key)]


def test_the_second_form_has_its_own_batch_and_group() -> None:
    made = plan({"trainer": {"batch_size": 9}}, trainer={"batch_size": 3, "group_size": 5})
    assert (made.groups, made.samples) == (3, 5)
    made = plan({"trainer": {"batch_size": 9}, "env": {"max_steps_per_episode": 2}})
    assert (made.groups, list(made.ops)) == (9, ["agent", "env"] * 2)


def test_sample_is_the_engines_own() -> None:
    assert "sample" not in plan({"rollout": {"policy_config": {"sample": 7}}}).policy_config


def test_what_would_change_what_is_played_is_left_to_the_engine_that_does_it() -> None:
    environments = [{"env_name": "a", "weight": 3}, {"env_name": "b", "weight": 1}]
    for place, config in (
        (("curriculum",), {"curriculum": {"levels": ["easy", "hard"], "up": 0.5}}),
        (("rollout", "environments"), {"rollout": {"environments": environments}}),
    ):
        assert list(RolloutsEngine().problems(JobDocument("rl_1", "http://127.0.0.1:1", config))) == [place]


@pytest.mark.parametrize(
    ("judge", "expected"),
    [
        ({"reward_blend": {"outcome": 1.0}}, RewardBlend(1.0, 0.0, 1.0)),
        ({"reward_blend": {"env": 0, "outcome": 1}}, RewardBlend(0.0, 0.0, 1.0)),
        ({"options": {}}, None),
        ({"enabled": False, "reward_blend": {"env": 5}}, None),
    ],
)
def test_a_blend_is_read_as_the_sdk_does(judge: dict[str, Any], expected: RewardBlend | None) -> None:
    assert plan({"judge": judge}).blend == expected


@given(
    st.integers(0, 50),
    st.integers(1, 200),
    st.integers(1, 5),
    st.integers(0, 60),
    st.text(max_size=8),
    st.integers(0, 9),
)
def test_a_draw_is_fixed_and_even(start: int, length: int, step: int, count: int, job: str, iteration: int) -> None:
    seeds = range(start, start + length, step)
    drawn = draw(seeds, count, job, iteration)
    assert drawn == draw(seeds, count, job, iteration)
    assert len(drawn) == count
    assert set(drawn) <= set(seeds)
    times = Counter(drawn).values()
    if count <= size(seeds):
        assert all(number == 1 for number in times)
    else:
        assert max(times) <= -(-count // size(seeds))


def test_other_iterations_and_jobs_draw_other_seeds() -> None:
    seeds = range(2**63 - 1)
    assert len({tuple(draw(seeds, 4, job, number)) for job in "ab" for number in range(3)}) == 6


@pytest.mark.parametrize(
    ("told", "split", "expected"),
    [
        ({"taskset": {"seeds": {"train": [0, 64]}, "default_split": "train"}}, None, (SeedRange("", 0, 64), SeedRange("", 0, 64))),
        ({"taskset": {"seeds": {"train": [0, 64], "test": [64, 80, 2]}}}, None, (SeedRange("", 0, 64), SeedRange("", 64, 80, 2))),
        ({"taskset": {"kind": "rows", "seeds": {"train": [0, 5], "test": [0, 3]}}}, None,
         (SeedRange("train", 0, 5), SeedRange("test", 0, 3))),
        ({"taskset": {"kind": "rows", "seeds": {"train": [0, 5], "test": [0, 3]}}}, "test",
         (SeedRange("", 0, 3), SeedRange("", 0, 3))),
        ({"taskset": {"cardinality": 12}}, None, (SeedRange("", 0, 12), SeedRange("", 0, 12))),
        ({"taskset": {"seeds": {"train": [5, 5]}}}, None, (SeedRange("", 0, 1000), SeedRange("", 0, 1000))),
        ({"taskset": {"seeds": {"train": ["a", 5], "dev": [1, 2, 0]}}}, None, (SeedRange("", 0, 1000), SeedRange("", 0, 1000))),
        ([], None, (SeedRange("", 0, 1000), SeedRange("", 0, 1000))),
    ],
)  # fmt: skip
def test_ranges_are_read_from_what_a_task_app_tells(
    told: Any, split: str | None, expected: tuple[SeedRange, SeedRange]
) -> None:
    assert ranges_of(told, split) == expected


def test_a_list_begins_anew() -> None:
    assert cycled([5, 6, 7], 2, 4) == [7, 5, 6, 7]
