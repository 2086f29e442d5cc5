"""A job that asks for what its task app does not have is refused when it is submitted, with the task app's own lists."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.jobs.server.exchange import APP_KEY, Backend, ScriptedApp, a_config, a_job, backend, played, serving

pytestmark = pytest.mark.server

app = TaskApp("two")


@app.environment("counter", splits={"train": range(10), "test": range(100, 110)}, max_steps=3)
class Counter:
    """Counts."""

    def __init__(self, size: int = 3, speed: float = 1.0) -> None:
        self.size = size

    def reset(self, seed: int) -> str:
        return "0"

    @action
    def add(self) -> Step:
        """Adds 1."""
        return Step("1", reward=1.0, terminated=True)


app.tasks("quiz", row=None, prompt="{ask}", train=[{"ask": "a?"}, {"ask": "b?"}], test=[{"ask": "c?"}])


@app.policy("careful", environment="counter")
def careful(observation: Any) -> dict[str, Any]:
    """Adds."""
    return {"add": {}}


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[str, Backend]]:
    with (
        BackgroundServer(build(app, Settings(environment_api_key=APP_KEY), exposure="local")) as server,
        backend() as back,
    ):
        yield server.url, back


def refused(answer: httpx.Response) -> tuple[str, ...]:
    """The sentences of the refusal, one for each thing that is missing."""
    assert answer.status_code == 422, answer.text
    error = answer.json()["detail"]["error"]
    assert error["code"] == "invalid_config"
    return tuple(field["message"] for field in error["fields"])


def config(**sections: Any) -> dict[str, Any]:
    rollout = {"env_name": "counter", "policy_name": "careful", **sections.pop("rollout", {})}
    return a_config(rollout=rollout, **sections)


MISSING: dict[str, tuple[dict[str, Any], list[tuple[str, ...]]]] = {
    "environment": ({"rollout": {"env_name": "countr"}}, [("rollout.env_name", "counter, quiz", "Did you mean 'counter'")]),
    "policy": (
        {"rollout": {"policy_name": "carefull"}},
        [("rollout.policy_name", "random", "Did you mean 'careful'", "inference_url")],
    ),
    "policy of another environment": (
        {"rollout": {"env_name": "quiz", "policy_name": "careful"}},
        [("rollout.policy_name", "constant")],
    ),
    "policy in the config, beside a model": (
        {"rollout": {"policy_config": {"policy": "nobody", "inference_url": "http://127.0.0.1:9/v1"}}},
        [("rollout.policy_config.policy", "careful")],
    ),
    "seeds": (
        {"data": {"seeds": [9, 10, 99, 105]}, "evaluation": {"seeds": [110], "instances": 1, "every_n_iters": 1}},
        [("data.seeds has 10, 99;", "train 0 to 9", "test 100 to 109"), ("evaluation.seeds has 110;",)],
    ),
    "seeds of another split": (
        {"data": {"seeds": [1]}, "rollout": {"env_config": {"split": "test"}}},
        [("data.seeds has 1;", "test 100 to 109")],
    ),
    "rows": (
        {"data": {"seeds": [1, 2]}, "rollout": {"env_name": "quiz", "policy_name": "constant"}},
        [("data.seeds has 2;", "train 0 to 1")],
    ),
    "split": ({"rollout": {"env_config": {"split": "trian"}}}, [("rollout.env_config.split", "Did you mean 'train'")]),
    "config": (
        {"rollout": {"env_config": {"sice": 4, "split": "train", "index": 0}}},
        [("rollout.env_config ", "'sice'", "size, speed", "Did you mean 'size'")],
    ),
    "several": (
        {"rollout": {"policy_name": "nobody", "env_config": {"sice": 4}}, "data": {"seeds": [50]}},
        [("rollout.policy_name",), ("data.seeds",), ("rollout.env_config",)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_what_the_task_app_does_not_have_is_refused_by_name(name: str, both: tuple[str, Backend]) -> None:
    url, back = both
    sections, expected = MISSING[name]
    sentences = refused(back.http.post("/rl/jobs", json=a_job(url, config(**sections))))
    assert len(sentences) == len(expected), sentences
    for sentence, parts in zip(sentences, expected, strict=True):
        assert all(part in sentence for part in parts), sentence


KNOWN: dict[str, dict[str, Any]] = {
    "all of it": {"rollout": {"env_config": {"size": 4, "split": "test", "difficulty": 1}}, "data": {"seeds": [100]}},
    "a label beside a model": {"rollout": {"policy_name": "my-model"}, "policy": {"inference_url": "http://127.0.0.1:9/v1"}},
    "rows with a tag": {"rollout": {"env_name": "quiz", "policy_name": "constant", "env_config": {"tags": "easy"}}},
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_what_it_has_is_taken(name: str, both: tuple[str, Backend]) -> None:
    url, back = both
    job_id = back.submit(url, config(**KNOWN[name]))
    back.http.post(f"/rl/jobs/{job_id}/cancel")


def test_a_job_that_names_no_player_needs_random() -> None:
    scripted = ScriptedApp()
    scripted.info["inference"]["policies"].remove("random")
    with serving(scripted.app()) as url, backend() as back:
        body = {"model": "Qwen/Qwen3-0.6B", "endpoint_base_url": url}
        assert len(refused(back.http.post("/rl/jobs", json=body))) == 1


def test_a_task_app_that_lists_nothing_is_asked_for_rollouts() -> None:
    scripted = ScriptedApp(info={"task": {"name": "of another maker"}})
    status, _ = played(scripted, a_config(rollout={"env_config": {"level": 3}}, data={"seeds": [123456]}))
    assert status["status"] == "succeeded", status


def test_members_whose_names_are_not_taken_are_no_reason_to_refuse() -> None:
    for names in (["level", "x" * 200], [f"member_{number}" for number in range(1001)]):
        scripted = ScriptedApp()
        scripted.info["config_schema"] = {"properties": {name: {} for name in names}, "additionalProperties": False}
        status, _ = played(scripted, a_config(rollout={"env_config": {names[0]: 3}}))
        assert status["status"] == "succeeded", status


class Starting(ScriptedApp):
    """Does not answer /task_info the first time."""

    times = 0

    async def _task_info(self, request: Request) -> Response:
        self.times += 1
        if self.times == 1:
            await asyncio.sleep(60)
        return await super()._task_info(request)


@pytest.mark.ci
def test_a_task_app_that_does_not_answer_in_time_is_asked_when_the_job_begins() -> None:
    scripted = Starting()
    with serving(scripted.app()) as url, backend() as back:
        back.state.jobs.check_seconds = 0.2
        status = back.ended(back.submit(url, a_config(rollout={"policy_name": "scriptd"})))
    assert status["status"] == "failed"
    assert "rollout.policy_name" in status["error"] and "Did you mean 'scripted'" in status["error"]
    assert scripted.requests == []


def test_a_job_that_is_known_is_given_again_without_asking() -> None:
    with backend() as back:
        with serving(ScriptedApp().app()) as url:
            first = back.submit(url, **{"Idempotency-Key": "once"})
            back.ended(first)
        assert back.submit(url, **{"Idempotency-Key": "once"}) == first
