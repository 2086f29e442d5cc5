"""What crosses HTTP: what is accepted, and what is refused with the field's name."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from taskapp_kit.wire.rollout import RolloutRequest

GOOD: dict[str, Any] = {"run_id": "r", "env": {}, "policy": {}, "ops": [], "mode": "rl"}


def test_the_smallest_request_and_its_defaults() -> None:
    request = RolloutRequest.model_validate(GOOD)
    assert request.env.seed is None
    assert request.safety.max_ops == 100_000
    assert request.safety.max_time_s == 3600.0
    assert request.record.trajectories
    assert not request.record.return_trace
    assert request.reward is None


def test_unknown_members_are_ignored_as_the_original_does() -> None:
    RolloutRequest.model_validate({**GOOD, "new": 1, "env": {"other": 2}, "policy": {"more": 3}, "branch": None})


def test_a_structured_config_is_read_under_the_wires_name() -> None:
    request = RolloutRequest.model_validate({**GOOD, "policy": {"structured_config": {"schema": {"type": "object"}}}})
    assert request.policy.structured_config is not None
    assert request.policy.structured_config.json_schema == {"type": "object"}


@pytest.mark.parametrize(
    ("change", "loc"),
    [
        ({"run_id": ""}, ("run_id",)),
        ({"run_id": 3}, ("run_id",)),
        ({"run_id": "x" * 513}, ("run_id",)),
        ({"mode": "train"}, ("mode",)),
        ({"ops": "agent"}, ("ops",)),
        ({"ops": [3]}, ("ops", 0)),
        ({"env": []}, ("env",)),
        ({"env": {"seed": -1}}, ("env", "seed")),
        ({"env": {"seed": True}}, ("env", "seed")),
        ({"env": {"seed": 1.0}}, ("env", "seed")),
        ({"env": {"seed": 2**63}}, ("env", "seed")),
        ({"env": {"config": [1]}}, ("env", "config")),
        ({"policy": {"output_mode": "song"}}, ("policy", "output_mode")),
        ({"safety": {"max_ops": 0}}, ("safety", "max_ops")),
        ({"safety": {"max_ops": True}}, ("safety", "max_ops")),
        ({"safety": {"max_time_s": 0}}, ("safety", "max_time_s")),
        ({"safety": {"max_time_s": -1}}, ("safety", "max_time_s")),
        ({"safety": {"max_time_s": float("nan")}}, ("safety", "max_time_s")),
        ({"safety": {"max_time_s": float("inf")}}, ("safety", "max_time_s")),
        ({"record": {"return_trace": "yes"}}, ("record", "return_trace")),
        ({"reward": {"env": -1}}, ("reward", "env")),
        ({"reward": {"event": float("nan")}}, ("reward", "event")),
        ({"inference_url": "x" * 4097}, ("inference_url",)),
        ({"trace_correlation_id": 5}, ("trace_correlation_id",)),
    ],
    ids=repr,
)
def test_a_wrong_request_names_its_field(change: dict[str, Any], loc: tuple[Any, ...]) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        RolloutRequest.model_validate({**GOOD, **change})
    assert any(error["loc"][: len(loc)] == loc for error in caught.value.errors())


@pytest.mark.parametrize("name", sorted(GOOD))
def test_request_without_a_required_field_is_rejected(name: str) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        RolloutRequest.model_validate({key: value for key, value in GOOD.items() if key != name})
    assert [(error["loc"], error["type"]) for error in caught.value.errors()] == [((name,), "missing")]
