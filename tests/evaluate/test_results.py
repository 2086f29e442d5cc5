from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import Failure, TaskAppError
from taskapp_kit.evaluate.results import line_of, row_of_answer, row_of_error, row_of_failure, row_of_line
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.rollout.response import response_body
from taskapp_kit.rollout.service import Service
from taskapp_kit.wire.rollout import RolloutRequest

ADDER = str(Path(__file__).parents[2] / "examples" / "adder.py")
KEY = {"policy": "gold", "split": None, "seed": 3, "sample": 0}


def played() -> tuple[RolloutRow, dict[str, object]]:
    async def go() -> tuple[RolloutRow, dict[str, object]]:
        service = Service(find_app(ADDER))
        request = RolloutRequest.model_validate(
            {
                "run_id": "r",
                "env": {"seed": 3},
                "policy": {"config": {"policy": "gold"}},
                "ops": [],
                "mode": "eval",
                "record": {"trajectories": False},
            }  # fmt: skip
        )
        try:
            rollout = await service.rollout(request)
            return rollout.row(), response_body(rollout)
        finally:
            await service.close()

    return asyncio.run(go())


def test_here_and_at_an_address_the_result_is_the_same() -> None:
    here, body = played()
    assert row_of_answer(json.loads(json.dumps(body)), seed=here.seed) == here
    assert (here.status, here.reward, here.length, here.criteria["reached"], here.split) == (
        "terminated", 0.9625, 3, 1.0, "train",
    )  # fmt: skip
    assert here.observation_digest == here.digest, "it showed words alone"
    assert here.total_reward == 1.0
    assert here.metrics["turns"] == 3.0


def test_a_line_comes_back_as_it_was() -> None:
    here, _ = played()
    line = line_of(here, KEY)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    told = json.loads(line)
    assert told["key"] == KEY
    assert row_of_line(told) == here
    told.pop("observation_digest")  # a line that release 0.1.0 wrote
    assert row_of_line(told) == dataclasses.replace(here, observation_digest=None)
    failed = row_of_failure(Failure("policy", "model_unreachable", "m" * 1000), seed=3, rollout_id="x", seconds=1.0)
    assert failed.failed
    assert len(failed.message or "") == 400
    assert row_of_line(json.loads(line_of(failed, KEY))) == failed


@pytest.mark.parametrize("member", ["status", "metrics", "scorecard", "usage", "timing", "pipeline_metadata"])
def test_what_is_no_answer_is_none(member: str) -> None:
    here, body = played()
    for broken in ({**body, member: "?"}, {name: value for name, value in body.items() if name != member}):
        with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
            row_of_answer(broken, seed=here.seed)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("reward",), "NaN"),
        (("reward",), True),
        (("metrics", "mean_return"), "inf"),
        (("metrics", "mean_return"), None),
        (("metrics", "details", "seed"), 999),
        (("metrics", "details", "turns"), "3"),
        (("metrics", "num_steps"), "3"),
        (("rollout_id",), "r" * 1001),
        (("digest",), None),
        (("stop_reason",), None),
        (("usage",), {"t" * 1001: 1}),
    ],
    ids=str,
)
def test_a_servers_odd_number_or_name_is_no_result(path: tuple[str, ...], value: Any) -> None:
    """Text that reads as a number, another seed's answer, names that would swell every line."""
    here, body = played()
    broken = json.loads(json.dumps(body))
    place = broken
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        row_of_answer(broken, seed=here.seed)


def test_a_servers_failure_keeps_its_boundary_or_none() -> None:
    told = TaskAppError("The rollout failed at boundary policy (x): gone.", status=502, code="x", boundary="policy")
    result = row_of_error(told, seed=3, seconds=1.0)
    assert (result.boundary, result.code, result.message) == ("policy", "x", "gone.")
    foreign = row_of_error(TaskAppError("It broke.", status=500), seed=3, seconds=1.0)
    assert (foreign.boundary, foreign.code, foreign.message) == (None, "status_500", "It broke.")
