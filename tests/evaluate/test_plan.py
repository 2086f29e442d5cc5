from __future__ import annotations

import json

from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.evaluate.seeds import Seeds


def test_each_place_is_a_rollout_and_back() -> None:
    plan = EvalPlan(Seeds.read("3,7-8"), {"policy": "random"}, repeats=2)
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
        Seeds.read("3"), {"model": "m", "inference_url": "http://h/v1", "temperature": 0.5}, environment="e", split="test",
        repeats=2, config={"low": 1}, ops=3, max_time_seconds=7.0,
    )  # fmt: skip
    request = plan.request(1, "run")
    assert request.env.model_dump() == {
        "env_id": None, "env_name": "e", "seed": 3, "config": {"low": 1, "split": "test"},
    }  # fmt: skip
    assert request.policy.config == {"model": "m", "inference_url": "http://h/v1", "temperature": 0.5, "sample": 1}
    assert request.policy.policy_name is None
    assert (request.ops, request.safety.max_time_s, request.mode) == (["agent"] * 3, 7.0, "eval")
    assert plan.policy_name == "m"


def test_what_is_told_holds_no_key() -> None:
    policy = {
        "model": "m", "inference_url": "https://user:CANARY@h/v1?key=CANARY&cid=c1", "api_key": "CANARY",
        "extra_headers": {"Authorization": "CANARY"}, "temperature": 0.5,
    }  # fmt: skip
    plan = EvalPlan(Seeds.read("0-9"), policy)
    told = plan.to_json()
    assert "CANARY" not in json.dumps(told)
    assert told["policy"] == {
        "model": "m", "temperature": 0.5, "inference_url": "https://h/v1?cid=c1", "others": ["extra_headers"],
    }  # fmt: skip
    assert "CANARY" not in repr(plan)
