"""`from_openenv` on environments that OpenEnv's own package serves, each release in a separate environment."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from taskapp_kit import RolloutFailed, TaskApp
from taskapp_kit.interop.openenv import from_openenv
from taskapp_kit.testing import play
from tests.interop.peer_programs import framework_server
from tests.interop.shared.adapted_apps import wrong_findings

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.server]


@pytest.fixture(scope="module", params=["openenv-0.10.0", "openenv-core-0.3.0"])
def served(request: pytest.FixtureRequest) -> Iterator[str]:
    """The base URL of a release's own server."""
    with framework_server(request.param, "openenv_served.py") as url:
        yield url


def app_of(url: str, max_steps: int = 4, **options: Any) -> TaskApp:
    app = TaskApp("theirs")
    app.environment("it", splits={"train": range(1000), "test": range(1000, 1100)}, max_steps=max_steps)(
        from_openenv(url, **options)
    )
    return app


def test_openenv_init_environment_echoes_and_rewards(served: str) -> None:
    app = app_of(f"{served}/echo", sample=lambda rng: {"message": "a" * rng.randint(0, 20)})
    rollout = play(app, seed=3, action={"step": {"message": "hello"}})
    assert rollout.trajectory.initial == {"echoed_message": "Echo environment ready!", "message_length": 0}
    assert [step.observation for step in rollout.trajectory.steps] == [
        {"echoed_message": "hello", "message_length": 5}
    ] * 4
    assert [step.reward for step in rollout.trajectory.steps] == [0.5] * 4 and rollout.reward == 2.0
    assert rollout.trajectory.final_state["state"]["step_count"] == 4

    assert "rollout" not in wrong_findings(app)


def test_the_tools_of_an_mcp_environment_are_actions(served: str) -> None:
    app = app_of(f"{served}/tools", rewarded=False)
    app.rubric(lambda trajectory: float(trajectory.length == 4))
    assert set(app.freeze().environments["it"].actions) == {"echo_message", "echo_with_length", "divide"}
    for call, observed in (
        ({"echo_message": {"message": "hi"}}, "hi"),
        ({"echo_with_length": {"message": "hi"}}, '{"message":"hi","length":2}'),
        ({"divide": {"by": 4}}, "0.25"),
        ({"divide": {"by": 0}}, "Error calling tool 'divide': division by zero"),
    ):
        rollout = play(app, seed=0, action=call)
        assert [step.observation for step in rollout.trajectory.steps] == [observed] * 4 and rollout.reward == 1.0
        assert not any(step.refused for step in rollout.trajectory.steps)
    with pytest.raises(RolloutFailed, match=r"sent no reward in 4 steps.*rewarded=False"):
        play(app_of(f"{served}/tools"), seed=0, action={"echo_message": {"message": "hi"}})


def test_seeds_options_ends_and_failures(served: str) -> None:
    app = app_of(f"{served}/counting", 20, configurable={"high": 9, "over": False}, seconds=1.0, open_seconds=20.0)
    one = {"step": {"amount": 1}}
    first, again = play(app, seed=7, action=one), play(app, seed=7, action=one)
    assert first.digest == again.digest and first.reward == 1.0
    assert first.trajectory.status == "terminated" and first.trajectory.length == first.trajectory.initial["target"]
    assert len({play(app, seed=seed, action=one).trajectory.initial["target"] for seed in range(12)}) > 2
    paid_at_reset = play(app, seed=0, action=one, config={"high": 5})
    assert paid_at_reset.reward == 1.25 and paid_at_reset.trajectory.initial["target"] <= 5
    for how, config, sentence in (
        ("raise", {}, "EXECUTION_ERROR"),
        ("null", {}, "sent no reward"),
        ("cut", {}, "sent no reward"),
        ("pay", {"high": 13}, "'reset' with an error"),
        ("pay", {"over": True}, "ended the episode at reset"),
        ("sleep", {}, "did not respond to 'step' within 1 s"),
    ):
        with pytest.raises(RolloutFailed, match=sentence) as failed:
            play(app, seed=1, action={"step": {"amount": 1, "how": how}}, config=config)
        assert failed.value.boundary == "environment" and "secret" not in str(failed.value)
    assert play(app, seed=7, action=one).digest == first.digest, "after the slow step's session has gone"


def test_rollouts_take_turns_with_one_session(served: str) -> None:
    app = app_of(f"{served}/counting", 20, open_seconds=30.0)
    app.freeze()
    with ThreadPoolExecutor(4) as pool:
        rewards = list(pool.map(lambda _: play(app, seed=7, action={"step": {"amount": 1}}).reward, range(4)))
    assert rewards == [1.0] * 4
