"""What both integrations with verifiers use: tasks with prompts, rollouts with stepwise model calls, and scores."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.errors import RequestError, RolloutFailed, UndefinedReward
from taskapp_kit.interop.app_tasks import NO_PROMPT, VerifiersApp, scores_of
from taskapp_kit.interop.callers_model import SteppedRollout, env_of_row, truncating
from taskapp_kit.testing import play
from taskapp_kit.wire.chat.conversation import ChatReply

HERE = Path(__file__).parent
ASKING = str(HERE.parent / "shared" / "asking_apps.py")
HOSTILE = str(HERE.parents[1] / "hostile_app.py")


def call(amount: int) -> ChatReply:
    function = {"name": "add", "arguments": json.dumps({"amount": amount})}
    return ChatReply(
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    )


async def stepped(environment: str, seed: int, answers: list[Any]) -> SteppedRollout:
    """Plays with these answers, all of them but those after the end."""
    app = VerifiersApp(ASKING)
    try:
        rollout = SteppedRollout(
            app.service(), env_of_row({"environment": environment, "split": "train", "seed": seed})
        )
        body = await rollout.next()
        for answer in answers:
            assert body is not None and body["messages"]
            body = await rollout.next(answer)
        assert (body is None) == rollout.ended
        return rollout
    finally:
        await app.close()


def test_answers_from_outside_play_the_same_episode() -> None:
    rollout = asyncio.run(stepped("counting", 0, [call(1), call(2)])).result()
    same = play(ASKING, environment="counting", seed=0, policy="constant", action={"add": {"amount": 3}}, ops=1)
    assert (rollout.status, rollout.length, rollout.reward) == ("terminated", 2, same.reward)
    assert scores_of(rollout)[1]["steps"] == 2.0 and scores_of(rollout)[1]["truncated"] == 0.0


def test_caller_that_stops_gets_a_truncated_and_scored_rollout() -> None:
    rollout = asyncio.run(stepped("counting", 0, [call(1), truncating("enough")])).result()
    assert (rollout.status, rollout.length, rollout.reward) == ("truncated", 1, 1.0)
    assert scores_of(rollout)[1]["truncated"] == 1.0


def test_failures_and_undefined_rewards_raise() -> None:
    with pytest.raises(RolloutFailed) as raised:
        asyncio.run(stepped("raising", 0, [ChatReply({"role": "assistant", "content": "raise"})]))
    assert raised.value.boundary == "environment"
    silent = asyncio.run(stepped("raising", 0, [ChatReply({"role": "assistant", "content": "undefined"})]))
    with pytest.raises(UndefinedReward):
        scores_of(silent.result())


def test_task_that_cannot_begin_has_a_prompt_that_reports_it() -> None:
    tasks = list(VerifiersApp(ASKING, "counting").tasks("train", 40))
    assert [task.seed for task in tasks] == list(range(40))
    assert tasks[1].prompt[-1]["content"] == "reach 2" and tasks[1].tools[0]["function"]["name"] == "add"
    with pytest.raises(RequestError, match="no split 'tran'"):
        VerifiersApp(ASKING).seeds("tran")
    (broken,) = VerifiersApp(HOSTILE, config={"breaks": "reset"}).tasks(None, 1)
    assert broken.prompt == [{"role": "user", "content": NO_PROMPT}] and broken.tools == []


def test_a_cancelled_rollout_ends() -> None:
    async def cancelled() -> bool:
        app = VerifiersApp(ASKING)
        rollout = SteppedRollout(app.service(), env_of_row({"environment": "counting", "seed": 0}))
        assert await rollout.next() is not None
        await rollout.cancel()
        await app.close()
        return rollout.ended and len(app._services) == 0

    assert asyncio.run(cancelled())


def test_cancelled_wait_loses_no_call() -> None:
    async def interrupted() -> Any:
        app = VerifiersApp(ASKING)
        rollout = SteppedRollout(app.service(), env_of_row({"environment": "counting", "seed": 0}))
        waiting = asyncio.ensure_future(rollout.next())
        await asyncio.sleep(0)
        waiting.cancel()
        assert await rollout.next() is not None and rollout.answered == 0
        assert await rollout.next(call(3)) is None and rollout.answered == 1
        await app.close()
        return rollout.result()

    assert asyncio.run(interrupted()).reward == 3.0
