"""Who may ask for an app's policy `gold`, by exposure, setting and what the function takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskapp_kit import TaskApp
from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.declare.app import Exposure
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.rollouts import app_from

pytestmark = pytest.mark.server

KEY = "key-of-this-test"
SECRET = "sentinel-secret"
APP = f"""
app = TaskApp("a")
class Row(BaseModel):
    question: str
    answer: Private[str] = "{SECRET}"
app.tasks("reads_rows", row=Row, prompt="{{question}}", train=[Row(question="a")])
app.tasks("reads_words", row=Row, prompt="{{question}}", train=[Row(question="a")])
@app.rubric
def right(answer_text, task): return float(answer_text == task.answer)
@app.policy("gold", environment="reads_rows")
def from_the_row(task): return task.answer
@app.policy("gold", environment="reads_words")
def from_the_observation(observation): return "no idea"
"""
CASES: list[tuple[Exposure, bool | None, bool, bool]] = [
    ("public", None, False, True),
    ("public", True, True, True),
    ("public", False, False, False),
    ("local", None, True, True),
    ("local", True, True, True),
    ("local", False, False, False),
]
"""exposure, the setting, whether each of the two is offered."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> TaskApp:
    return app_from(tmp_path_factory.mktemp("gold"), APP)


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}", scope="module")
def served(request: pytest.FixtureRequest, app: TaskApp) -> Iterator[tuple[httpx.Client, dict[str, bool]]]:
    exposure, gold, rows, words = request.param
    server = BackgroundServer(build(app, Settings(environment_api_key=KEY, gold=gold), exposure=exposure))
    with server, httpx.Client(base_url=server.url, headers={"X-API-Key": KEY}) as client:
        yield client, {"reads_rows": rows, "reads_words": words}


def ask(client: httpx.Client, environment: str, policy: dict[str, Any]) -> httpx.Response:
    env = {"env_name": environment, "seed": 0}
    return client.post("/rollout", json={"run_id": "r", "mode": "eval", "ops": [], "env": env, "policy": policy})


@pytest.mark.parametrize("environment", ["reads_rows", "reads_words"])
def test_gold_policy_plays_where_it_is_offered(served: tuple[httpx.Client, dict[str, bool]], environment: str) -> None:
    client, offered = served
    told = client.get("/task_info", params={"environment": environment, "seed": 0}).json()
    assert ("gold" in told["inference"]["policies"]) is offered[environment]
    for policy in ({"policy_name": "gold", "config": {}}, {"config": {"policy": "gold"}}):
        answer = ask(client, environment, policy)
        if offered[environment]:
            assert answer.status_code == 200, answer.text
            assert (SECRET in answer.text) is (environment == "reads_rows")
            continue
        assert answer.status_code == 422
        error = answer.json()["detail"]["error"]
        assert error["code"] == "policy_unavailable"
        assert "TASKAPP_GOLD" in error["hint"]
        assert error["fields"][0]["loc"] == ["body", "policy", *(["config", "policy"] if "policy_name" not in policy else ["policy_name"])]  # fmt: skip
        assert SECRET not in json.dumps(answer.json())
    unknown = ask(client, environment, {"config": {"policy": "golden"}}).json()["detail"]["error"]
    assert unknown["code"] == "unknown_policy"
    assert ("gold," in unknown["message"]) is offered[environment]


def test_withheld_gold_policy_is_not_a_label_next_to_a_model(app: TaskApp) -> None:
    policy = {"policy_name": "gold", "config": {"inference_url": "https://models.example/v1", "model": "m"}}
    with (
        BackgroundServer(build(app, Settings(environment_api_key=KEY))) as server,
        httpx.Client(base_url=server.url, headers={"X-API-Key": KEY}) as client,
    ):
        answer = ask(client, "reads_rows", policy)
    assert answer.json()["detail"]["error"]["code"] == "policy_unavailable"


@pytest.mark.parametrize(("value", "gold"), [("on", True), ("off", False), (None, None)])
def test_the_setting(value: str | None, gold: bool | None, tmp_path: Path) -> None:
    from taskapp_kit.config import load

    assert load({}, folder=tmp_path, environ={"TASKAPP_GOLD": value} if value else {}).gold is gold
    assert load({"gold": False}, folder=tmp_path, environ={"TASKAPP_GOLD": "on"}).gold is False
