"""Judges over the wire: a real service, the real client, a real model server, and the texts that try to move it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import RolloutFailed, TaskApp
from taskapp_kit.config import load
from taskapp_kit.errors import Unavailable
from taskapp_kit.records.protocols import Store, SystemClock
from taskapp_kit.rollout.models.access import model_access
from taskapp_kit.rollout.response import response_body
from taskapp_kit.rollout.service import Service, ServiceSettings
from taskapp_kit.store import open_store
from taskapp_kit.testing import Faults, MockModel, judge, obedient_judge
from tests.rollout.score.test_injection import INJECTIONS
from tests.rollout.score.test_verdict import GARBAGE
from tests.rollouts import a_request, app_from

pytestmark = pytest.mark.server

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


@asynccontextmanager
async def serving(
    app: TaskApp, model: MockModel | None, monkeypatch: pytest.MonkeyPatch, *, store: Store | None = None, workers: int = 0
) -> AsyncIterator[Service]:  # fmt: skip
    for part, value in (("URL", model and model.url), ("MODEL", "m")):
        if model is None:
            monkeypatch.delenv(f"TASKAPP_JUDGE_{part}", raising=False)
        else:
            monkeypatch.setenv(f"TASKAPP_JUDGE_{part}", str(value))
    models = model_access(load({}), "local", SystemClock())
    service = Service(app, ServiceSettings(workers=workers, exposure="local"), store=store, models=models)
    try:
        yield service
    finally:
        await service.close()


def test_no_injection_moves_a_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(model: MockModel) -> list[float | None]:
        async with serving(app_of(tmp_path), model, monkeypatch) as service:
            texts = [text.encode(errors="replace").decode()[:200_000] for text in INJECTIONS.values()]
            played = [await service.rollout(a_request("constant", seed=0, action=text)) for text in texts]
            return [rollout.scorecard.reward for rollout in played]

    with MockModel(obedient_judge(0.25)) as model:
        assert set(asyncio.run(run(model))) == {0.25}
        assert len(model.requests) == len(INJECTIONS)


def test_no_garbage_becomes_a_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name, said in GARBAGE.items() if isinstance(said, str) and said.strip() and "\x00" not in said]

    async def run(model: MockModel) -> list[str]:
        codes = []
        async with serving(app_of(tmp_path), model, monkeypatch) as service:
            for at in range(len(names)):
                with pytest.raises(RolloutFailed) as caught:
                    await service.rollout(a_request("constant", seed=0, action=f"case {at}."))
                codes.append(f"{caught.value.boundary} {caught.value.failure.code}")
        return codes

    def answer(request: Any) -> dict[str, str]:
        return {"content": GARBAGE[names[int(request.text.split("\ncase ")[1].split(".")[0])]]}

    with MockModel(answer) as model:
        assert set(asyncio.run(run(model))) == {"scoring judge_unreadable"}
    assert len(names) > 30


@pytest.mark.ci(keep=1)
@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
def test_a_judge_that_hangs_is_a_timeout_of_the_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    async def run(model: MockModel) -> str:
        async with serving(app_of(tmp_path, 0.0), model, monkeypatch, workers=workers) as service:
            await service.start()
            with pytest.raises(RolloutFailed) as caught:
                await service.rollout(a_request("constant", seed=0, action="x", safety={"max_time_s": 1.0}))
            return caught.value.boundary

    with MockModel(judge(0.5), faults=Faults({"hang": 1.0})) as model:
        assert asyncio.run(run(model)) == "timeout"


def test_without_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(weight: float) -> Any:
        async with serving(app_of(tmp_path, weight), None, monkeypatch) as service:
            return (await service.rollout(a_request("constant", seed=0, action="x"))).scorecard.criteria[0]

    item = asyncio.run(run(0.0))
    assert (item.score, item.reason) == (None, "not_configured")
    with pytest.raises(Unavailable, match="TASKAPP_JUDGE_URL"):
        asyncio.run(run(1.0))


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_every_call_is_stored_and_no_private_value_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    async def run(model: MockModel) -> None:
        store = open_store(str(tmp_path / "rollouts.db"))
        async with serving(app_of(tmp_path), model, monkeypatch, store=store, workers=workers) as service:
            played = await service.rollout(a_request("constant", seed=0, action="Wind."))
            answer = json.dumps(response_body(played))
            assert played.scorecard.criteria[0].reason == "It is not [private: answer]."
            stored = await store.load(played.rollout_id)
            assert stored is not None
            (call,) = stored.private["judge_calls"]["calls"]
            assert (call["role"], call["verdict"]["true"]["score"]) == ("judge", 0.5)
            prompt = json.dumps(stored.private["judge_calls"]["prompts"][call["prompt"]])
            assert "[private: answer]" in prompt and "Wind." in prompt
            assert "sentinel-reference" not in answer + prompt + json.dumps(list(stored.events)) + json.dumps(
                stored.private
            )
            assert "judge_calls" not in answer and "You are a judge" not in answer
            with pytest.raises(RolloutFailed) as caught:
                await service.rollout(a_request("constant", seed=0, action="silent"))
            failed = await store.load(caught.value.rollout_id)
            assert failed is not None
            assert len(failed.private["judge_calls"]["calls"]) == 3

    def answer_to(request: Any) -> Any:
        return "No." if "silent" in request.text else judge(0.5, "It is not sentinel-reference.")(request)

    with MockModel(answer_to) as model:
        asyncio.run(run(model))


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


def test_scores_enter_the_outcome_by_their_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: clear (8 + 6) / 2 = 7 of 10 is 0.7; plain is the middle of three, 0.5; correct is 0.

    (1 · 0 + 0.5 · 0.7 + 1.5 · 0.5) / (1 + 0.5 + 1.5) = 1.1 / 3. Raw scores made it (0 + 3.5 + 0.75) / 3 = 1.42.
    """
    said = [{"reason": "r", "score": 8}, {"reason": "r", "score": 6}, {"reason": "r", "choice": "plain"}]

    async def run(model: MockModel) -> dict[str, Any]:
        async with serving(app_from(tmp_path, SCALES, name="scales.py"), model, monkeypatch) as service:
            return response_body(await service.rollout(a_request("constant", seed=0, action="Clouds.")))

    answers = iter(said)
    with MockModel(lambda request: json.dumps(next(answers))) as model:
        body = asyncio.run(run(model))
    card = {item["name"]: item for item in body["scorecard"]["criteria"]}
    assert [(name, item["score"], item["normalised"]) for name, item in card.items()] == [
        ("correct", 0.0, 0.0), ("clear", 7.0, 0.7), ("tone", 0.5, 0.5),
    ]  # fmt: skip
    assert card["clear"]["spread"] == 2.0
    assert body["reward"] == body["metrics"]["outcome_score"] == pytest.approx(1.1 / 3)
    told = body["metrics"]["details"]["rubric"]["per_criterion"]["clear"]
    assert (told["score"], told["normalised"]) == (7.0, 0.7)
