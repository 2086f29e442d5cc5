"""The events of an answer, read back whole: every prompt's token ids as the endpoint gave them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit import TaskApp
from taskapp_kit.client import read_events
from taskapp_kit.records.events import event_history, to_json
from taskapp_kit.rollout.response import answer_bytes
from taskapp_kit.testing import MockModel, scripted
from tests.rollouts import app_from, one_model_rollout

APP = """
@app.environment("sums", max_steps=4)
class Sums:
    '''Add.'''

    def reset(self, seed: int) -> str:
        self.total = 0
        return f"total 0, seed {seed}"

    @action
    def add(self, amount: Literal[1, 2, 3]) -> str:
        '''Add it.'''
        self.total += amount
        return f"total {self.total}"
"""
TWO_CALLS_A_STEP = """
@app.rollout
async def play(env, model, task):
    messages = [{"role": "user", "content": env.observation}]
    while not env.done:
        messages.append((await model.chat(messages, tools=env.tools)).message)
        messages.append({"role": "user", "content": "Go on."})
        messages.append((await model.chat(messages, tools=env.tools)).message)
        step = await env.step("add", {"amount": 1})
        messages.append({"role": "user", "content": step.observation})
"""

IDS = st.none() | st.lists(st.integers(0, 2), max_size=6)


@st.composite
def a_call(draw: st.DrawFn) -> dict[str, Any]:
    found = {"prompt_token_ids": draw(IDS), "token_ids": draw(IDS), "logprobs": [], "seconds": 0.5}
    return {name: found[name] for name in found if found[name] is not None or draw(st.booleans())}


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Events as the store has them, prompts that have much in common among them."""
    events: list[dict[str, Any]] = [{"v": 1, "seq": 0, "kind": "started", "seed": 3}]
    for turn in range(draw(st.integers(0, 5))):
        answer = draw(a_call())
        if draw(st.booleans()):
            answer["details"] = {"model": "m"}
            if draw(st.booleans()):
                answer["details"]["earlier_calls"] = draw(st.lists(a_call(), max_size=3))
        events.append({"v": 1, "seq": len(events), "kind": "answered", "turn": turn, "answer": answer})
        events.append({"v": 1, "seq": len(events), "kind": "stepped", "step": {"index": turn}})
    return [*events, {"v": 1, "seq": len(events), "kind": "ended", "final_state": {"db": 1}}]


@given(histories())
def test_shortened_prompts_are_restored_and_nothing_else_changes(events: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(events)
    answer = orjson.loads(orjson.dumps({"trajectories": [{"trace": {"event_history": event_history(events)}}]}))
    assert events == before
    sent = copy.deepcopy(answer)
    kind_of = {"stepped": "environment"}
    expected = [{**event, "event_type": kind_of.get(event["kind"], event["kind"])} for event in before]
    assert expected[-1].pop("final_state")
    assert read_events(answer) == expected
    assert answer == sent


def test_an_answer_without_events_and_one_that_does_not_fit_together_are_refused() -> None:
    for trajectory in ({"trace": {"event_history": []}}, {"trace": None}, {}):
        with pytest.raises(ValueError, match="return_trace"):
            read_events({"trajectories": [trajectory]})
    event = {"kind": "answered", "answer": {"prompt_prefix": 3, "prompt_token_ids_rest": [1]}}
    with pytest.raises(ValueError, match="3 tokens"):
        read_events({"trajectories": [{"trace": {"event_history": [event]}}]})


@pytest.fixture(scope="module", params=["the kit's conversation", "a loop with two calls a step"])
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TaskApp:
    source = 'app = TaskApp("sums")\n' + APP + (TWO_CALLS_A_STEP if "loop" in request.param else "")
    return app_from(Path(tmp_path_factory.mktemp("app")), source)


@pytest.mark.server
def test_a_models_turns_are_answered_with_their_new_tokens_and_read_back_whole(app: TaskApp) -> None:
    said: Any = "Fine." if app.freeze().rollout_function else {"add": {"amount": 1}}
    with MockModel(scripted([said] * 9)) as model:
        rollout = one_model_rollout(app, model.url, record={"return_trace": True, "logprobs": True})
    answer = orjson.loads(answer_bytes(rollout))
    told = answer["trajectories"][0]["trace"]["event_history"]
    assert answer["trace"]["event_history"] == [], "once is enough"
    assert answer["trace"]["metadata"] == answer["trajectories"][0]["trace"]["metadata"]

    calls, stored = calls_of(told), calls_of([to_json(seq, event) for seq, event in enumerate(rollout.events)])
    assert len(calls) >= 4
    assert "prompt_prefix" not in calls[0] and calls[0]["prompt_token_ids"]
    for call, whole, before in zip(calls[1:], stored[1:], stored, strict=False):
        assert "prompt_token_ids" not in call
        assert len(before["prompt_token_ids"]) <= call["prompt_prefix"] + 4, "a conversation goes on where it was"
        assert len(call["prompt_token_ids_rest"]) < len(whole["prompt_token_ids"])
    assert calls_of(read_events(answer)) == orjson.loads(orjson.dumps(stored))


def calls_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for event in events:
        if event["kind"] == "answered":
            found += [*event["answer"].get("details", {}).get("earlier_calls", []), event["answer"]]
    return found
