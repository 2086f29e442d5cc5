"""Rewards as services: functions, a reward model, an app's rubrics; alone, and asked by the rubrics of another app."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.declare.discovery import load_file
from taskapp_kit.errors import BadArgument, ConfigError, EndpointRaised, RolloutFailed, ServiceError
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.service import Service, ServiceSettings
from taskapp_kit.services import AppReward, RewardActor, RewardModel
from taskapp_kit.testing import MockModel
from tests.rollouts import a_request, app_from
from tests.services.backends import both
from tests.services.reward_endpoint import reward_endpoint

pytestmark = pytest.mark.anyio


FUNCTIONS = load_file(Path(__file__).with_name("reward_functions.py"))


class Length(RewardActor):
    """Longer is better, up to a limit."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def reward(self, prompt: str, response: str, target: Any) -> float:
        return min(1.0, len(response) / self.limit)


@both
async def test_a_function_as_a_service(backend: str) -> None:
    async with RewardActor.options(num_replicas=2, backend=backend).as_service(FUNCTIONS.correct) as reward:
        assert await reward.evaluate_response.route(prompt="2+2?", response="4", target="4") == 1.0
        assert await reward.evaluate_response.route("2+2?", "5", "4") == 0.0
        assert await reward.evaluate.route("2+2?", "5") is None
        with pytest.raises(EndpointRaised) as caught:
            await reward.evaluate_response.route("2+2?", "fail", "4")
        assert (caught.value.error_type, caught.value.error_text) == ("ValueError", "no verdict")
        assert await reward.evaluate_response.fanout("2+2?", "4", "4") == [1.0, 1.0]


async def test_a_subclass_and_asynchronous_functions() -> None:
    assert await Length(10).evaluate_response("", "12345") == 0.5
    assert await RewardActor(FUNCTIONS.later).evaluate_response("", "", 3) == 3.0
    for wrong in ("1.0", math.nan, math.inf, [1]):
        with pytest.raises(ServiceError, match="expected a"):
            await RewardActor(FUNCTIONS.later).evaluate_response("", "", wrong)


def test_without_a_function_or_with_one_that_no_process_finds() -> None:
    with pytest.raises(BadArgument, match="no reward function"):
        RewardActor.as_service()
    with pytest.raises(BadArgument, match="cannot be the function of a service"):
        RewardActor.as_service(lambda prompt, response, target: 1.0)


KEY = "key-of-the-reward-model"


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.server
async def test_a_reward_model_behind_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(body: dict[str, Any]) -> Any:
        said = body["messages"][-1]["content"]
        return {"data": [{"label": "LABEL_0", "probs": [0.25]}]} if said == "good" else {"score": said}

    monkeypatch.setenv("TASKAPP_REWARD_KEY", "another-key-of-this-process")
    with reward_endpoint(answer) as (url, asked):
        variables = {"TASKAPP_REWARD_URL": url, "TASKAPP_REWARD_MODEL": "rm", "TASKAPP_REWARD_KEY": KEY}
        async with RewardModel.options(environment=variables).as_service(scale=(0.0, 1.0)) as reward:
            assert await reward.evaluate_response.route("Why?", "good") == 0.25
            assert await reward.evaluate.route([{"role": "user", "content": "Why?"}], "good") == 0.25
            with pytest.raises(EndpointRaised, match="response is invalid") as caught:
                await reward.evaluate_response.route("Why?", "a text")
            assert caught.value.error_type == "ServiceError" and KEY not in str(caught.value)
        conversation = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "good"}]
        assert asked[:2] == [({"model": "rm", "messages": conversation}, f"Bearer {KEY}")] * 2
        del asked[:]
        async with RewardModel.as_service(url) as reward:
            assert await reward.evaluate_response.route("Why?", "good") == 0.25
        assert asked == [({"messages": conversation}, None)]


class Pairs(RewardModel):
    """Sends what vLLM's `/score` reads."""

    def reading(self, prompt: Any, response: str, target: Any) -> Any:
        return {"text_1": prompt, "text_2": response}


@pytest.mark.server
async def test_what_a_reward_model_reads_is_a_method() -> None:
    with reward_endpoint(lambda body: {"data": [{"score": 0.5}]}) as (url, asked):
        pairs = Pairs(url, "rm")
        assert await pairs.evaluate_response("Why?", "So.") == 0.5
        await pairs.close()
    assert asked == [({"model": "rm", "text_1": "Why?", "text_2": "So."}, None)]


ASKS = """
from taskapp_kit.services import RewardActor

app = TaskApp("asks", version="1.0.0")
app.tasks("asks", prompt="{question}", train=[{"question": "2+2?", "answer": "4"}, {"question": "3+3?", "answer": "?"}])

def correct(prompt, response, target):
    if target == "?":
        raise ValueError("no verdict")
    return 1.0 if response == target else 0.25

reward = RewardActor.as_service(correct)

@app.rubric
def right(answer_text: str, task) -> float:
    '''The answer is right.'''
    return reward.evaluate_response.route_sync("", answer_text, task["answer"])

@app.rubric
async def right_again(answer_text: str, task) -> float:
    '''The answer is right.'''
    return await reward.evaluate.route("", answer_text, task["answer"])
"""


async def answered(service: Service, seed: int, words: str) -> Rollout:
    return await service.rollout(a_request("constant", action=words, seed=seed))


@pytest.mark.ci(keep=1)
@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
async def test_rubrics_ask_a_service_in_threads_and_in_worker_processes(tmp_path: Path, workers: int) -> None:
    service = Service(app_from(tmp_path, ASKS), ServiceSettings(workers=workers))
    try:
        words = ["4", "5"] * 4
        rollouts = await asyncio.gather(*(answered(service, 0, said) for said in words))
        assert [rollout.reward for rollout in rollouts] == [1.0 if said == "4" else 0.25 for said in words]
        with pytest.raises(RolloutFailed) as caught:
            await answered(service, 1, "4")
        assert (caught.value.boundary, caught.value.failure.code) == ("scoring", "criterion_failed")
    finally:
        await service.close()


JUDGED = """
app = TaskApp("judged", version="1.0.0")
app.tasks("judged", prompt="{question}", train=[{"question": "2+2?", "answer": "4"}, {"question": "3+3?", "answer": "6"}],
          test=[{"question": "1+1?", "answer": "2"}])

@app.environment("walk", splits={"train": range(3)})
class Walk:
    def reset(self, seed: int) -> str:
        return "at 0"

    @action
    def go(self) -> Step:
        '''Walk.'''
        return Step("at 1")

@app.rubric(environment="judged")
def right(answer_text: str, task) -> float | None:
    return None if answer_text == "?" else float(answer_text == task["answer"])

@app.judge(weight=1, environment="judged")
def kind(answer_text: str) -> str:
    '''Is it kind?'''
    return answer_text
"""


@pytest.mark.process
@pytest.mark.server
async def test_an_apps_rubrics_and_judges_as_a_service(tmp_path: Path) -> None:
    app = app_from(tmp_path, JUDGED)
    with MockModel(behaviour="judge", score=0.5, api_key=KEY) as model:
        variables = {"TASKAPP_JUDGE_URL": model.url, "TASKAPP_JUDGE_MODEL": "mock", "TASKAPP_JUDGE_KEY": KEY}
        async with AppReward.options(environment=variables).as_service(app) as reward:
            values = [
                await reward.evaluate_response.route("2+2?", "4", 0),
                await reward.evaluate_response.route("3+3?", "4", target={"seed": 1}),
                await reward.evaluate_response.route("1+1?", "2", target={"seed": 0, "split": "test", "config": {}}),
                await reward.evaluate_response.route("2+2?", "?", 0),
            ]
            assert values == [0.75, 0.25, 0.75, 0.5]
            with pytest.raises(EndpointRaised, match="Expected the episode's seed"):
                await reward.evaluate_response.route("2+2?", "4", "4")
    with pytest.raises(ConfigError, match="several turns"):
        AppReward.as_service(app, "walk")
