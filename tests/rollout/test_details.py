"""The readable form of stored rollouts: turn by turn, with everything that was said, and nothing private."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from taskapp_kit import RolloutFailed, TaskApp
from taskapp_kit.errors import StoreError
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.rollout.details import Picture, RolloutDetails, details_of, words
from taskapp_kit.store import open_store
from taskapp_kit.testing import MockModel, judge
from taskapp_kit.wire.rollout import RolloutRequest
from tests.live_app import SECRET, a_body
from tests.live_app import app as live_app
from tests.rollouts import a_request, app_from, local_models, serving

APP = '''
app = TaskApp("guests", version="2")
class Row(BaseModel):
    question: str
    answer: Private[str]
@app.environment("guest", tasks={"train": [Row(question="Why?", answer="sentinel-answer")]}, max_turns=3)
class Guest:
    def reset(self, task, context) -> str:
        self.context, self.task = context, task
        said = context.model("user").ask([{"role": "user", "content": f"Begin. {task.answer}"}]).message["content"]
        return f"{task.question} {said}"
    @action
    def add(self, amount: int) -> Step:
        """Add."""
        if amount == 13:
            raise RuntimeError("hidden")
        if amount < 0:
            raise InvalidAction("not below 0")
        return Step({"total": amount}, reward=0.5, metrics={"adds": 1.0}, terminated=amount == 9)
    def final_state(self):
        return {"key": "sentinel-state"}
@app.judge(weight=1)
def fine(answer_text, task):
    """Is it fine?"""
    return f"{task.answer} and {answer_text}"
'''


def played(app: TaskApp, says: list[Any], **given: Any) -> StoredRollout:
    """A rollout of a model that says this, as it is stored; a user and a judge answer, too."""

    with (
        MockModel(says) as model,
        MockModel(["Hello, sentinel-answer."]) as user,
        MockModel(judge(0.5, "So so.")) as verdict,
    ):
        urls = {"TASKAPP_USER_URL": user.url, "TASKAPP_JUDGE_URL": verdict.url}
        models = local_models(**urls, TASKAPP_USER_MODEL="user", TASKAPP_JUDGE_MODEL="judge")
        config = {"inference_url": model.url, "model": "m"}
        request = a_request(None, seed=0, policy_config=config, **given)
        return asyncio.run(stored_of(app, request, exposure="local", models=models))


async def stored_of(app: TaskApp, request: RolloutRequest, **options: Any) -> StoredRollout:
    store = open_store("memory")
    async with serving(app, store=store, **options) as service:
        try:
            rollout_id = (await service.rollout(request)).rollout_id
        except RolloutFailed as failed:
            rollout_id = failed.rollout_id
        stored = await store.load(rollout_id)
    assert stored is not None
    return stored


@pytest.fixture(scope="module")
def guests(tmp_path_factory: pytest.TempPathFactory) -> TaskApp:
    return app_from(tmp_path_factory.mktemp("guests"), APP)


@pytest.mark.server
def test_details_have_the_whole_conversation_and_nothing_private(guests: TaskApp) -> None:
    thinking = {
        "content": "I add.",
        "reasoning_content": "It is odd.",
        "tool_calls": [{"name": "add", "arguments": {"amount": 2}}],
    }
    shown = details_of(played(guests, [thinking, {"add": {"amount": -1}}, {"add": {"amount": 9}}]))
    assert (shown.stored.status, shown.policy, shown.model) == ("terminated", "model", "m")
    first, second, third = shown.turns
    assert [message.role for message in first.read][-1] == "user" and "Why? Hello" in words(first.read[-1].blocks)
    assert (first.reasoning, first.words) == ("It is odd.", "I add.")
    assert [(call.tool, call.args) for call in first.calls] == [("add", {"amount": 2})]
    (step,) = first.steps
    assert (step.reward, words(step.observation), dict(step.metrics)) == (0.5, '{"total": 2}', {"adds": 1.0})
    assert second.steps[0].refused is not None and "not below 0" in second.steps[0].refused
    assert [message.role for message in second.read] == ["tool"]
    assert third.steps[0].terminated and shown.stored.length == 3
    assert first.tokens and shown.tokens and shown.usage
    (asked,) = shown.auxiliary_calls
    assert (asked.role, words(asked.reply.blocks)) == ("user", "Hello, [private: answer].")
    (judged,) = shown.judge_calls
    assert judged.judges == ("fine",) and judged.verdict["fine"] == {"reason": "So so.", "score": 0.5}
    assert "[private: answer] and I add." in words(block for message in judged.prompt for block in message.blocks)
    (criterion,) = shown.criteria
    assert (criterion.name, criterion.score, criterion.reason) == ("fine", 0.5, "So so.")
    text = json.dumps(shown.to_json())
    assert "sentinel-state" not in text
    assert "sentinel-answer" not in json.dumps([shown.to_json()["judge_calls"], shown.to_json()["auxiliary_calls"]])


@pytest.mark.server
def test_failure_details_name_the_waiting_turn_and_action(guests: TaskApp) -> None:
    shown = details_of(played(guests, [{"add": {"amount": 2}}, {"add": {"amount": 13}}]))
    assert shown.failure is not None and (shown.failure.boundary, shown.stored.reward) == ("environment", None)
    assert shown.waiting_action is not None and shown.waiting_action.args == {"amount": 13}
    assert shown.waiting_turn is None and len(shown.turns) == 2 and not shown.turns[1].steps
    assert "hidden" not in json.dumps(shown.to_json())


def stored_show(**config: Any) -> StoredRollout:
    return asyncio.run(stored_of(live_app, RolloutRequest.model_validate(a_body(**config))))


def test_pictures_stand_where_they_were_by_their_hash() -> None:
    stored = stored_show(image=True, steps=2)
    assert SECRET in json.dumps(stored.private)
    shown = details_of(stored)
    text, picture = shown.initial
    assert text == "seed 0, number 0, ü" and isinstance(picture, Picture) and (picture.width, picture.height) == (4, 4)
    assert len(shown.pictures) == 3 and shown.pictures[0] == picture.sha256
    assert str(picture) == "[picture 4 x 4]"
    assert [turn.read for turn in shown.turns] == [(), ()]
    assert SECRET not in json.dumps(shown.to_json())


def test_rows_of_earlier_releases_lack_members() -> None:
    stored = stored_show(steps=1)
    del stored.scorecard["criteria"][0]["normalised"], stored.scorecard["criteria"][0]["spread"]
    stored.tokens = stored.cost = stored.observation_digest = None
    for event in stored.events:
        if event["kind"] == "answered":
            event["answer"] = {"tool_calls": [{"tool": "go", "args": {}, "id": ""}]}
    shown: RolloutDetails = details_of(stored)
    assert shown.criteria[0].score == 1.0 and shown.turns[0].calls[0].tool == "go" and shown.limit is None


def test_damaged_events_are_an_error_of_the_store() -> None:
    stored = stored_show(steps=1)
    stored.events = [{"kind": "stepped", "step": {}}]
    with pytest.raises(StoreError, match="cannot be decoded"):
        details_of(stored)
