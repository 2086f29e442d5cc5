"""Environments as services: the same episodes as `/rollout`, the same refusals and failures, on both backends."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import TaskApp
from taskapp_kit.declare.discovery import find_app, missing_packages
from taskapp_kit.errors import (
    EndpointRaised,
    ReplicaDied,
    ReplicaStartFailed,
    RequestError,
    RolloutFailed,
    ServiceError,
)
from taskapp_kit.records.events import content_to_json
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.policy.builtin import PolicyError
from taskapp_kit.rollout.service import Service
from taskapp_kit.services.environment_service import EnvironmentActor, EnvironmentStep
from taskapp_kit.testing import MockModel
from taskapp_kit.wire.chat.conversation import ChatReply
from taskapp_kit.wire.rollout import RolloutRequest
from tests.rollouts import a_request, app_from
from tests.services.backends import BACKENDS

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]

WALK = """
app = TaskApp("walk", version="1.0.0", reward=Blend(env=1.0, event=0.5, outcome=2.0))

@app.environment("walk", splits={"train": range(10)}, max_steps=5)
class Walk:
    def __init__(self, to: int = 3, undefined: bool = False, breaks: str = "") -> None:
        self.to, self.breaks = to, breaks

    def reset(self, seed: int) -> Any:
        self.at = 0
        if self.breaks == "reset":
            raise RuntimeError("no")
        return {"at": 0, "to": self.to}

    @action(noop={"by": 0})
    def go(self, by: int) -> Step:
        '''Walk.'''
        if by < 0:
            raise InvalidAction("not backwards")
        if self.breaks == "step":
            raise RuntimeError("no")
        self.at += by
        return Step([Text(f"at {self.at}"), Image(PNG)], float(by), terminated=self.at >= self.to, info={"at": self.at})

@app.environment("other", splits={"train": range(3)}, max_steps=1)
class Other(Walk):
    pass

@app.rubric(of="events", weight=2.0)
def bold(step) -> float:
    return 1.0 if step.args.get("by", 0) > 1 else 0.0

@app.rubric
def there(trajectory: Trajectory, config: dict[str, Any]) -> float | None:
    return None if config.get("undefined") else float(trajectory.status == "terminated")
"""
PICTURE = """import base64
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
"""


def walk(folder: Path) -> TaskApp:
    return app_from(folder, PICTURE + WALK)


def actor(app: TaskApp, environment: str | None = None) -> EnvironmentActor:
    """What a replica has for a session, without a replica."""
    (), kwargs = EnvironmentActor.sent_arguments((app, environment), {})
    return EnvironmentActor(**kwargs)


async def random_rollout(app: TaskApp, **env: Any) -> Rollout:
    service = Service(app)
    try:
        return await service.rollout(a_request("random", **env))
    finally:
        await service.close()


async def driven(session: Any, rollout: Rollout, **env: Any) -> list[EnvironmentStep]:
    """The steps of a session that is given the actions of a rollout, and its seed."""
    observation = await session.reset.route(**env)
    initial = rollout.trajectory.initial
    assert isinstance(initial, list) or observation == initial
    steps = []
    for turn in rollout.trajectory.turns:
        answer = turn.answer
        action: Any = [{call.tool: call.args} for call in answer.tool_calls] or answer.output
        steps.append(await session.step.route(action))
    return steps


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name",
    [
        "examples/adder.py",
        pytest.param("crafter", marks=pytest.mark.exhaustive),
        pytest.param("math", marks=pytest.mark.exhaustive),
    ],
)
async def test_the_same_seed_and_actions_are_the_same_episode_as_rollout(name: str, backend: str) -> None:
    if lacks := missing_packages(name):
        pytest.skip(f"needs {', '.join(lacks)}: pip install 'taskapp-kit[{name}]'")
    app = find_app(str(ROOT / name) if name.endswith(".py") else name)
    rollouts = [(seed, await random_rollout(app, seed=seed)) for seed in (3, 4)]
    async with app.as_service(backend=backend) as service:
        for seed, rollout in rollouts:
            async with service.session() as session:
                steps = await driven(session, rollout, seed=seed)
            episode = steps[-1].episode
            assert episode is not None
            assert (episode.digest, episode.status, episode.reward) == (
                rollout.digest, rollout.status, rollout.reward,
            )  # fmt: skip
            assert math.isclose(
                math.fsum(step.reward or 0.0 for step in steps), rollout.reward or 0.0, rel_tol=1e-9, abs_tol=1e-9
            )


@pytest.mark.process
async def test_loop_of_the_guide_with_concurrent_sessions(tmp_path: Path) -> None:
    async with walk(tmp_path).as_service("walk", num_replicas=1, sessions_per_replica=2) as service:
        with pytest.raises(ServiceError, match="without a session"):
            await service.reset.route()
        async with service.session() as one, service.session() as other:
            observations = [await one.reset.route(seed=1), await other.reset.route(seed=2, config={"to": 100})]
            assert observations == [{"at": 0, "to": 3}, {"at": 0, "to": 100}]
            await other.step.route({"go": {"by": 1}})
            total, done = 0.0, False
            while not done:
                observation, reward, done = await one.step.route({"go": {"by": 2}})
                total += reward
            assert observation[0] == {"type": "text", "text": "at 4"}
            assert observation[1]["image_url"]["url"].startswith("data:image/png;base64,")
            assert total == 4.0 + 0.5 * 4.0 + 2.0
            step = await other.step.route({"go": {"by": 2}})
            assert (step.info, step.turn, step.done) == ({"at": 3}, 2, False)
            await other.close.route()
        assert [replica.sessions for replica in service.stats().replicas] == [0]
        async with service.session() as one:
            with pytest.raises(EndpointRaised) as caught:
                await one.reset.route(seed=1, config={"breaks": "reset"})
            assert caught.value.error_type == "RolloutFailed"
            assert "at the boundary environment (environment_raised)" in caught.value.error_text
            assert await one.reset.route(seed=1) == {"at": 0, "to": 3}


async def test_steps_finish_and_what_an_episode_is(tmp_path: Path) -> None:
    walker = actor(walk(tmp_path))
    assert await walker.reset(index=2, split="train", config={"to": 9}) == {"at": 0, "to": 9}
    described = walker.describe()
    assert (described["environment"], described["split"], described["seed"]) == ("walk", "train", 2)
    assert (
        [one["name"] for one in described["actions"]] == ["go"] == [t["function"]["name"] for t in described["tools"]]
    )
    json.dumps(described)
    first = await walker.step([{"go": {"by": 1}}, {"tool": "go", "args": {"by": 2}}])
    assert (first.reward, first.parts, first.refused) == (4.0, {"env": 3.0, "event": 1.0}, None)
    refused = await walker.step({"go": {"by": -1}})
    assert (refused.observation, refused.refused, refused.reward) == ("not backwards", "not backwards", 0.0)
    last = await walker.finish()
    assert (last.terminated, last.truncated, last.done, last.reward) == (False, True, True, 0.0)
    assert last.episode is not None and (last.episode.status, last.episode.stop_reason) == ("truncated", "finished")
    assert last == await walker.finish()
    await walker.close()


async def test_an_undefined_reward_is_none_and_a_failure_an_error_with_its_boundary(tmp_path: Path) -> None:
    walker = actor(walk(tmp_path))
    await walker.reset(seed=0, config={"undefined": True})
    _, reward, done = await walker.step({"go": {"by": 3}})
    assert (reward, done) == (None, True)
    await walker.reset(seed=0, config={"breaks": "step"})
    with pytest.raises(RolloutFailed) as caught:
        await walker.step({"go": {"by": 3}})
    assert (caught.value.boundary, caught.value.failure.code) == ("environment", "environment_raised")
    with pytest.raises(RolloutFailed):
        await walker.finish()
    assert await walker.reset(seed=0) == {"at": 0, "to": 3}
    await walker.close()


async def test_what_is_no_action_is_refused_before_the_environment(tmp_path: Path) -> None:
    walker = actor(walk(tmp_path), "other")
    await walker.reset(seed=0)
    with pytest.raises(PolicyError):
        await walker.step(7)
    with pytest.raises(RequestError):
        await walker.reset(seed=99)
    await walker.close()


WRITTEN = ["I will go.", '{"go": {"by": 1}}', "<think>go far</think>\n```json\n{\"tool\": \"go\", \"args\": {\"by\": -1}}\n```",
           "go(by=", "", '{"fly": {}}', '{"go": {"by": 2}}']  # fmt: skip


async def test_words_are_read_as_those_of_a_model_in_output_mode_text(tmp_path: Path) -> None:
    app = app_from(tmp_path, PICTURE + WALK.replace("max_steps=5", "max_steps=20"))
    service, answers = Service(app), iter(WRITTEN)

    async def answer(_: dict[str, Any]) -> ChatReply:
        return ChatReply({"role": "assistant", "content": next(answers)})

    body = a_request(None, seed=0).model_dump()
    body["policy"] = {"config": {"inference_url": "http://caller.invalid/v1"}, "output_mode": "text"}
    rollout = await service.rollout(RolloutRequest.model_validate(body), answers=answer)
    walker = actor(app)
    await walker.reset(seed=0)
    steps = [await walker.step(words) for words in WRITTEN]
    assert [step.refused for step in steps] == [turn.steps[-1].refused for turn in rollout.trajectory.turns]
    assert [step.observation for step in steps if step.refused] == [
        content_to_json(step.observation) for step in rollout.trajectory.steps if step.refused
    ]
    assert steps[-1].episode is not None
    assert (steps[-1].episode.reward, steps[-1].episode.metrics) == (rollout.reward, {
        **rollout.metrics, **rollout.scorecard.metrics,
    })  # fmt: skip
    await walker.close()
    await service.close()


def test_an_unknown_environment_is_named_before_a_process_starts(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="Did you mean 'walk'"):
        walk(tmp_path).as_service("wlak")


HANGS = """
import time
app = TaskApp("hangs", version="1.0.0")

@app.environment("hangs", splits={"train": range(10)}, step_timeout_seconds=0.05)
class Hangs:
    def reset(self, seed: int) -> str:
        return "at 0"

    @action
    def go(self, seconds: float) -> Step:
        '''Wait.'''
        time.sleep(seconds)
        return Step("at 1", 1.0, terminated=True)
"""


async def step_of(service: Any, seconds: float) -> EnvironmentStep:
    async with service.session() as session:
        await session.reset.route(seed=0)
        step: EnvironmentStep = await session.step.route({"go": {"seconds": seconds}})
        return step


@pytest.mark.ci
@pytest.mark.process
async def test_replica_that_dies_or_has_stuck_threads_is_restarted(tmp_path: Path) -> None:
    async with app_from(tmp_path, HANGS).as_service(sessions_per_replica=9) as service:
        async with service.session() as session:
            await session.reset.route(seed=0)
            os.kill(int(service.stats().replicas[0].place.removeprefix("pid ")), signal.SIGKILL)
            with pytest.raises(ReplicaDied):
                await session.step.route({"go": {"seconds": 0}})
        assert (await step_of(service, 0)).reward == 1.0
        hung = await asyncio.gather(*(step_of(service, 60) for _ in range(8)), return_exceptions=True)
        for error in hung:
            assert isinstance(error, EndpointRaised) and "boundary timeout" in error.error_text
        with pytest.raises(ReplicaDied):
            async with asyncio.timeout(60):
                while True:  # threads count as stuck a moment later
                    await step_of(service, 0)
        assert (await step_of(service, 0)).reward == 1.0
        assert service.stats().replicas[0].restarts == 2


JUDGED = """
app = TaskApp("judged", version="1.0.0")
app.tasks("judged", prompt="{question}", train=[{"question": "Why does it rain?"}])

@app.judge(weight=1)
def good(answer_text: str) -> str:
    '''Is it good?'''
    return answer_text
"""
KEY = "key-of-the-judge-alone"


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.server
async def test_a_judge_has_the_key_that_the_options_give_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_from(tmp_path, JUDGED)
    with pytest.raises(ReplicaStartFailed, match="TASKAPP_JUDGE_URL"):
        await app.as_service().start()
    with MockModel(behaviour="judge", score=0.75, api_key=KEY) as model:
        monkeypatch.setenv("TASKAPP_JUDGE_KEY", KEY)  # of this process, which replicas do not get
        variables = {"TASKAPP_JUDGE_URL": model.url, "TASKAPP_JUDGE_MODEL": "mock"}
        async with app.as_service(environment=variables) as service, service.session() as session:
            assert await session.reset.route(seed=0) == "Why does it rain?"
            with pytest.raises(EndpointRaised) as caught:
                await session.step.route("Clouds get heavy.")
            assert "at the boundary scoring (judge_failed)" in caught.value.error_text
        async with app.as_service(environment={**variables, "TASKAPP_JUDGE_KEY": KEY}) as service:
            async with service.session() as session:
                await session.reset.route(seed=0)
                _, reward, done = await session.step.route("Clouds get heavy.")
            assert (reward, done) == (0.75, True)
