"""NeMo Gym's resources server over a real server, driven by the messages of its `simple_agent` at commit 07d6b0d.

`Agent` sends what `SimpleAgent.run` sends: the row to /seed_session, arguments to a tool's route, row and response to /verify,
and with each request the cookies of the last answer alone. Its answers are checked as `BaseVerifyResponse` declares them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, ConfigDict

from taskapp_kit import TaskApp
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.evaluate.export.task_rows import export_tasks, task_rows
from taskapp_kit.interop.nemo_gym.episodes import OVER
from taskapp_kit.interop.nemo_gym.routes import COOKIE
from taskapp_kit.rollout.service import Service, ServiceSettings
from tests.machine import skip_if_it_cannot_play
from tests.serve.running_server import KEY, RunningServer, error_of, opened, request_body
from tests.waiting import until

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[3]
ASKING = str(ROOT / "tests/interop/shared/asking_apps.py")
SETTINGS = Settings(environment_api_key=KEY, protocols=("nemo",), gold=True)


class VerifyAnswer(BaseModel):
    """`BaseVerifyResponse`, whose subclass in `simple_agent` takes further members."""

    model_config = ConfigDict(extra="allow", strict=True)

    responses_create_params: dict[str, Any]
    response: dict[str, Any]
    reward: float


class Agent:
    """One run of `simple_agent`: `calls` and `words` are what its model answers."""

    def __init__(self, running: RunningServer, row: dict[str, Any]) -> None:
        self.base = f"{running.url}/nemo/{row['environment']}"
        self.row = row
        self.cookies: dict[str, str] = {}
        self.output: list[dict[str, Any]] = []

    def post(self, path: str, body: Any) -> httpx.Response:
        headers = {"X-API-Key": KEY}
        answer = httpx.post(f"{self.base}/{path}", json=body, headers=headers, cookies=self.cookies, timeout=60)
        self.cookies = dict(answer.cookies)
        return answer

    def seed(self) -> None:
        self.post("seed_session", self.row).raise_for_status()

    def call(self, tool: str, args: dict[str, Any]) -> httpx.Response:
        call_id = f"call_{len(self.output)}"
        answer = self.post(tool, args)
        self.output += [
            {"type": "function_call", "call_id": call_id, "name": tool, "arguments": json.dumps(args)},
            {"type": "function_call_output", "call_id": call_id, "output": answer.text},
        ]
        return answer

    def verify(self, words: str = "Done.") -> httpx.Response:
        content = [{"type": "output_text", "text": words, "annotations": []}]
        self.output.append(
            {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": content}
        )
        response = {"id": "resp_1", "object": "response", "model": "m", "created_at": 1.0, "output": self.output}
        return self.post("verify", {**self.row, "response": response})

    def run(self, calls: list[tuple[str, dict[str, Any]]], words: str = "Done.") -> dict[str, Any]:
        """The answer of /verify, or an error where the agent would raise one."""
        self.seed()
        for tool, args in calls:
            self.call(tool, args)
        answer = self.verify(words)
        answer.raise_for_status()
        VerifyAnswer.model_validate(answer.json())
        found: dict[str, Any] = answer.json()
        return found


def row_of(environment: str, seed: int, **more: Any) -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": "x"}], "tools": []}
    return {"responses_create_params": params, "environment": environment, "seed": seed, **more}


def exported(app: TaskApp, folder: Path, **chosen: Any) -> list[dict[str, Any]]:
    """Rows as `taskapp export tasks --format nemo` writes them."""

    async def write() -> None:
        service = Service(app, ServiceSettings(skip_judges=True))
        try:
            await export_tasks(task_rows(service, **chosen), "nemo", folder / "rows.jsonl")
        finally:
            await service.close()

    asyncio.run(write())
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def yard() -> Iterator[RunningServer]:
    with opened(SETTINGS) as running:
        yield running


@pytest.mark.parametrize(
    "reference,environment,policy",
    [(str(ROOT / "examples/adder.py"), "adder", "random"), ("crafter", "crafter", "random"), ("math", "math", "gold")],
)
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_exported_rows_give_the_episodes_and_rewards_of_rollout(
    reference: str, environment: str, policy: str, workers: int, tmp_path: Path
) -> None:
    skip_if_it_cannot_play(reference)
    app = find_app(reference)
    with opened(SETTINGS, serves=app, workers=workers) as running:
        for row in exported(app, tmp_path, environment=environment, seeds=range(2)):
            body = request_body(environment, policy, row["seed"])
            rollout = running.client.post("/rollout", json=body, timeout=120).json()
            steps = rollout["trajectories"][0]["steps"]
            agent = Agent(running, row)
            first = row["responses_create_params"]["input"][-1]["content"]
            assert rollout["trajectories"][0]["trace"]["initial_observation"]["text"] in first
            found = agent.run([(call["tool"], call["args"]) for step in steps for call in step["tool_calls"]])
            shown = [item["output"] for item in agent.output if item["type"] == "function_call_output"]
            assert [text.removesuffix(OVER).rstrip("\n") for text in shown] == [step["obs"]["text"] for step in steps]
            assert shown[-1].endswith(OVER)
            assert (found["taskapp"]["digest"], found["reward"]) == (rollout["digest"], rollout["reward"])
            assert "instance_config" not in found and found["responses_create_params"] == row["responses_create_params"]
        until(lambda: len(running.service.sessions) == 0, 20, "verify closes the session")


def test_an_agent_that_stops_early_is_truncated_and_scored(yard: RunningServer) -> None:
    found = Agent(yard, row_of("counter", 1)).run([("increment", {"by": 1})])
    assert (found["taskapp"]["status"], found["reward"], found["taskapp/truncated"]) == ("truncated", 0.0, 1.0)
    assert "instance_config" not in found, "a trainer uses this reward"


def test_model_reads_observations_and_refusals(yard: RunningServer) -> None:
    agent = Agent(yard, row_of("counter", 0, config='{"low": 2, "high": 2}'))
    agent.seed()
    assert agent.call("increment", {"by": 1}).text == "count 1"
    refused = agent.call("increment", {"by": "x"})
    assert refused.status_code == 200 and "by" in refused.text
    assert "jump" in agent.call("jump", {}).text
    assert agent.call("increment", {"by": 1}).text.startswith("count 2\n\nThe episode is over.")
    assert agent.call("increment", {"by": 1}).text.startswith("The episode is over.")
    assert agent.verify().json()["reward"] == 1.0


@pytest.mark.parametrize(
    "environment,seed,code",
    [("broken", 0, "environment_raised"), ("broken", 1, "environment_raised"), ("pictures", 0, None)],
)
def test_failure_is_masked_and_reported(yard: RunningServer, environment: str, seed: int, code: str | None) -> None:
    row = row_of(environment, seed, instance_config={"mine": 1})
    tool = next(iter(yard.service.spec.environments[environment].actions))
    found = Agent(yard, row).run([(tool, {}), (tool, {})])
    assert found["instance_config"] == {"mine": 1, "mask_sample": True}
    assert found["_ng_failure_class"] == (code or found["taskapp"]["code"]) and found["taskapp"]["rollout_id"]
    assert "sentinel" not in json.dumps(found) and found["taskapp"]["status"] == "failed"
    strict = Agent(yard, {**row, "on_failure": "error"})
    strict.seed()
    strict.call(tool, {})
    answer = strict.verify()
    assert answer.status_code == 500 and error_of(answer)["boundary"] in ("environment", "scoring")


def test_a_tool_of_a_failed_episode_answers_a_fixed_sentence(yard: RunningServer) -> None:
    agent = Agent(yard, row_of("broken", 1))
    agent.seed()
    for _ in range(2):
        answer = agent.call("go", {})
        assert answer.status_code == 500 and answer.text.startswith("The environment failed.")
    agent.verify()


def test_an_undefined_reward_is_masked() -> None:
    with opened(SETTINGS, serves=find_app(ASKING)) as running:
        found = Agent(running, row_of("raising", 0)).run([], "undefined")
        assert found["_ng_failure_class"] == "reward_undefined" and found["instance_config"]["mask_sample"]
        broke = Agent(running, row_of("raising", 1)).run([], "unscorable")
        assert broke["instance_config"]["mask_sample"] and broke["_ng_failure_class"] != "reward_undefined"
        assert "judging" not in json.dumps(found) and "judging" not in json.dumps(broke)
        good = Agent(running, row_of("asking", 0, split="train")).run([], "two")
        assert good["reward"] == 1.0 and "four-only-here" not in json.dumps(good)


def test_expired_session_is_masked_and_verify_without_a_session_rejected(yard: RunningServer) -> None:
    agent = Agent(yard, row_of("counter", 0))
    agent.seed()
    sessions = yard.service.sessions
    idle, sessions.idle_seconds = sessions.idle_seconds, 0.0
    until(lambda: len(sessions) == 0, 20, "the session expires")
    sessions.idle_seconds = idle
    again = agent.verify().json()
    assert again["_ng_failure_class"] == "session_not_found" and again["instance_config"]["mask_sample"]
    agent.cookies = {}
    assert agent.verify().status_code == 422 and agent.call("increment", {"by": 1}).status_code == 422
    agent.cookies = {COOKIE: "none"}
    assert agent.call("increment", {"by": 1}).status_code == 404


@pytest.mark.parametrize(
    "change",
    [
        {"seed": None}, {"seed": -1}, {"seed": "1"}, {"seed": 10**6}, {"environment": "slow"}, {"config": "{"},
        {"config": 1}, {"config": {"low": "x"}}, {"split": "none"}, {"output_mode": "text"}, {"on_failure": "zero"},
    ],
)  # fmt: skip
def test_invalid_row_is_rejected_and_opens_no_session(yard: RunningServer, change: dict[str, Any]) -> None:
    agent = Agent(yard, row_of("counter", 0))
    answer = agent.post("seed_session", {**agent.row, **change})
    assert answer.status_code == 422 and error_of(answer)["message"]
    assert len(yard.service.sessions) == 0 and COOKIE not in answer.cookies


def test_every_answer_sets_the_cookie_again(yard: RunningServer) -> None:
    agent = Agent(yard, row_of("counter", 0))
    agent.seed()
    first = dict(agent.cookies)
    assert set(first) == {COOKIE}
    agent.call("increment", {"by": 1})
    assert agent.cookies == first
    assert agent.verify().json()["taskapp"]["length"] == 1
    assert yard.client.get("/nemo/counter/reverify_mode").json() == "unsupported"
    assert yard.client.post("/nemo/none/seed_session", json={}).status_code == 404
