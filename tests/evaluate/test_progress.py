"""What is used so far is shown while rollouts are under way, whether or not one has ended."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.evaluate.progress import Progress
from taskapp_kit.evaluate.run import AutoConcurrency
from taskapp_kit.evaluate.runners import LocalRunner, RemoteRunner
from taskapp_kit.records.events import Answered
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.records.seeds import Seeds
from taskapp_kit.records.trajectory import Decision
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.testing import ChatRequest, Faults, MockModel

pytestmark = pytest.mark.server

ADDER = str(Path(__file__).parents[2] / "examples" / "adder.py")


class Waiting:
    """A watch that lets the model go on once it has seen a turn of a rollout that has not ended."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.ended = 0
        self.seen: tuple[int, int, float] | None = None

    def begin(self, *, asked: int, done: int) -> None:
        pass

    def result(self, result: RolloutRow, policy: str) -> None:
        self.ended += 1

    def tick(self, progress: Progress) -> None:
        if progress.turns and self.seen is None:
            assert self.ended == 0
            self.seen = progress.under_way, progress.turns, progress.tokens
            self.go_on.set()


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_rollout_that_has_not_ended_is_seen(evaluations: Any, tmp_path: Path, workers: int) -> None:
    watch = Waiting()

    async def slow(request: ChatRequest) -> object:
        if request.turn:
            await asyncio.to_thread(watch.go_on.wait, 60)
        return {"add": {"amount": 1}}

    with MockModel(slow) as model:
        asked = EvalPlan(Seeds.read("0-1"), [{"model": "m", "inference_url": model.url}], ops=2)
        player = LocalRunner(find_app(ADDER), Settings(), workers=workers)
        summary = evaluations.run(tmp_path, asked, player, watch=watch, tick_seconds=0.02, concurrency=2)
    assert watch.seen is not None
    under_way, turns, tokens = watch.seen
    assert under_way == 2
    assert turns in (1, 2)
    assert tokens > 0
    assert summary["rollouts"]["done"] == 2


def test_costs_are_summed_where_prices_are_known() -> None:
    progress = Progress()
    usage = {"prompt_tokens": 10.0, "completion_tokens": 2.0, "total_tokens": 12.0}
    progress.count_event(Answered(0, Decision(usage=usage)))
    progress.count_event(Answered(1, Decision(), scripted=True))
    assert (progress.turns, progress.tokens, progress.cost) == (1, 12.0, None)
    progress.count_event(Answered(1, Decision(usage=usage, details={"cost": 0.25})))
    progress.count_event(Answered(2, Decision(usage=usage, details={"cost": 0.5})))
    assert (progress.turns, progress.tokens, progress.cost) == (3, 36.0, 0.75)


def test_a_servers_rollouts_are_added_when_they_end(tmp_path: Path) -> None:
    progress, key = Progress(), "k" * 40

    async def go(url: str, model: str) -> None:
        player = RemoteRunner(url, key)
        try:
            asked = EvalPlan(Seeds.read("0-1"), [{"model": "m", "inference_url": model}], ops=2)
            await player.play(asked.request(0, "r"), key="one", progress=progress)
        finally:
            await player.close()

    app = build(find_app(ADDER), Settings(environment_api_key=key), exposure="local")
    with BackgroundServer(app) as server, MockModel([{"add": {"amount": 1}}]) as model:
        asyncio.run(go(server.url, model.url))
    assert progress.turns == 2
    assert progress.tokens > 0


def test_answers_are_remembered_once_they_are_asked_for() -> None:
    progress = Progress()

    def answered(**details: Any) -> None:
        progress.count_event(Answered(0, Decision(details={"attempts": 1, "seconds": 0.5, **details})))

    answered()
    assert progress.new_calls() == []
    answered()
    answered(seconds=0.25)
    answered(cached=True)
    progress.count_event(Answered(0, Decision()))
    assert progress.new_calls() == [0.5, 0.25]
    assert progress.new_calls() == []
    seen = []
    for signs in (0, 2, 2, 3):
        progress.see_congestion(signs)
        seen.append(progress.new_congestion())
    assert seen == [False, True, False, True]


def test_auto_grows_no_further_where_a_model_says_429(evaluations: Any, tmp_path: Path) -> None:
    concurrency = AutoConcurrency()
    with MockModel([{"add": {"amount": 1}}], faults=Faults({"429": 0.3})) as model:
        asked = EvalPlan(Seeds.read("0-19"), [{"model": "m", "inference_url": model.url}], ops=1)
        player = LocalRunner(find_app(ADDER), Settings(), concurrency=64)
        summary = evaluations.run(tmp_path, asked, player, concurrency=concurrency)
    assert summary["rollouts"]["done"] == 20
    assert concurrency.limit == 8
