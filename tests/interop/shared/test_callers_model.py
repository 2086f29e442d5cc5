"""A function in the place of the policy's model: in this process, in a worker process, and asked by an author's own loop."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.interop.callers_model import CallerService
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.testing import play
from taskapp_kit.wire.chat.conversation import ChatReply

HERE = Path(__file__).parent
COUNTING = HERE / "asking_apps.py"

LOOPED = """
from taskapp_kit import Step, TaskApp, action

app = TaskApp("looped", version="1.0.0")

@app.environment(splits={"train": range(4)}, max_turns=3)
class Counter:
    \"\"\"Add up.\"\"\"

    def reset(self, seed: int) -> str:
        return f"seed {seed}"

    @action
    def add(self, amount: int) -> Step:
        \"\"\"Add.\"\"\"
        return Step("added", reward=float(amount), terminated=amount == 2)

@app.rollout
async def looped(env, model):
    for _ in range(2):
        reply = await model.chat([{"role": "user", "content": env.observation}])
        await env.step("add", {"amount": int(reply.message["content"])})
"""


async def rollout(app: Path, env: dict[str, Any], replies: list[dict[str, Any]], **limits: Any) -> tuple[Rollout, int]:
    """Return the rollout, and how often the function was called."""
    asked = 0

    async def ask(body: dict[str, Any]) -> ChatReply:
        nonlocal asked
        assert body["messages"] and "model" not in body
        asked += 1
        return ChatReply(replies[asked - 1])

    service = CallerService(app, **limits)
    try:
        return await service.rollout(ask, env), asked
    finally:
        await service.close()


def adding(amount: int) -> dict[str, Any]:
    function = {"name": "add", "arguments": json.dumps({"amount": amount})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
def test_function_answers_instead_of_the_model(workers: int) -> None:
    env = {"env_name": "counting", "seed": 4}
    found, asked = asyncio.run(rollout(COUNTING, env, [adding(1), adding(2)], workers=workers))
    same = play(COUNTING, environment="counting", seed=4, policy="constant", action={"add": {"amount": 3}}, ops=1)
    assert (found.status, found.length, found.reward, asked) == ("terminated", 2, same.reward, 2)


def test_function_answers_an_authors_loop(tmp_path: Path) -> None:
    app = tmp_path / "looped.py"
    app.write_text(LOOPED)
    found, asked = asyncio.run(rollout(app, {"seed": 1}, [{"content": "1"}, {"content": "2"}]))
    assert (found.status, found.length, found.reward, asked) == ("terminated", 2, 3.0, 2)
