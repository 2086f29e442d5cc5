"""Two real server processes tell the same episodes; and the comparison would notice if they did not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from bench.crafter_digests import compare, difference, table
from bench.crafter_server import crafter_server, played, request
from taskapp_kit.wire.rollout import RolloutResponse

pytestmark = [pytest.mark.process, pytest.mark.server]


@pytest.mark.exhaustive
def test_two_processes_with_and_without_pictures_tell_the_same_episodes(tmp_path: Path) -> None:
    found = compare(1_000_500, seeds=3, in_flight=6, image_size=64, scratch=tmp_path)
    assert [(item.policy, item.episodes, item.equal_digests) for item in found] == [
        ("random", 3, 3),
        ("scripted", 3, 3),
    ]
    for item in found:
        assert item.differences == []
        assert item.pictures == item.calls > 100
        assert item.game_steps >= item.calls
    assert "| random | 3 |" in table(found, "note").markdown()


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
