"""One seed and the same actions are one episode, whichever way it is played: observations, rewards and ends, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from tests.interop.shared.every_protocol import DRIVERS, Place, by_nemo, episode_of, text_on_wire
from tests.machine import skip_if_it_cannot_play
from tests.serve.running_server import KEY, opened, request_body

pytestmark = pytest.mark.server

ADDER = str(Path(__file__).parents[3] / "examples/adder.py")
SETTINGS = Settings(environment_api_key=KEY, protocols=("all",), gold=True, grace_seconds=0)
PLAYED = {
    (ADDER, "adder"): ("random", "gold"),
    ("crafter", "crafter"): ("random", "scripted"),
    ("math", "math"): ("random", "gold"),
    ("math", "sums"): ("random", "gold"),
    ("python_sandbox", "python_sandbox"): ("random", "gold"),
    ("web", "web"): ("gold",),
}
"""Bundled environments, and who chooses the actions."""


class Places:
    """A server for each app, started when it is needed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._places: dict[str, Place] = {}

    def of(self, reference: str) -> Place:
        if reference not in self._places:
            running = self._stack.enter_context(opened(SETTINGS, serves=find_app(reference)))
            self._places[reference] = Place(running, reference)
        return self._places[reference]


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as variables:
        variables.setenv("ENVIRONMENT_API_KEY", KEY)
        yield Places(stack)


def compare(place: Place, environment: str, policy: str, seed: int) -> None:
    body = request_body(environment, policy, seed)
    rollout = place.web.post("/rollout", json=body, timeout=300).raise_for_status().json()
    (trajectory,) = rollout["trajectories"]
    episode = episode_of(rollout)
    seen = {name: driver(place, episode) for name, driver in DRIVERS.items()}
    first = seen["sessions"]
    assert first.observations == [
        text_on_wire(trajectory["trace"]["initial_observation"]),
        *(text_on_wire(step["obs"]) for step in trajectory["steps"]),
    ]
    assert first.digest == rollout["digest"]
    assert first.ends == [False] * (len(episode.calls) - 1) + [True]
    assert sum(reward or 0.0 for reward in first.rewards) == pytest.approx(rollout["reward"])
    for name, other in seen.items():
        assert (name, other) == (name, first)
    words = place.running.service.spec.environments[environment].text_action
    if words is None or all(tool != words.name for tool, _ in episode.calls):  # there, words end the agent's run
        agent = by_nemo(place, episode)
        assert [text.rstrip() for text in first.observations[1:]] == [text.rstrip() for text in agent.observations]
        assert (agent.digest, agent.rewards) == (rollout["digest"], [rollout["reward"]])


def seeds_of(place: Place, environment: str) -> st.SearchStrategy[int]:
    spec = place.running.service.spec.environments[environment]
    split = spec.split_names[0]
    seeds = spec.splits[split] if spec.tasks is None else range(len(spec.tasks.rows(split)))
    return st.sampled_from(seeds[:1000])


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize(
    ("reference", "environment"),
    [pytest.param(*played, marks=pytest.mark.browser if "web" in played else ()) for played in PLAYED],
    ids=lambda part: Path(part).stem,
)
@pytest.mark.parametrize("examples", [2, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_every_protocol_plays_the_same_episode(places: Places, reference: str, environment: str, examples: int) -> None:
    skip_if_it_cannot_play(reference)
    place = places.of(reference)

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(policy=st.sampled_from(PLAYED[reference, environment]), seed=seeds_of(place, environment))
    def holds(policy: str, seed: int) -> None:
        compare(place, environment, policy, seed)

    holds()


def test_worker_processes_play_the_same_episode(places: Places) -> None:
    with opened(SETTINGS, workers=1, serves=find_app(ADDER)) as running:
        compare(Place(running, ADDER), "adder", "random", 3)
