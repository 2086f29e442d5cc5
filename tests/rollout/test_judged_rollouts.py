"""Judges over the wire: a real service, the real client, a real model server, and the texts that try to move it."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import RolloutFailed, TaskApp
from taskapp_kit.errors import Unavailable
from taskapp_kit.rollout.response import response_body
from taskapp_kit.rollout.service import Service
from taskapp_kit.store import open_store
from taskapp_kit.testing import Faults, MockModel, judge, obedient_judge
from taskapp_kit.wire.rollout import RolloutRequest
from tests.rollout.score.test_injection import INJECTIONS
from tests.rollouts import a_request, app_from, local_models, served, serving

pytestmark = [pytest.mark.anyio, pytest.mark.server]

APP = '''
app = TaskApp("judged")
class Row(BaseModel):
    question: str
    answer: Private[str]
app.tasks("judged", row=Row, prompt="{question}", train=[Row(question="Why does it rain?", answer="sentinel-reference")])
@app.judge(weight=WEIGHT)
def true(answer_text, task):
    """Does the answer say the same as the reference?"""
    return {"reference": task.answer, "answer": answer_text}
'''


def app_of(folder: Path, weight: float = 1.0) -> TaskApp:
    return app_from(folder, APP.replace("WEIGHT", str(weight)), name=f"judged{int(weight)}.py")


def asking(app: TaskApp, model: MockModel, **options: Any) -> AbstractAsyncContextManager[Service]:
    """A service whose judges ask this model."""
    models = local_models(TASKAPP_JUDGE_URL=model.url, TASKAPP_JUDGE_MODEL="m")
    return serving(app, exposure="local", models=models, **options)


def answer_of(text: str, **given: Any) -> RolloutRequest:
    return a_request("constant", seed=0, action=text, **given)


async def test_no_injection_moves_a_score(tmp_path: Path) -> None:
    with MockModel(obedient_judge(0.25)) as model:
        async with asking(app_of(tmp_path), model) as service:
            texts = [text.encode(errors="replace").decode()[:200_000] for text in INJECTIONS.values()]
            played = [await service.rollout(answer_of(text)) for text in texts]
        assert {rollout.scorecard.reward for rollout in played} == {0.25}
        assert len(model.requests) == len(INJECTIONS)


@pytest.mark.ci(keep=1)
@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
async def test_a_judge_that_hangs_is_a_timeout_of_the_rollout(tmp_path: Path, workers: int) -> None:
    with MockModel(judge(0.5), faults=Faults({"hang": 1.0})) as model:
        async with asking(app_of(tmp_path, 0.0), model, workers=workers) as service:
            await service.start()
            with pytest.raises(RolloutFailed) as caught:
                await service.rollout(answer_of("x", safety={"max_time_s": 1.0}))
    assert caught.value.boundary == "timeout"


def test_without_a_model(tmp_path: Path) -> None:
    item = served(app_of(tmp_path, 0.0), answer_of("x"), models=local_models()).scorecard.criteria[0]
    assert (item.score, item.reason) == (None, "not_configured")
    with pytest.raises(Unavailable, match="TASKAPP_JUDGE_URL"):
        served(app_of(tmp_path, 1.0), answer_of("x"), models=local_models())


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
async def test_every_call_is_stored_and_no_private_value_leaves(tmp_path: Path, workers: int) -> None:
    def answer_to(request: Any) -> Any:
        return "No." if "silent" in request.text else judge(0.5, "It is not sentinel-reference.")(request)

    store = open_store(str(tmp_path / "rollouts.db"))
    with MockModel(answer_to) as model:
        async with asking(app_of(tmp_path), model, store=store, workers=workers) as service:
            played = await service.rollout(answer_of("Wind."))
            stored = await store.load(played.rollout_id)
            with pytest.raises(RolloutFailed) as caught:
                await service.rollout(answer_of("silent"))
            failed = await store.load(caught.value.rollout_id)
    assert (caught.value.boundary, caught.value.failure.code) == ("scoring", "judge_unreadable")
    assert stored is not None and failed is not None
    assert len(failed.private["judge_calls"]["calls"]) == 3
    assert played.scorecard.criteria[0].reason == "It is not [private: answer]."
    (call,) = stored.private["judge_calls"]["calls"]
    assert (call["role"], call["verdict"]["true"]["score"]) == ("judge", 0.5)
    prompt = json.dumps(stored.private["judge_calls"]["prompts"][call["prompt"]])
    assert "[private: answer]" in prompt and "Wind." in prompt
    answer = json.dumps(response_body(played))
    assert "sentinel-reference" not in answer + json.dumps([list(stored.events), stored.private])
    assert "judge_calls" not in answer and "You are a judge" not in answer


SCALES = '''
app = TaskApp("scales")
app.tasks("scales", prompt="{question}", train=[{"question": "Why does it rain?"}])
@app.rubric
def correct(answer_text):
    """It is right."""
    return 0
@app.judge(weight=0.5, scale=(0, 10), samples=2)
def clear(answer_text):
    """Is it clear?"""
    return answer_text
@app.judge(weight=1.5, choices=["rude", "plain", "polite"])
def tone(answer_text):
    """Is it polite?"""
    return answer_text
'''


async def test_scores_enter_the_outcome_by_their_scale(tmp_path: Path) -> None:
    """By hand: clear (8 + 6) / 2 = 7 of 10 is 0.7; plain is the middle of three, 0.5; correct is 0.

    (1 · 0 + 0.5 · 0.7 + 1.5 · 0.5) / (1 + 0.5 + 1.5) = 1.1 / 3. Raw scores made it (0 + 3.5 + 0.75) / 3 = 1.42.
    """
    said = [{"reason": "r", "score": 8}, {"reason": "r", "score": 6}, {"reason": "r", "choice": "plain"}]
    answers = iter(said)
    with MockModel(lambda request: json.dumps(next(answers))) as model:
        async with asking(app_from(tmp_path, SCALES, name="scales.py"), model) as service:
            body = response_body(await service.rollout(answer_of("Clouds.")))
    card = {item["name"]: item for item in body["scorecard"]["criteria"]}
    assert [(name, item["score"], item["normalised"]) for name, item in card.items()] == [
        ("correct", 0.0, 0.0), ("clear", 7.0, 0.7), ("tone", 0.5, 0.5),
    ]  # fmt: skip
    assert card["clear"]["spread"] == 2.0
    assert body["reward"] == body["metrics"]["outcome_score"] == pytest.approx(1.1 / 3)
    told = body["metrics"]["details"]["rubric"]["per_criterion"]["clear"]
    assert (told["score"], told["normalised"]) == (7.0, 0.7)
