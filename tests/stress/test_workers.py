"""However many processes play, the same things happen: digests, answers and stored events are equal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.stress.load import ask_all
from tests.stress.server import ADDER, STRESS_APP, Server, all_stored, body

pytestmark = [pytest.mark.ci, pytest.mark.process, pytest.mark.server]

WORKERS = ["2", *(pytest.param(count, marks=pytest.mark.exhaustive) for count in ("1", "4"))]
OWN = {"rollout_id", "timing", "seconds"}
"""What is a rollout's own: its id, and how long things took."""

STRESS_BODIES = [
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


Servers = Callable[[Path, str], Server]
"""An app's file and a number of workers -> its server."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Each server is started when it is first asked for, and serves all tests."""
    with ExitStack() as stack:

        @cache
        def server(app: Path, workers: str) -> Server:
            return stack.enter_context(Server(tmp_path_factory.mktemp("server"), "--workers", workers, app=app))

        yield server


@pytest.mark.process
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("app", "requests"),
    [
        pytest.param(STRESS_APP, STRESS_BODIES, id="stress"),
        pytest.param(ADDER, ADDERS, id="adder", marks=pytest.mark.exhaustive),
    ],
)
def test_the_same_rollouts_whoever_plays(
    servers: Servers, app: Path, requests: list[dict[str, Any]], workers: str
) -> None:
    threads = _played(servers(app, "0"), requests)
    assert len({answer["digest"] for answer, _ in threads}) > len(requests) / 2, "they are different episodes"
    played = _played(servers(app, workers), requests)
    for request, (answer, row), (expected, expected_row) in zip(requests, played, threads, strict=True):
        assert answer["digest"] == expected["digest"], request
        assert answer == expected, request
        assert len(row["events"]) == len(expected_row["events"])
        for event, other in zip(row["events"], expected_row["events"], strict=True):
            assert event == other, request
        assert row == expected_row, request


def _played(server: Server, requests: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The answer and the stored row of each, asked for all at once; without what is a rollout's own."""
    answers = asyncio.run(ask_all(server, requests))
    assert {answer.status for answer in answers} == {200}
    rows = all_stored(server.store, [answer.body["rollout_id"] for answer in answers])
    return [
        (_lasting(answer.body), _lasting({name: getattr(row, name) for name in ROW}))
        for answer, row in zip(answers, rows, strict=True)
    ]


ROW = ("app", "environment", "split", "seed", "config", "policy", "status", "stop_reason", "length", "total_reward",
       "reward", "outcome_score", "events_score", "digest", "observation_digest", "scorecard", "failure", "private", "spec_hash",
       "events")  # fmt: skip


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(part) for key, part in value.items() if key not in OWN and key != "session_id"}
    if isinstance(value, (list, tuple)):
        return [_lasting(part) for part in value]
    return value
