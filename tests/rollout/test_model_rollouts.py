"""Rollouts that a language model plays, in threads and in worker processes: the kit's conversation and an author's loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest

from taskapp_kit import RequestError, RolloutFailed, Step, TaskApp, Trajectory, action
from taskapp_kit.evaluate.replay import replay
from taskapp_kit.records.events import Limited, encode
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.response import answer_bytes, response_body
from taskapp_kit.rollout.service import Service
from taskapp_kit.store import open_store
from taskapp_kit.testing import Faults, MockModel
from taskapp_kit.wire.rollout import RolloutRequest, RolloutResponse
from tests.rollout.models.raw_server import http, raw_server
from tests.rollouts import a_request, app_from, local_models, served, serving
from tests.waiting import until_async

pytestmark = [pytest.mark.anyio, pytest.mark.server]
APP = """
import json, pathlib

app = TaskApp("sums", version="1")


@app.environment("sums", splits={"train": range(20)}, max_steps=8)
class Sums:
    '''Reach six.'''

    def __init__(self, mark: str = "", raises: bool = False):
        self.mark, self.raises = mark, raises

    def reset(self, seed: int) -> str:
        self.total = 0
        return f"total 0 of 6, seed {seed}"

    @action
    def add(self, amount: Literal[1, 2, 3]) -> Step:
        '''Add it.'''
        if self.raises:
            raise OSError("broken")
        self.total += amount
        return Step(f"total {self.total} of 6", reward=float(self.total == 6), terminated=self.total >= 6)

    def close(self) -> None:
        if self.mark:
            pathlib.Path(self.mark).write_text("closed")


@app.environment("guest", splits={"train": range(3)}, max_steps=3)
class Guest:
    '''Talks to a simulated user.'''

    def reset(self, seed: int, context: Any) -> str:
        self.user = context.model("user")
        return self.user.ask([{"role": "user", "content": "begin"}]).message["content"]

    @action(text=True, noop={"words": "hello"})
    async def say(self, words: str) -> Step:
        '''Say it.'''
        reply = await self.user.chat([{"role": "user", "content": words}], temperature=0)
        return Step(reply.message["content"], reward=1.0, terminated=True)


@app.environment("wrapping_guest", splits={"train": range(3)}, max_steps=3)
class WrappingGuest(Guest):
    '''Hides the model's failure behind its own exception.'''

    def reset(self, seed: int, context: Any) -> str:
        try:
            return super().reset(seed, context)
        except Exception as error:
            raise RuntimeError("the simulator is broken") from error
"""
LOOP = """
app.tasks("quiz", row=None, prompt="{ask}", train=[{"ask": "a?"}])
seen = []


@app.rollout
async def play(env, model, task):
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": env.observation}]
    while not env.done:
        reply = await model.chat(messages, tools=env.tools, temperature=0.5)
        messages.append(reply.message)
        if reply.message.get("content") == "stop":
            return
        if reply.message.get("content") == "raise":
            raise RuntimeError("sentinel-of-the-loop")
        for call in reply.message.get("tool_calls") or []:
            step = await env.step(call["function"]["name"], json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(step.observation)})
"""
QUIZ = """
app.tasks("question", row=None, prompt="{ask}", train=[{"ask": "France?"}])


@app.environment("chatty", max_steps=30)
class Chatty:
    '''Asks a second model at each step.'''

    def reset(self, seed: int, context: Any) -> str:
        self.user = context.model("user")
        return "begin"

    @action(text=True, noop={"words": "hello"})
    def say(self, words: str) -> Step:
        '''Say it.'''
        return Step(self.user.ask([{"role": "user", "content": words}]).message["content"], reward=1.0)


@app.rubric(environment="question")
def right(answer_text: str) -> float:
    '''Right.'''
    return float(answer_text == "Paris")
"""
ADDS: list[Any] = [{"add": {"amount": 2}}, {"add": {"amount": 3}}, {"add": {"amount": 1}}]


def asked(url: str, **more: Any) -> RolloutRequest:
    config = {"inference_url": url, "model": "m", **more.pop("policy", {})}
    return a_request(None, policy_config=config, **{"seed": 3, **more})


def asking(
    app: TaskApp, *, variables: dict[str, str] | None = None, **options: Any
) -> AbstractAsyncContextManager[Service]:
    """A service that may ask models on this machine."""
    return serving(app, exposure="local", models=local_models(**variables or {}), **options)


def one(app: TaskApp, request: RolloutRequest, *, variables: dict[str, str] | None = None, **options: Any) -> Rollout:
    return served(app, request, exposure="local", models=local_models(**variables or {}), **options)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> TaskApp:
    return app_from(tmp_path_factory.mktemp("plain"), APP)


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> TaskApp:
    return app_from(tmp_path_factory.mktemp("looped"), APP + LOOP)


@pytest.mark.process
@pytest.mark.parametrize("which", ["plain", "looped"])
def test_a_model_plays_the_same_in_threads_and_in_workers(which: str, request: pytest.FixtureRequest) -> None:
    app = request.getfixturevalue(which)
    with MockModel(ADDS) as model:
        near = one(app, asked(model.url))
        far = one(app, asked(model.url), workers=1)
    for rollout in (near, far):
        assert (rollout.policy, rollout.trajectory.length, rollout.scorecard.reward) == ("model", 3, 1.0)
        assert [step.args for step in rollout.trajectory.steps] == [{"amount": 2}, {"amount": 3}, {"amount": 1}]
        roles = [message["role"] for turn in rollout.trajectory.turns for message in turn.answer.messages]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
        assert rollout.usage["completion_tokens"] > 0
    assert near.digest == far.digest


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_model_that_cannot_be_asked_is_a_failure_of_the_policy(plain: TaskApp, looped: TaskApp, workers: int) -> None:
    for app in (plain, looped):
        with MockModel(ADDS, faults=Faults(sequence=["401"])) as model, pytest.raises(RolloutFailed) as caught:
            one(app, asked(model.url), workers=workers)
        assert (caught.value.boundary, caught.value.failure.code) == ("policy", "model_refused")


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_conversation_that_is_too_long_truncates_and_is_scored(plain: TaskApp, looped: TaskApp, workers: int) -> None:
    for app in (plain, looped):
        with MockModel([ADDS[0], {"fault": "context"}]) as model:
            rollout = one(app, asked(model.url), workers=workers)
        assert (rollout.trajectory.status, rollout.trajectory.stop_reason) == ("truncated", "context_overflow")
        assert rollout.scorecard.reward == 0.0 and rollout.trajectory.length == 1


@pytest.mark.parametrize(
    ("faults", "members", "boundary", "code"),
    [
        (Faults(rate={"hang": 1.0}), {"safety": {"max_time_s": 0.5}}, "timeout", "deadline"),
        (None, {"config": {"raises": True}}, "environment", "environment_raised"),
    ],
)
def test_failure_has_the_boundary_of_its_cause(
    plain: TaskApp, faults: Faults | None, members: dict[str, Any], boundary: str, code: str
) -> None:
    with MockModel(ADDS, faults=faults) as model, pytest.raises(RolloutFailed) as caught:
        one(plain, asked(model.url, **members))
    assert (caught.value.boundary, caught.value.failure.code) == (boundary, code)


WAITS = """
import asyncio


@app.rollout
async def play(env, model, task):
    try:
        pathlib.Path("BEGAN").touch()
        await asyncio.sleep(600)
    finally:
        pathlib.Path("MARK").write_text("cancelled")
"""


@pytest.mark.ci(keep=1)
@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_loop_that_waits_for_something_else_ends_with_its_rollout(
    tmp_path: Path, workers: int, cancelled: bool
) -> None:
    began, mark = tmp_path / "began", tmp_path / "mark"
    app = app_from(tmp_path, APP + WAITS.replace("MARK", str(mark)).replace("BEGAN", str(began)))

    async with asking(app, workers=workers) as service:
        await service.rollout(a_request(env_name="sums"))  # the worker has started
        safety = {"max_time_s": 600.0 if cancelled else 2.5}
        playing = asyncio.ensure_future(service.rollout(asked("http://127.0.0.1:9/v1", safety=safety)))
        if cancelled:
            await until_async(began.exists)
            playing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await playing
        else:
            with pytest.raises(RolloutFailed) as caught:
                await playing
            failure = caught.value.failure
            assert (failure.boundary, failure.code) == ("timeout", "deadline")
            assert failure.message == "the rollout reached its deadline before the episode had ended"
        await until_async(mark.exists)
        await until_async(lambda: service.pinned_threads.hung == service.model_threads.hung == 0)


@pytest.mark.parametrize("which", ["plain", "looped"])
async def test_disconnect_during_a_model_call_cancels_the_rollout(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    mark, store = tmp_path / "mark", open_store("memory")
    with MockModel(ADDS, faults=Faults(rate={"hang": 1.0})) as model:
        async with asking(request.getfixturevalue(which), store=store) as service:
            task = asyncio.create_task(service.rollout(asked(model.url, config={"mark": str(mark)})))
            await until_async(lambda: model.requests)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until_async(mark.exists, 1)
            (kept,) = await store.recent()
            assert (kept.status, (kept.failure or {})["boundary"]) == ("failed", "cancelled")


async def test_model_address_is_checked_before_the_episode(plain: TaskApp) -> None:
    async with asking(plain) as service:
        for url, code in (("ftp://example.org", "invalid_address"), ("http://169.254.169.254/v1", "address_refused")):
            with pytest.raises(RequestError) as caught:
                await service.rollout(asked(url))
            assert caught.value.code == code
        assert service.in_flight == 0


async def test_callers_key_is_used_and_never_stored(plain: TaskApp) -> None:
    key, store = "sk-sentinel-of-the-caller", open_store("memory")
    with MockModel(ADDS, api_key=key) as model:
        async with asking(plain, store=store) as service:
            rollout = await service.rollout(asked(model.url, policy={"api_key": key, "temperature": 0.5}))
            kept = await store.load(rollout.rollout_id)
    assert kept is not None and kept.policy["temperature"] == 0.5
    assert key not in f"{kept}{encode(rollout.events).text!r}{rollout.policy}"


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
async def test_key_repeated_by_the_model_reaches_neither_caller_nor_store(
    plain: TaskApp, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In words, as a tool's name and as an argument, each of which comes back in a refusal."""
    key = "sk-sentinel-of-the-caller"
    says = [f"I was sent {key}.", {f"add_{key}": {"amount": 2}}, {"add": {"amount": key}}, *ADDS]
    store = open_store("memory")
    with MockModel(says, api_key=key) as model:
        async with asking(plain, workers=workers, store=store) as service:
            rollout = await service.rollout(asked(model.url, policy={"api_key": key}, record={"return_trace": True}))
            kept = await store.load(rollout.rollout_id)
    assert rollout.trajectory.length > 0
    told = f"{kept}{answer_bytes(rollout)!r}{encode(rollout.events).text!r}{caplog.text}"
    assert "(key)" in told
    places = [told.find(key[start : start + 12]) for start in range(len(key) - 11)]
    assert max(places) < 0, [told[max(0, at - 200) : at + 80] for at in places if at >= 0][:1]


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
async def test_an_environment_asks_an_auxiliary_model(plain: TaskApp, workers: int) -> None:
    store = open_store("memory")
    with MockModel(["Good day.", "Well said."]) as user:
        variables = {"TASKAPP_USER_URL": user.url, "TASKAPP_USER_MODEL": "crowd"}
        async with asking(plain, variables=variables, workers=workers, store=store) as service:
            rollout = await service.rollout(a_request("noop", env_name="guest", seed=1))
            kept = await store.load(rollout.rollout_id)
            assert kept is not None
        assert [request.body["model"] for request in user.requests] == ["crowd", "crowd"]
        assert user.requests[1].body["temperature"] == 0
    assert rollout.trajectory.initial == "Good day." and rollout.trajectory.steps[0].observation == "Good day."
    calls = [
        (call["role"], call["messages"][-1]["content"], call["reply"]["content"])
        for call in kept.private["second_calls"]
    ]
    assert calls == [("user", "begin", "Good day."), ("user", "hello", "Good day.")]
    metrics = rollout.trajectory.metrics
    assert metrics["calls_user"] == 2 and metrics["tokens_user"] > 0
    assert rollout.usage == {}, "a second model's tokens are not the policy's"


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("environment", ["guest", "wrapping guest"])
def test_an_auxiliary_model_that_fails_is_named_and_not_the_policy(
    plain: TaskApp, environment: str, workers: int
) -> None:
    sent = a_request("noop", env_name=environment.replace(" ", "_"), seed=1)
    with MockModel(faults=Faults(rate={"400": 1.0})) as user:
        address = f"{user.url}/proxy/v1/chat/completions"
        variables = {"TASKAPP_USER_URL": f"{address}?api_key=sentinel-key", "TASKAPP_USER_MODEL": "m"}
        for given, code in ((variables, "auxiliary_model_failed"), ({}, "auxiliary_model_not_configured")):
            with pytest.raises(RolloutFailed) as caught:
                one(plain, sent, variables=given, workers=workers)
            failure = caught.value.failure
            assert (failure.boundary, failure.code) == ("environment", code)
            assert "'user'" in failure.message and "sentinel" not in failure.message
            assert (address in failure.message) is bool(given)
            assert caught.value.__cause__ is None, "no traceback of the author's code"


def test_a_loop_that_returns_truncates_and_one_that_raises_fails(looped: TaskApp) -> None:
    with MockModel([ADDS[0], "stop"]) as model:
        rollout = one(looped, asked(model.url))
    assert (rollout.trajectory.status, rollout.trajectory.stop_reason) == ("truncated", "rollout_returned")
    with MockModel([ADDS[0], "raise"]) as model, pytest.raises(RolloutFailed) as caught:
        one(looped, asked(model.url))
    assert (caught.value.boundary, caught.value.failure.code) == ("policy", "policy_raised")
    assert "sentinel" not in caught.value.failure.message


def test_named_policies_play_without_the_loop(looped: TaskApp) -> None:
    rollout = one(looped, a_request("random", env_name="sums", seed=3))
    assert rollout.policy == "random"


def deaf(**tokens: Any) -> dict[str, Any]:
    """The answer of an endpoint that ignores members it does not know: it adds 3. tokens: members that are for training."""
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"amount": 3}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls", **tokens}]}


async def answered(app: TaskApp, *answers: object, workers: int = 0, **more: Any) -> Rollout:
    """A rollout whose model gives these very answers, the last one again and again."""
    async with asking(app, workers=workers) as service, raw_server([http(200, each) for each in answers]) as server:
        return await service.rollout(asked(server.url, **more))


@pytest.mark.parametrize(
    ("which", "workers"), [("plain", 0), pytest.param("plain", 1, marks=pytest.mark.exhaustive), ("looped", 0)]
)
async def test_missing_token_data_is_a_warning(which: str, workers: int, request: pytest.FixtureRequest) -> None:
    app = request.getfixturevalue(which)

    async def warned(**more: Any) -> list[str]:
        rollout = await answered(app, deaf(), workers=workers, **{"record": {"logprobs": True}, **more})
        told: list[str] = response_body(rollout)["pipeline_metadata"]["warnings"]
        return told

    with MockModel(ADDS) as model:
        async with asking(app, workers=workers) as service:
            assert (await service.rollout(asked(model.url, record={"logprobs": True}))).warnings == []
    found = await warned()
    assert [told.partition(" were asked for")[0] for told in found] == [
        "token ids of the prompt", "token ids", "log-probabilities",
    ]  # fmt: skip
    assert all(" 2 of 2 " in told for told in found)
    if workers == 0:
        assert len(await warned(mode="eval")) == 1, "an evaluation asks for no ids"
        assert len(await warned(mode="eval", record={}, policy={"return_token_ids": True})) == 2
        assert await warned(mode="eval", record={}) == []


THINKS_FIRST = """
@app.rollout
async def play(env, model, task):
    while not env.done:
        messages = [{"role": "user", "content": env.observation}]
        await model.chat(messages)
        await model.chat(messages, tools=env.tools)
        await env.step("add", {"amount": 3})
"""


async def test_token_data_missing_in_an_earlier_call_is_a_warning(tmp_path: Path) -> None:
    logprobs = {"content": [{"token": "2", "logprob": -1.0}]}
    answers = [deaf(), deaf(prompt_token_ids=[1], token_ids=[2], logprobs=logprobs)] * 2
    rollout = await answered(app_from(tmp_path, APP + THINKS_FIRST), *answers, record={"logprobs": True})
    assert rollout.trajectory.length == 2
    assert len(rollout.warnings) == 3 and all(" 2 of 4 " in told for told in rollout.warnings)


def test_unknown_members_of_policy_config_are_warnings(plain: TaskApp) -> None:
    with MockModel(ADDS) as model:
        rollout = one(plain, asked(model.url, policy={"temprature": 0.5, "max_tokens": 99, "zzz": [1]}))
    assert len(rollout.warnings) == 2
    assert "policy.config.temprature" in rollout.warnings[0] and "'temperature'" in rollout.warnings[0]
    assert "policy.config.zzz" in rollout.warnings[1] and "mean" not in rollout.warnings[1]

    rollout = one(plain, a_request("noop", policy_config={"max-tokens": 5, "noop": 1}, ops=["env"], seed=3))
    assert "policy.config.max-tokens" in rollout.warnings[0] and "'max_tokens'" in rollout.warnings[0]

    many = {**{f"name_{number}": 1 for number in range(2000)}, "no word " * 20: 1}
    rollout = one(plain, a_request("noop", policy_config={**many, "noop": 1}, ops=["env"], seed=3))
    assert len(rollout.warnings) == 9 and "1994 more" in rollout.warnings[-1]
    assert max(map(len, rollout.warnings)) < 120


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quiz(tmp_path_factory: pytest.TempPathFactory) -> TaskApp:
    return app_from(tmp_path_factory.mktemp("quiz"), APP + QUIZ)


def test_an_answer_with_too_many_calls_is_cut_and_goes_back_cut(tmp_path: Path) -> None:
    app = app_from(tmp_path, APP.replace("max_steps=8", "max_steps=80").replace("self.total >= 6", "self.total >= 66"))
    with MockModel([flood(3000), {"add": {"amount": 2}}]) as model:
        rollout = one(app, asked(model.url, ops=["agent"] * 2))
        said = model.records.recorded[-1].body["messages"]
    assert (rollout.trajectory.stop_reason, rollout.trajectory.length) == ("environment", 66)
    assert [step.index for step in rollout.trajectory.steps if step.refused] == [64]
    assert len(said[-66]["tool_calls"]) == 65
    assert [message["tool_call_id"] for message in said[-65:]] == [call["id"] for call in said[-66]["tool_calls"]]
    assert rollout.trajectory.turns[0].answer.details["left_out_calls"] == 3000 - 65


@pytest.mark.parametrize("mode", ["tool_calls", "text", "structured"])
@pytest.mark.parametrize(
    ("answer", "judged", "invalid"),
    [("", "", 1), (None, "", 1), ({"jump": {}}, "", 1), ("Paris", "Paris", 0),
     ({"content": "Paris", "tool_calls": [{"name": "jump"}]}, "Paris", 1)],
    ids=repr,
)  # fmt: skip
def test_one_answer_of_a_model_is_judged_in_every_mode(
    quiz: TaskApp, mode: str, answer: Any, judged: str, invalid: int
) -> None:
    with MockModel([answer, "Paris", "Paris"]) as model:
        request = asked(model.url, env_name="question", seed=0)
        request.policy.output_mode = mode  # type: ignore[assignment]
        trajectory = one(quiz, request).trajectory
        assert model.records.answers == 1
    assert (trajectory.status, trajectory.stop_reason, trajectory.length) == ("terminated", "environment", 1)
    assert trajectory.steps[0].args == {"text": judged}
    assert trajectory.metrics["invalid_actions"] == invalid


def test_an_answer_that_was_cut_at_its_limit_of_tokens_is_judged_with_a_warning(quiz: TaskApp) -> None:
    with MockModel([{"content": "Par", "finish_reason": "length"}]) as hasty, MockModel(["Paris"]) as model:
        cut, whole = (one(quiz, asked(each.url, env_name="question", seed=0)) for each in (hasty, model))
    assert (cut.trajectory.status, cut.trajectory.answer_text, len(cut.warnings)) == ("terminated", "Par", 1)
    assert (whole.trajectory.answer_text, whole.warnings) == ("Paris", [])


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("which", ["plain", "looped"])
async def test_token_limit_truncates_before_the_next_call(
    which: str, workers: int, request: pytest.FixtureRequest
) -> None:
    async with asking(request.getfixturevalue(which), workers=workers) as service:
        with MockModel([{"add": {"amount": 1}}] * 9) as model:
            free = await service.rollout(asked(model.url))
            first = free.trajectory.turns[0].answer.usage
            two = int(sum(turn.answer.usage["total_tokens"] for turn in free.trajectory.turns[:2]))
        for limit, turns in ((1, 1), (int(first["total_tokens"]), 1), (two - 1, 2), (two, 2), (two + 1, 3)):
            with MockModel([{"add": {"amount": 1}}] * 9) as model:
                rollout = await service.rollout(asked(model.url, safety={"max_rollout_tokens": limit}))
                assert model.records.answers == turns, "no call begins beyond the limit"
            trajectory = rollout.trajectory
            assert (trajectory.status, trajectory.stop_reason) == ("truncated", "max_rollout_tokens")
            assert (trajectory.length, rollout.ops_executed) == (turns, 2 * turns)
            assert rollout.scorecard.reward == 0.0
            assert [event.value for event in rollout.events if isinstance(event, Limited)] == [limit]


CAUTIOUS = """
app = TaskApp("cautious")


@app.environment("talk", max_steps=30)
class Talk:
    '''Asks a model where it can.'''

    def reset(self, context: Any) -> str:
        self.user = context.model("user")
        return "begin"

    @action(noop={})
    def go(self) -> Step:
        '''Go on.'''
        ACT
        return Step("on", reward=1.0)

    def final_state(self) -> Any:
        STATE
        return {}

    def close(self) -> None:
        CLOSE


LOOP
"""
ASKS = 'self.user.ask([{"role": "user", "content": "hello"}])'
LOOPS = """@app.rollout
async def play(env, model):
    while True:
        try:
            await model.chat([{"role": "user", "content": "hello"}])
        except Exception as error:
            HANDLED
        await env.step("go", {})"""


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "code",
    [{"STATE": ASKS}, {"CLOSE": ASKS}, {"ACT": f"try: {ASKS}\n        except Exception: pass"},
     *({"LOOP": LOOPS, "HANDLED": handled} for handled in ("pass", "continue", "raise ValueError from error"))],
    ids=repr,
)  # fmt: skip
def test_author_code_cannot_prevent_the_token_limit(tmp_path: Path, code: dict[str, str], workers: int) -> None:
    text = CAUTIOUS
    for name, default in {"LOOP": "", "HANDLED": "", "ACT": "", "STATE": "", "CLOSE": "pass"}.items():
        text = text.replace(name, code.get(name, default))
    with MockModel([{"go": {}}] * 9) as model:
        variables = {"TASKAPP_USER_URL": model.url, "TASKAPP_USER_MODEL": "m"}
        request = asked(model.url, safety={"max_rollout_tokens": 1})
        rollout = one(app_from(tmp_path, text), request, workers=workers, variables=variables)
        assert model.records.answers == 1
    assert (rollout.trajectory.status, rollout.trajectory.stop_reason) == ("truncated", "max_rollout_tokens")
    assert len([sentence for sentence in rollout.warnings if "final_state" in sentence]) == ("STATE" in code)


def flood(calls: int) -> dict[str, Any]:
    return {"content": None, "tool_calls": [{"name": "add", "arguments": {"amount": 1}}] * calls}


LIMITS: dict[str, tuple[Any, dict[str, int]]] = {
    "max_refusals": ({"jump": {}}, {"max_refusals": 3}),
    "max_rollout_tokens": ({"add": {"amount": 0}}, {"max_rollout_tokens": 1}),
    "max_ops": ({"add": {"amount": 0}}, {"max_ops": 4}),
    "max_ops within an answer": (flood(3), {"max_ops": 6}),
}


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
async def test_a_replay_ends_where_a_limit_of_the_request_ended_the_rollout(
    plain: TaskApp, tmp_path: Path, workers: int
) -> None:
    store = open_store(str(tmp_path / "kept.db"))
    async with asking(plain, workers=workers, store=store) as service:
        for name, (answer, safety) in LIMITS.items():
            with MockModel([answer] * 9) as model:
                first = await service.rollout(asked(model.url, safety=safety))
            again = await service.rollout(a_request("replay", policy_config={"rollout_id": first.rollout_id}))
            stored = await store.load(first.rollout_id)
            assert stored is not None
            compared = await replay(service, store, stored, a_request(None))
            assert first.trajectory.stop_reason == again.trajectory.stop_reason == name.split()[0], name
            assert first.digest == again.digest, name
            assert compared.same, (name, compared.difference, compared.problem)
            assert [event.value for event in first.events if isinstance(event, Limited)] == [*safety.values()]


def test_auxiliary_models_count_and_judges_do_not(quiz: TaskApp) -> None:
    with MockModel(behaviour="echo") as model, MockModel(["fine"] * 40) as user:
        variables = {"TASKAPP_USER_URL": user.url, "TASKAPP_USER_MODEL": "u"}
        limits = {"max_rollout_tokens": 200}
        rollout = one(quiz, a_request("noop", env_name="chatty", seed=0, safety=limits), variables=variables)
        spent = rollout.trajectory.metrics["tokens_user"]
        assert rollout.trajectory.stop_reason == "max_rollout_tokens"
        assert 200 <= spent < 200 + spent / user.records.answers * 2
        assert rollout.trajectory.length == user.records.answers == rollout.trajectory.metrics["calls_user"]
        assert model.records.requests == 0


async def test_tokens_that_no_endpoint_counts_are_estimated(plain: TaskApp) -> None:
    reply = {"choices": [{"message": {"role": "assistant", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"amount": 1}'}}]}}]}  # fmt: skip
    rollout = await answered(plain, reply, safety={"max_rollout_tokens": 400})
    assert (rollout.trajectory.stop_reason, rollout.usage) == ("max_rollout_tokens", {})
    assert 1 <= rollout.trajectory.length < 6


@pytest.mark.parametrize("count", ["1e308", "-1", "1000000000001", "null"])
async def test_implausible_token_count_is_ignored(plain: TaskApp, count: str) -> None:
    told = orjson.Fragment(count.encode())
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"amount": 3}'}}
    message = {"role": "assistant", "tool_calls": [call]}
    answer = {"choices": [{"message": message}], "usage": {"prompt_tokens": told, "completion_tokens": 5}}
    rollout = await answered(plain, orjson.dumps(answer))
    assert rollout.usage == {"completion_tokens": 10}
    RolloutResponse.model_validate_json(answer_bytes(rollout))


STUCK = threading.Event()


@pytest.fixture(autouse=True)
def nothing_stays_stuck() -> Iterator[None]:
    STUCK.set()
    yield
    STUCK.set()


class Counts:
    """Counts to three; one that is `stuck` does not return from its first step until STUCK is set."""

    def __init__(self, stuck: bool = False) -> None:
        self.stuck, self.count = stuck, 0

    def reset(self, seed: int) -> str:
        return f"0 of 3, seed {seed}"

    @action
    def add(self, amount: int) -> Step:
        """Add it."""
        if self.stuck:
            STUCK.wait(60)
        self.count += 1
        return Step(f"{self.count} of 3", reward=1.0, terminated=self.count == 3)


async def test_hung_rollout_blocks_only_rollouts_that_share_its_thread() -> None:
    app = TaskApp("shared")
    app.environment("counts", splits={"train": range(100)}, max_steps=3)(Counts)
    async with asking(app) as service:
        service.model_threads.grace_seconds = 0.05
        with MockModel([{"add": {"amount": 1}}] * 3, latency_seconds=0.02) as model:

            def rollouts(seeds: range) -> list[asyncio.Task[Rollout]]:
                return [asyncio.create_task(service.rollout(asked(model.url, seed=seed))) for seed in seeds]

            alone = {rollout.seed: rollout.digest for rollout in await asyncio.gather(*rollouts(range(40)))}
            before = service.model_threads._made
            again = {rollout.seed: rollout.digest for rollout in await asyncio.gather(*rollouts(range(40)))}
            assert again == alone
            assert service.model_threads._made == before
            STUCK.clear()
            hangs = asyncio.create_task(
                service.rollout(asked(model.url, seed=50, config={"stuck": True}, safety={"max_time_s": 0.5}))
            )
            ended = await asyncio.gather(hangs, *rollouts(range(24)), return_exceptions=True)
            codes = Counter(one.failure.code if isinstance(one, RolloutFailed) else one.status for one in ended)
            assert isinstance(ended[0], RolloutFailed) and ended[0].failure.code == "environment_hung"
            assert codes["environment_hung"] == 1
            assert codes["terminated"] >= 11, codes  # those of the other thread
            assert codes["thread_blocked"] == 24 - codes["terminated"]
            assert codes["thread_blocked"] > 0
            assert {one.seed: one.digest for one in ended if isinstance(one, Rollout)}.items() <= alone.items()
            assert service.health()["hung_threads"] == 1
            assert {one.status for one in await asyncio.gather(*rollouts(range(24)))} == {"terminated"}
            STUCK.set()
            await until_async(lambda: service.health()["hung_threads"] == 0)


SCORED_TOGETHER = 8


async def test_rollouts_that_share_threads_are_scored_at_the_same_time() -> None:
    app = TaskApp("scored")
    app.environment("counts", splits={"train": range(100)}, max_steps=3)(Counts)
    together: list[threading.Barrier] = []

    @app.rubric
    def waits(trajectory: Trajectory) -> float:
        """Waits until SCORED_TOGETHER are scored at the same time, as one that runs tests in processes would wait."""
        if together:
            together[0].wait(20)
        return 1.0

    async with asking(app) as service:
        with MockModel([{"add": {"amount": 1}}] * 3) as model:

            async def rollouts(seeds: range) -> list[Rollout]:
                return await asyncio.gather(*(service.rollout(asked(model.url, seed=seed)) for seed in seeds))

            await rollouts(range(40))
            together.append(threading.Barrier(SCORED_TOGETHER))
            assert {one.scorecard.reward for one in await rollouts(range(SCORED_TOGETHER))} == {1.0}


DIGITS = """
import decimal

app = TaskApp("digits")


@app.environment("digits", splits={"train": range(9)}, max_steps=1)
class Digits:
    '''Shows the precision that it finds, and changes it.'''

    def reset(self, seed: int) -> str:
        found = decimal.getcontext().prec
        decimal.getcontext().prec = 5
        return str(found)

    @action
    def end(self) -> Step:
        '''End.'''
        return Step("", terminated=True)
"""


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.process)])
async def test_context_variables_of_one_rollout_do_not_reach_the_next(tmp_path: Path, workers: int) -> None:
    async with asking(app_from(tmp_path, DIGITS), workers=workers, threads=1) as service:
        with MockModel([{"end": {}}]) as model:
            played = [await service.rollout(request) for request in (a_request(), asked(model.url)) for _ in range(3)]
    assert [rollout.trajectory.initial for rollout in played] == ["28"] * 6


class Bound:
    """Has a database connection, which works in the thread that made it alone; its first step is async."""

    ended: ClassVar[list[tuple[int, str]]] = []

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause

    async def reset(self, seed: int) -> str:
        self.seed, self.database = seed, sqlite3.connect(":memory:")
        self.loop = asyncio.get_running_loop()
        return "begin"

    @action
    async def add(self, amount: int) -> Step:
        """Add it."""
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(self.pause)
        (found,) = self.database.execute("SELECT 1").fetchone()
        return Step("go on", reward=float(found))

    def close(self) -> None:
        try:
            self.database.close()
            self.ended.append((self.seed, "closed"))
        except sqlite3.Error as error:
            self.ended.append((self.seed, str(error)))


async def test_environment_is_closed_once_in_its_own_thread() -> None:
    app = TaskApp("bound")
    app.environment("bound", splits={"train": range(200)}, max_steps=4)(Bound)
    Bound.ended.clear()

    async with asking(app, max_concurrent=512) as service:
        with MockModel([{"add": {"amount": 1}}] * 4, latency_seconds=0.01) as model:

            def begun(seeds: range, **more: Any) -> list[asyncio.Task[Rollout]]:
                return [asyncio.create_task(service.rollout(asked(model.url, seed=seed, **more))) for seed in seeds]

            await asyncio.gather(*begun(range(40)))
            late = begun(range(40, 60), safety={"max_time_s": 0.03})
            gone, whole = begun(range(60, 100)), begun(range(100, 140))
            for number, task in enumerate(gone):
                await asyncio.sleep(0.002)
                if number % 2:
                    task.cancel()
            ended = await asyncio.gather(*late, *gone, *whole, return_exceptions=True)
            assert {one.status for one in ended[-40:] if isinstance(one, Rollout)} == {"truncated"}
    assert {how for _, how in Bound.ended} == {"closed"}
    assert max(Counter(seed for seed, _ in Bound.ended).values()) == 1


async def test_a_rollout_that_is_cancelled_while_it_waits_for_a_thread_is_stored() -> None:
    app, store = TaskApp("waits"), open_store("sqlite://")
    app.environment("counts", splits={"train": range(9)}, max_steps=3)(Counts)
    async with asking(app, max_concurrent=1, store=store) as service:
        service.model_threads.grace_seconds = 0.05
        with MockModel([{"add": {"amount": 1}}] * 3) as model:
            STUCK.clear()
            with pytest.raises(RolloutFailed):  # its thread, the only one, stays blocked
                await service.rollout(asked(model.url, config={"stuck": True}, safety={"max_time_s": 1.5}))
            waits = await service.admit(asked(model.url))
            task = asyncio.create_task(service.run(waits))
            await asyncio.sleep(0.05)
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            stored = await store.load(waits.rollout_id)
            assert stored is not None and (stored.failure or {})["code"] == "cancelled"
