"""The first turn of a job: the task app reaches the gateway, or a line says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.errors import JobError
from taskapp_kit.jobs.server.engine import Event
from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp, TaskAppAddresses
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.train.driver.reachability import check_reachability
from taskapp_kit.train.gateway.gateway_options import GatewayOptions
from taskapp_kit.train.gateway.gateway_server import Gateway
from tests.train.driver.peers import DRIVER, JOB, PLAN
from tests.train.driver.scripted_app import Answer, CallingApp, RolloutAsked, failed
from tests.train.driver.test_context import KEY, app
from tests.train.gateway.peers import RENDERER, ScriptedSampler

pytestmark = pytest.mark.server


def checked(
    url: str,
    sampler: ScriptedSampler,
    options: GatewayOptions | None = None,
    *,
    key: str | None = None,
    ops: Sequence[Any] = PLAN.ops,
    **seconds: float,
) -> Event:
    options = options or GatewayOptions()
    plan = replace(PLAN, ops=ops)

    async def scenario() -> Event:
        with Gateway(
            sampler, RENDERER, max_open_attempts=1, host=options.host, port=options.port, public_url=options.url
        ) as gateway:
            async with OpenedTaskApp(url, key, TaskAppAddresses(local=True), [key] if key else [], 0) as task_app:
                try:
                    return await check_reachability(JOB, plan, task_app, gateway, DRIVER, options, **seconds)
                finally:
                    assert gateway.open_attempts == 0

    return asyncio.run(scenario())


def serving(exposure: Any, allow: tuple[str, ...] = (), store: str | None = None) -> BackgroundServer:
    settings = Settings(environment_api_key=KEY, inference_allow=allow, store=store)
    return BackgroundServer(build(app, settings, exposure=exposure))


def test_one_turn_is_played_and_reported_without_its_token(tmp_path: Path) -> None:
    sampler = ScriptedSampler()
    with serving("local", store=str(tmp_path / "rollouts.db")) as server:
        event = checked(server.url, sampler, key=KEY, ops=["agent", "env"] * 4)
        listed = httpx.get(f"{server.url}/rollouts", headers={"X-API-Key": KEY})
    assert listed.status_code == 200 and listed.json()["rollouts"] == []
    assert len(sampler.calls) == 1
    assert event.type == "rl.gateway.reached"
    assert "/r/" not in str(event)


def test_a_task_app_that_others_reach_refuses_loopback_and_the_line_that_allows_it_does() -> None:
    with serving("public") as server, pytest.raises(JobError) as raised:
        checked(server.url, ScriptedSampler(), key=KEY)
    assert "Start the task app with TASKAPP_INFERENCE_ALLOW=127.0.0.1" in str(raised.value)
    assert "/r/" not in str(raised.value)
    sampler = ScriptedSampler()
    with serving("public", ("127.0.0.1",)) as server:
        checked(server.url, sampler, key=KEY)
    assert len(sampler.calls) == 1


def test_an_address_that_leads_elsewhere_is_named_with_the_place_where_the_gateway_listens() -> None:
    with BackgroundServer(build(app, Settings(environment_api_key=KEY), exposure="local")) as elsewhere:
        options = GatewayOptions(url=elsewhere.url)
        with serving("local") as server, pytest.raises(JobError) as raised:
            checked(server.url, ScriptedSampler(), options, key=KEY)
    assert f"did not call the gateway at {elsewhere.url}" in str(raised.value)


@pytest.mark.parametrize(
    ("answered", "said"),
    [
        (lambda asked: failed("policy", "model_unreachable", 502), "--gateway-url http://ADDRESS_OF_THIS_MACHINE:"),
        (lambda asked: asked.scored(1.0), "policy.config.inference_url"),
        (lambda asked: failed(), "It broke."),
    ],
    ids=["cannot connect", "a score without a call", "another failure"],
)
def test_without_a_call_the_job_says_what_to_do(answered: Callable[[RolloutAsked], Answer], said: str) -> None:
    async def play(asked: RolloutAsked) -> Answer:
        return answered(asked)

    with CallingApp(play).serving() as url, pytest.raises(JobError) as raised:
        checked(url, ScriptedSampler())
    assert said in str(raised.value)
    assert ("--gateway" in str(raised.value)) == ("--gateway" in said)


def test_a_rollout_that_goes_on_after_its_call_is_given_up() -> None:
    async def play(asked: RolloutAsked) -> Answer:
        await asked.call()
        await asyncio.Event().wait()
        raise AssertionError

    with CallingApp(play).serving() as url:
        assert checked(url, ScriptedSampler(), end_seconds=0.1).type == "rl.gateway.reached"


def test_a_new_tunnels_name_is_tried_again() -> None:
    asked_keys = []

    async def play(asked: RolloutAsked) -> Answer:
        asked_keys.append(asked.key)
        if len(asked_keys) < 3:
            return failed("policy", "model_unreachable", 502)
        await asked.call()
        return asked.scored(1.0)

    with CallingApp(play).serving() as url:
        checked(url, ScriptedSampler(), GatewayOptions(tunnel=True), tunnel_pause_seconds=0.01)
    assert len(set(asked_keys)) == 3


def test_a_token_in_the_task_apps_words_is_not_repeated() -> None:
    seen = []

    async def play(asked: RolloutAsked) -> Answer:
        url = asked.body["policy"]["config"]["inference_url"]
        seen.append(url.split("/")[4])
        status, answer = failed("policy", "model_unreachable", 502)
        answer["detail"]["error"]["message"] = f"Client error for url {url}/chat/completions"
        return status, answer

    with CallingApp(play).serving() as url, pytest.raises(JobError) as raised:
        checked(url, ScriptedSampler())
    assert "Client error" in str(raised.value)
    token = seen[0]
    assert not any(token[at : at + 12] in str(raised.value) for at in range(len(token) - 11))
