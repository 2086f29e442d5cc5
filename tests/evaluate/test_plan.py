from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.records.seeds import Seeds


def test_each_place_is_a_rollout_and_back() -> None:
    plan = EvalPlan(Seeds.read("3,7-8"), [{"policy": "random"}], repeats=2)
    keys = [plan.key(position) for position in range(len(plan))]
    assert [(key.seed, key.sample) for key in keys] == [(3, 0), (3, 1), (7, 0), (7, 1), (8, 0), (8, 1)]
    assert [plan.position(key.to_json()) for key in keys] == list(range(6))
    first = keys[0].to_json()
    for wrong in ({"seed": 4}, {"sample": 2}, {"policy": "gold"}, {"split": "test"}, {"seed": True}, {"sample": -1}):
        assert plan.position({**first, **wrong}) is None
    assert plan.position(None) is None
    assert plan.position({"seed": 3}) is None


def test_the_request_says_what_was_asked() -> None:
    plan = EvalPlan(
        Seeds.read("3"), [{"model": "m", "inference_url": "http://h/v1", "temperature": 0.5}], environment="e", split="test",
        repeats=2, config={"low": 1}, ops=3, max_time_seconds=7.0,
    )  # fmt: skip
    request = plan.request(1, "run")
    assert request.env.model_dump() == {
        "env_id": None, "env_name": "e", "seed": 3, "config": {"low": 1, "split": "test"},
    }  # fmt: skip
    assert request.policy.config == {"model": "m", "inference_url": "http://h/v1", "temperature": 0.5, "sample": 1}
    assert request.policy.policy_name is None
    assert (request.ops, request.safety.max_time_s, request.mode) == (["agent"] * 3, 7.0, "eval")
    assert plan.names == ("m",)


def test_what_is_told_holds_no_key() -> None:
    policy = {
        "model": "m", "inference_url": "https://user:CANARY@h/v1?key=CANARY&cid=c1", "api_key": "CANARY",
        "extra_headers": {"Authorization": "CANARY"}, "temperature": 0.5,
    }  # fmt: skip
    plan = EvalPlan(Seeds.read("0-9"), [policy])
    told = plan.to_json()
    assert "CANARY" not in json.dumps(told)
    assert told["policy"] == {
        "model": "m", "temperature": 0.5, "inference_url": "https://h/v1?cid=c1", "others": ["extra_headers"],
    }  # fmt: skip
    assert "CANARY" not in repr(plan)


@given(seeds=st.sets(st.integers(0, 50), min_size=1), policies=st.integers(1, 4), repeats=st.integers(1, 3))
def test_every_policy_plays_every_sample_of_a_seed_before_the_next_seed(
    seeds: set[int], policies: int, repeats: int
) -> None:
    configs = [{"policy": f"p{index}"} for index in range(policies)]
    plan = EvalPlan(Seeds(range(seed, seed + 1) for seed in seeds), configs, repeats=repeats)
    keys = [plan.key(position) for position in range(len(plan))]
    assert [(key.seed, key.policy, key.sample) for key in keys] == [
        (seed, config["policy"], sample) for seed in sorted(seeds) for config in configs for sample in range(repeats)
    ]
    assert [plan.position(key.to_json()) for key in keys] == list(range(len(plan)))
    assert [plan.names[plan.policy_of(position)] for position in range(len(plan))] == [key.policy for key in keys]
    again = EvalPlan.of_stored(json.loads(json.dumps(plan.to_json())))
    assert [again.key(position) for position in range(len(again))] == keys
    assert again.to_json() == plan.to_json()


def test_policies_have_names_of_their_own() -> None:
    with pytest.raises(ConfigError, match="the name 'm'"):
        EvalPlan(Seeds.read("0"), [{"model": "m"}, {"model": "m", "temperature": 1.0}])
    plan = EvalPlan(Seeds.read("0"), [{"model": "m"}, {"model": "m"}], names=("base", "tuned"))
    assert [plan.key(position).policy for position in range(2)] == ["base", "tuned"]
    assert plan.request(1, "run").policy.config["model"] == "m"
    with pytest.raises(ConfigError, match="cannot read config.json"):
        EvalPlan.of_stored({"policy": {"policy": "random"}})


def test_a_plan_of_pairs_plays_those_alone() -> None:
    only = ((2, 0), (2, 3), (9, 1))
    plan = EvalPlan(Seeds.read("2,9"), ({"policy": "a"}, {"policy": "b"}), only=only)
    keys = [plan.key(position) for position in range(len(plan))]
    assert [(key.seed, key.sample, key.policy) for key in keys] == [
        (seed, sample, policy) for seed, sample in only for policy in ("a", "b")
    ]
    assert [plan.position(key.to_json()) for key in keys] == list(range(6))
    assert [plan.names[plan.policy_of(position)] for position in range(6)] == ["a", "b"] * 3
    for seed, sample in ((2, 1), (3, 0), (9, 0), (9, 2)):
        assert plan.position({"policy": "a", "split": None, "seed": seed, "sample": sample}) is None
    assert [plan.key(plan.first(index, 1)) for index in (0, 1)] == [keys[1], keys[5]]
    assert EvalPlan.of_stored(plan.to_json()).to_json() == plan.to_json()
    assert plan.request(3, "r").policy.config["sample"] == 3
