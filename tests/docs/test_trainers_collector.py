"""The collector of docs/connect/trainers.md, given answers that its own example does not have."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from taskapp_kit.client import read_events
from taskapp_kit.rollout.response import answer_bytes
from taskapp_kit.testing import MockModel, scripted
from tests.rollouts import app_from, one_model_rollout

pytestmark = pytest.mark.server

PAGE = Path(__file__).resolve().parents[2] / "docs/connect/trainers.md"
APP = """
app = TaskApp("sums")


@app.environment("sums", max_steps=4)
class Sums:
    '''Add.'''

    def reset(self, seed: int) -> str:
        return "total 0"

    @action
    def add(self, amount: int) -> str:
        '''Add it.'''
        return f"added {amount}"


@app.rollout
async def play(env, model, task):
    messages = [{"role": "user", "content": env.observation}]
    while not env.done:
        for words in ("Think.", "Go on."):
            messages.append((await model.chat(messages, tools=env.tools)).message)
            messages.append({"role": "user", "content": words})
        await env.step("add", {"amount": 1})
        await env.step("add", {"amount": 2})
"""


@pytest.fixture
def sequences(tmp_path: Path) -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
    found = re.search(r"^```python title=collect\.py\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert found is not None
    (tmp_path / "collect.py").write_text(found[1])
    function: Callable[[dict[str, Any]], list[dict[str, Any]]] = runpy.run_path(str(tmp_path / "collect.py"))[
        "sequences"
    ]
    return function


def test_every_call_of_an_authors_loop_is_trained_on(
    sequences: Callable[[dict[str, Any]], list[dict[str, Any]]], tmp_path: Path
) -> None:
    with MockModel(scripted(["One.", "Two.", "Three.", "Four."])) as model:
        record = {"return_trace": True, "logprobs": True}
        rollout = one_model_rollout(app_from(tmp_path, APP), model.url, record=record)
    answer = orjson.loads(answer_bytes(rollout))
    turns = [event["answer"] for event in read_events(answer) if event["kind"] == "answered"]
    assert [len(turn.get("details", {}).get("earlier_calls", [])) for turn in turns] == [1, 0, 1, 0]

    (sequence,) = sequences(answer)
    sampled = [token for token, mask in zip(sequence["tokens"], sequence["mask"], strict=True) if mask]
    calls = [call for turn in turns for call in (*turn.get("details", {}).get("earlier_calls", []), turn)]
    assert sampled == [token for call in calls for token in call.get("token_ids", [])]
    assert sum(bool(call.get("token_ids")) for call in calls) == 4
