"""However many processes play, the same things happen: digests, answers and stored events are equal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.fire.load import ask_all
from tests.fire.server import ADDER, FIRE, Server, all_stored, body

WORKERS = ["0", "1", "2", "4"]
OWN = {"rollout_id", "timing", "seconds"}
"""What is a rollout's own: its id, and how long things took."""

FIRES = [
    body(environment, seed=seed, policy=policy, image=image)
    for environment, policy, seed, image in (
        *(("shared", policy, seed, seed % 2 == 1) for policy in ("random", "noop") for seed in (2, 3, 4, 5, 11, 1001)),
        ("alone", "random", 3, True),
        ("alone", "noop", 11, False),
    )
]
ADDERS = [
    {"run_id": "r", "env": {"seed": seed}, "policy": {"config": {"policy": policy}}, "ops": [], "mode": "eval",
     "record": {"return_trace": True}}
    for seed in range(0, 100, 7)
    for policy in ("gold", "random")
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("app", "requests"), [(FIRE, FIRES), (ADDER, ADDERS)], ids=["fire", "adder"])
def test_the_same_rollouts_whoever_plays(tmp_path: Path, app: Path, requests: list[dict[str, Any]]) -> None:
    played = {workers: _played(tmp_path / workers, workers, app, requests) for workers in WORKERS}
    threads = played["0"]
    assert len({answer["digest"] for answer, _ in threads}) > len(requests) / 2, "they are different episodes"
    for workers in WORKERS[1:]:
        for request, (answer, row), (expected, expected_row) in zip(requests, played[workers], threads, strict=True):
            assert answer["digest"] == expected["digest"], (workers, request)
            assert answer == expected, (workers, request)
            assert len(row["events"]) == len(expected_row["events"])
            for event, other in zip(row["events"], expected_row["events"], strict=True):
                assert event == other, (workers, request)
            assert row == expected_row, (workers, request)


def _played(
    folder: Path, workers: str, app: Path, requests: list[dict[str, Any]]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The answer and the stored row of each, asked for all at once; without what is a rollout's own."""
    with Server(folder, "--workers", workers, app=app) as server:
        told = asyncio.run(ask_all(server, requests))
    assert {answer.status for answer in told} == {200}
    rows = all_stored(server.store, [answer.body["rollout_id"] for answer in told])
    return [
        (_lasting(answer.body), _lasting({name: getattr(row, name) for name in ROW}))
        for answer, row in zip(told, rows, strict=True)
    ]


ROW = ("app", "environment", "split", "seed", "config", "policy", "status", "stop_reason", "length", "total_reward",
       "reward", "outcome_score", "events_score", "digest", "scorecard", "failure", "private", "spec_hash",
       "events")  # fmt: skip


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(part) for key, part in value.items() if key not in OWN and key != "session_id"}
    if isinstance(value, (list, tuple)):
        return [_lasting(part) for part in value]
    return value
