"""`from_openenv` and `from_ors` at our own protocols on a real server; mistakes in its URL and key."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from taskapp_kit import DeclarationError, Image, Step, TaskApp, Text, action
from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import Unavailable
from taskapp_kit.interop.openenv import from_openenv
from taskapp_kit.interop.ors import from_ors
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.testing import Rollout, play
from tests.serve.running_server import PNG

pytestmark = pytest.mark.server
KEY = "round-trip-key-88f1"
SETTINGS = Settings(environment_api_key=KEY, protocols=("openenv", "ors"))
LIBRARIES = ("openenv", "ors")

rooms = TaskApp("rooms")


@rooms.environment("rooms", splits={"train": range(100)}, max_steps=5)
class Rooms:
    """Two actions, pictures, rewards that are absent."""

    def __init__(self, size: int = 3) -> None:
        self.size = size

    def reset(self, seed: int) -> list[Any]:
        self.at, self.goal = 0, 1 + seed % self.size
        return [Text(f"the goal is {self.goal}"), Image(PNG)]

    @action
    def walk(self, way: Literal["left", "right"]) -> Step:
        """Walk."""
        self.at += 1 if way == "right" else -1
        over = self.at == self.goal
        return Step(f"at {self.at}", reward=1.0 if over else None, terminated=over, info={"at": self.at})

    @action
    def look(self, far: bool = False) -> list[Any]:
        """Look."""
        return [Text("far" if far else "near"), Image(PNG)]


def imported(library: str, url: str, environment: str, **options: Any) -> Any:
    """The class of an environment of the server."""
    options.setdefault("headers", {"X-API-Key": "SERVER_KEY"})
    if library == "ors":
        return from_ors(url, environment=environment, **options)
    return from_openenv(f"{url}/openenv/{environment}", **options)


def app_of(made: Any, max_steps: int = 40) -> TaskApp:
    app = TaskApp("of-a-server")
    app.environment("it", splits=getattr(made, "splits", None) or {"train": range(200)}, max_steps=max_steps)(made)
    return app


def seen(observation: Any) -> list[Any]:
    blocks = observation if isinstance(observation, list) else [observation]
    return [block.png if isinstance(block, Image) else block for block in blocks]


def compare(here: Rollout, there: Rollout) -> None:
    """The last step at a protocol of ours adds the outcome, so that the rewards sum to the episode's."""
    first, expected = seen(here.trajectory.initial), seen(there.trajectory.initial)
    for shown, block in zip(first[-len(expected) :], expected, strict=True):
        assert shown == block or shown.endswith(f"\n\n{block}"), "behind the instructions, where a prompt has them"
    ours, theirs = here.trajectory.steps, there.trajectory.steps
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.tool, mine.args, mine.terminated) == (other.tool, other.args, other.terminated)
        assert seen(mine.observation) == seen(other.observation)
    assert [step.reward or 0.0 for step in ours[:-1]] == [step.reward or 0.0 for step in theirs[:-1]]
    assert here.reward == pytest.approx(there.reward) and here.trajectory.status == there.trajectory.status


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with BackgroundServer(build(find_app("examples/adder.py"), SETTINGS)) as running:
        yield running.url


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_round_trip_plays_the_same_episodes(
    library: str, server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SERVER_KEY", KEY)
    sample: Any = lambda rng: {"amount": rng.randint(1, 3)}  # noqa: E731
    options = {"tool": "add", "sample": sample} if library == "openenv" else {"sample": {"add": sample}}
    theirs = find_app("examples/adder.py")
    app = app_of(imported(library, server, "adder", **options))
    spec = app.freeze().environments["it"]
    assert library == "openenv" or spec.splits == {"train": range(100), "test": range(100, 120)}
    declared = theirs.freeze().environments["adder"].actions["add"].tool
    assert spec.actions["add"].tool.parameters == declared.parameters
    rewards = set()
    for seed in (*range(6), 100, 107):
        ops = [{"type": "env", "tool": "add", "args": {"amount": 1 + (seed + turn) % 3}} for turn in range(20)]
        rollout = play(app, seed=seed, ops=ops)
        compare(rollout, play(theirs, seed=seed, ops=ops))
        assert play(app, seed=seed, ops=ops).digest == rollout.digest
        rewards.add(rollout.reward)
    assert len(rewards) > 1
    refused = play(app, seed=0, ops=[{"type": "env", "tool": "add", "args": {"amount": 9}}])
    assert refused.trajectory.steps[0].refused
    assert play(app, seed=3, policy="random").trajectory.length > 0
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith("uvicorn")]
    assert ours and not any(KEY in message for message in ours)


@pytest.mark.parametrize("library", LIBRARIES)
def test_several_actions_images_and_settings_round_trip(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    walk = {"type": "env", "tool": "walk", "args": {"way": "right"}}
    look = {"type": "env", "tool": "look", "args": {"far": True}}
    ops = [walk, look, walk, walk, walk]
    configs: list[dict[str, Any]] = [{"size": size} for size in (1, 3, 4)] if library == "openenv" else [{}]
    with BackgroundServer(build(rooms, SETTINGS)) as running:
        options = {"configurable": {"size": 3}} if library == "openenv" else {}
        app = app_of(imported(library, running.url, "rooms", **options), max_steps=5)
        for config in configs:
            for seed in (1, 2):
                rollout = play(app, seed=seed, ops=ops, config=config)
                compare(rollout, play(rooms, seed=seed, ops=ops, config=config))
        assert rollout.trajectory.steps[0].info["info"] == {"at": 1}
        state = rollout.trajectory.final_state
        assert library == "ors" or state["state"]["step_count"] == rollout.trajectory.length
        assert KEY not in json.dumps([step.info for step in rollout.trajectory.steps])


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("address", "headers", "found"),
    [
        ("", {"X-API-Key": "SERVER_KEY"}, "HTTP 401"),
        ("", {"X-API-Key": "sk-sentinel"}, "the name of an environment variable"),
        ("http://key:sentinel@127.0.0.1", {}, "has a key in its URL"),
        ("ws://here", {}, "ws://here"),
        ("http://127.0.0.1:9", {}, "127.0.0.1:9"),
    ],
)
def test_invalid_url_or_key_is_a_problem_of_the_app(
    server: str, library: str, address: str, headers: dict[str, str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", "wrong-sentinel-key")
    with pytest.raises(DeclarationError, match=found) as refused:
        app_of(imported(library, address or server, "adder", headers=headers)).freeze()
    assert "sentinel" not in str(refused.value)


@pytest.mark.parametrize("library", LIBRARIES)
def test_unset_variable_is_named(server: str, library: str) -> None:
    with pytest.raises(Unavailable, match="ABSENT_KEY"):
        imported(library, server, "adder", headers={"X-API-Key": "ABSENT_KEY"})


def test_unknown_environments_and_missing_tools_are_reported(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    for environment, options in (("subtracter", {}), ("adder", {"sample": {"subtract": lambda rng: {}}})):
        with pytest.raises(DeclarationError, match="subtract"):
            app_of(imported("ors", server, environment, **options)).freeze()
