"""Two real server processes tell the same episodes; and the comparison would notice if they did not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bench.crafter_digests import difference
from bench.crafter_server import crafter_server, played, request
from taskapp_kit.wire.rollout import RolloutResponse

pytestmark = [pytest.mark.process, pytest.mark.server]


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with crafter_server("crafter", tmp_path_factory.mktemp("server")) as server:
        (answer,) = played(server, [request(3, "random", {"length": 6})], 1).values()
    RolloutResponse.model_validate(answer)
    return answer


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("digest",), "0", "digest is"),
        (("status",), "terminated", "status is"),
        (("trajectories", 0, "steps", 2, "obs", "text"), "step 3", "call 3"),
        (("trajectories", 0, "steps", 5, "reward"), 0.5, "call 6"),
        (("trajectories", 0, "steps", 1, "info", "rewards"), [0.1], "call 2"),
        (("trajectories", 0, "trace", "initial_observation", "text"), "step", "the first observation"),
        (("trajectories", 0, "steps"), [], "call 1"),
    ],
)
def test_a_difference_is_found_and_placed(answer: dict[str, Any], path: tuple[Any, ...], value: Any, told: str) -> None:
    other = copy.deepcopy(answer)
    assert difference(answer, other) is None
    place = other
    for part in path[:-1]:
        place = place[part]
    assert place[path[-1]] != value
    place[path[-1]] = value
    found = difference(answer, other)
    assert found is not None
    assert told in found
