"""`?events=1` has the calls of judges and of models that the environment asked, and neither private fields nor end state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.evaluate.source import open_source
from taskapp_kit.records.protocols import SystemClock
from taskapp_kit.rollout.details import RolloutDetails, details_of
from taskapp_kit.rollout.models.access import model_access
from taskapp_kit.rollout.service import Service
from taskapp_kit.store import open_store
from taskapp_kit.testing import MockModel, judge
from tests.rollouts import app_from
from tests.serve.running_server import KEY, RunningServer, opened

pytestmark = pytest.mark.server

APP = '''
app = TaskApp("guests", version="2")
class Row(BaseModel):
    question: str
    answer: Private[str]
ROWS = [Row(question="Why?", answer="sentinel-answer")]
@app.environment("guest", tasks={"train": ROWS}, max_turns=3)
class Guest:
    def reset(self, task, context) -> str:
        said = context.model("user").ask([{"role": "user", "content": f"Begin. {task.answer}"}]).message["content"]
        return f"{task.question} {len(said)}"
    @action(noop={})
    def wait(self) -> Step:
        """Wait."""
        return Step("Done.", terminated=True)
    def final_state(self):
        return {"orders": [{"code": "sentinel-state", "total": 471147114711}], "n": 7}
@app.judge(weight=1)
def fine(trajectory, task):
    """Is it fine?"""
    return f"{task.answer}; {trajectory.final_state}; after {trajectory.length} step"
'''


def a_body(**more: Any) -> dict[str, Any]:
    policy = {"config": {"policy": "noop"}}
    return {"run_id": "r", "mode": "eval", "ops": [], "env": {"seed": 0}, "policy": policy, **more}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Any], RunningServer]]:
    """Opens a server of the app whose judge answers like this, with a store."""
    folder = tmp_path_factory.mktemp("guests")
    app = app_from(folder, APP)
    from contextlib import ExitStack

    with ExitStack() as stack:
        user = stack.enter_context(MockModel(lambda _: "Hello, sentinel-answer."))

        def server_of(says: Any) -> RunningServer:
            verdict = stack.enter_context(MockModel(says))
            variables = {
                "TASKAPP_USER_URL": user.url, "TASKAPP_USER_MODEL": "u", "TASKAPP_JUDGE_URL": verdict.url, "TASKAPP_JUDGE_MODEL": "j",
            }  # fmt: skip
            models = model_access(Settings(variables=variables), "local", SystemClock())

            def make(*given: Any, **named: Any) -> Service:
                return Service(*given, **named, models=models)

            return stack.enter_context(opened(exposure="local", store=open_store("memory"), serves=app, make=make))

        yield server_of


def shown_by(running: RunningServer, rollout_id: str) -> RolloutDetails:
    async def read() -> RolloutDetails:
        source = open_source(str(running.client.base_url).rstrip("/"), key=KEY)
        try:
            return details_of(await source.load(rollout_id))
        finally:
            await source.close()

    return asyncio.run(read())


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "one"}])
def test_of_a_scored_rollout(serving: Callable[[Any], RunningServer], headers: dict[str, str]) -> None:
    running = serving(judge(0.5, "So so, sentinel-answer."))
    answered = running.client.post("/rollout", json=a_body(), headers=headers)
    assert answered.status_code == 200, answered.text
    assert "judge_calls" not in answered.text and "auxiliary_calls" not in answered.text
    rollout_id = answered.json()["rollout_id"]
    plain = running.client.get(f"/rollouts/{rollout_id}").json()
    for _ in range(2):
        found = running.client.get(f"/rollouts/{rollout_id}?events=1")
        trace = found.json()["trajectories"][0]["trace"]
        (asked,) = trace["auxiliary_calls"]
        assert (asked["role"], asked["reply"]["content"]) == ("user", "Hello, [private: answer].")
        (judged,) = trace["judge_calls"]["calls"]
        assert judged["verdict"]["fine"] == {"reason": "So so, [private: answer].", "score": 0.5}
        prompt = json.dumps(trace["judge_calls"]["prompts"][judged["prompt"]])
        assert "[private: answer]" in prompt and "[private: final_state]" in prompt and "after 1 step" in prompt
        assert "You are a judge" in prompt and "Is it fine?" in prompt
        assert not [secret for secret in ("sentinel-answer", "sentinel-state", "471147114711") if secret in found.text]
    without = found.json()
    for name in ("event_history", "judge_calls", "auxiliary_calls"):
        without["trajectories"][0]["trace"].pop(name)
    plain["trajectories"][0]["trace"].pop("event_history")
    assert without == plain
    shown = shown_by(running, rollout_id)
    assert shown.stored.status == "terminated" and shown.stored.reward == 0.5 and shown.turns[0].steps[0].terminated
    assert [call.role for call in shown.auxiliary_calls] == ["user"]
    assert [call.judges for call in shown.judge_calls] == [("fine",)]


def test_of_one_whose_judge_gave_no_verdict(serving: Callable[[Any], RunningServer]) -> None:
    running = serving(lambda _: "No.")
    failed = running.client.post("/rollout", json=a_body())
    rollout_id = failed.json()["detail"]["error"]["rollout_id"]
    told = running.client.get(f"/rollouts/{rollout_id}?events=1").json()
    assert len(told["trace"]["judge_calls"]["calls"]) == 3 and told["trace"]["event_history"]
    assert told["detail"]["error"]["boundary"] == "scoring"
    shown = shown_by(running, rollout_id)
    assert shown.failure is not None and (shown.failure.boundary, shown.failure.code) == ("scoring", "judge_unreadable")
    assert [call.problem is not None for call in shown.judge_calls] == [True] * 3


def test_without_any_there_is_no_member(serving: Callable[[Any], RunningServer], tmp_path: Path) -> None:
    app = app_from(
        tmp_path,
        "app = TaskApp('a')\napp.tasks('a', prompt='Q', train=[{'q': 1}])\n@app.rubric\ndef ok() -> float:\n    return 1.0\n",
    )
    with opened(store=open_store("memory"), serves=app) as running:
        policy = {"config": {"policy": "constant", "action": "x"}}
        rollout_id = running.client.post("/rollout", json=a_body(policy=policy)).json()["rollout_id"]
        trace = running.client.get(f"/rollouts/{rollout_id}?events=1").json()["trajectories"][0]["trace"]
        assert trace["event_history"] and not {"judge_calls", "auxiliary_calls"} & set(trace)
