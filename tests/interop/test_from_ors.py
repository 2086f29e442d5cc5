"""`from_ors` on an environment that the ORS servers of others serve, each in a separate environment."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from taskapp_kit import RolloutFailed, TaskApp
from taskapp_kit.interop.ors import from_ors
from taskapp_kit.testing import play
from tests.interop.peer_programs import framework_server

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.server]


@pytest.fixture(scope="module", params=["openreward-0.1.167", "ors-sdk-0.1.0"])
def served(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a package's own server."""
    with framework_server(request.param, "ors_served.py", request.param.rpartition("-")[0]) as url:
        yield url


def app_of(url: str, **options: Any) -> TaskApp:
    app = TaskApp("theirs")
    env = from_ors(url, environment="counting", **options)
    app.environment("it", splits=env.splits, max_steps=20)(env)
    return app


def ops(**arguments: Any) -> list[dict[str, Any]]:
    return [{"type": "env", "tool": "add", "args": {"amount": 1, **arguments}}] * 12


def test_tasks_tools_and_rewards(served: str) -> None:
    app = app_of(served)
    spec = app.freeze().environments["it"]
    assert spec.splits == {"train": range(20), "test": range(20, 25)}
    assert set(spec.actions["add"].tool.parameters["properties"]) == {"amount", "how"}
    for seed in (0, 7, 21):
        rollout = play(app, seed=seed, ops=ops())
        target = int(rollout.trajectory.initial.removeprefix("Count to ").rstrip("."))
        assert [step.observation for step in rollout.trajectory.steps] == [
            f"at {count} of {target}" for count in range(1, target + 1)
        ]
        assert rollout.reward == 1.0 + 0.125 * target and rollout.trajectory.status == "terminated"
        assert rollout.trajectory.steps[-1].info == {"count": target}
        assert play(app, seed=seed, ops=ops()).digest == rollout.digest
    long = play(app, seed=0, ops=ops(how="long"))
    assert long.trajectory.steps[0].observation.count(".") == 3000 and long.reward is not None


def test_failures_of_the_server_fail_the_rollout(served: str) -> None:
    app = app_of(served)
    for how, sentence in (("raise", "could not run 'add'"), ("null", "sent no reward")):
        with pytest.raises(RolloutFailed, match=sentence) as failed:
            play(app, seed=1, ops=ops(how=how))
        assert failed.value.boundary == "environment" and "sentinel" not in str(failed.value)
    refused = play(app, seed=1, ops=[{"type": "env", "tool": "add", "args": {"amount": "x"}}, *ops()])
    assert refused.trajectory.steps[0].refused and refused.reward is not None


def test_concurrent_rollouts(served: str) -> None:
    app = app_of(served)
    app.freeze()
    with ThreadPoolExecutor(8) as pool:
        rewards = list(pool.map(lambda _: play(app, seed=7, ops=ops()).reward, range(8)))
    assert len(set(rewards)) == 1 and rewards[0] is not None
