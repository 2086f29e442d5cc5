"""ORS over a real server, request by request. Its own clients are in tests/interop."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import random
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit import Step, TaskApp, Trajectory, action
from taskapp_kit.config import Settings
from taskapp_kit.interop.ors.stream import CHUNK, pieces
from taskapp_kit.net.sse import SseReader
from taskapp_kit.store import open_store
from tests.interop.shared.every_protocol import Place, by_ors, episode_of
from tests.serve.running_server import ALIAS, KEY, RunningServer, error_of, opened, request_body
from tests.waiting import until

pytestmark = pytest.mark.server

SETTINGS = Settings(environment_api_key=KEY, environment_api_key_aliases=(ALIAS,), protocols=("ors",))
PREFIXES = ("", "/ors", "/counter", "/ors/counter")


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with opened(SETTINGS, store=open_store(str(tmp_path_factory.mktemp("ors") / "s.db"))) as running:
        yield running


def events_of(answer: httpx.Response) -> list[tuple[str, str]]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [(frame.event, frame.data) for frame in SseReader().feed(answer.content.replace(b"data: \n", b"data: -\n"))]


def result_of(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    kinds = events_of(answer)
    assert kinds[0][0] == "task_id" and kinds[-1][0] == "end", kinds
    return json.loads("".join(data for _, data in kinds[1:]))


class Session:
    """One session, as a client has it."""

    def __init__(
        self, running: RunningServer, environment: str, task: dict[str, Any], prefix: str | None = None
    ) -> None:
        self.client = running.client
        self.prefix = f"/ors/{environment}" if prefix is None else prefix
        ((kind, sid), end) = events_of(self.client.post(f"{self.prefix}/create_session"))
        assert (kind, end[0]) == ("task_id", "end")
        self.sid = sid
        self.headers = {"X-Session-ID": sid}
        self.created = self.post("create", {"env_name": environment, **task})

    def post(self, verb: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.client.post(f"{self.prefix}/{verb}", json=body, headers=self.headers, **more)

    def get(self, verb: str) -> httpx.Response:
        return self.client.get(f"{self.prefix}/{verb}", headers=self.headers)

    def call(self, name: str, arguments: Any, **more: Any) -> Any:
        return result_of(self.post("call", {"name": name, "input": arguments, **more}))

    def delete(self) -> None:
        assert self.post("delete").json() == {"sid": self.sid}
        assert self.post("delete_session").json() == {"sid": self.sid}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_path_answers_without_a_redirect(yard: RunningServer, prefix: str) -> None:
    """With the environment's name and without it, at /ors and at the root; no redirect."""
    rollout = yard.client.post("/rollout", json=request_body(seed=5)).json()
    seen = by_ors(Place(yard, ""), episode_of(rollout), prefix)
    assert (seen.digest, sum(reward or 0 for reward in seen.rewards)) == (rollout["digest"], rollout["reward"])
    get, post = yard.client.get, yard.client.post
    assert get(f"{prefix}/splits").json()[0] == {"name": "train", "type": "train"}
    assert [tool["name"] for tool in get(f"{prefix}/tools").json()["tools"]] == ["increment"]
    task = post(f"{prefix}/task", json={"split": "train", "index": 1}).json()
    assert task == {"task": {"split": "train", "seed": 1}, "env_name": "counter"}
    assert post(f"{prefix}/task_range", json={"split": "train", "stop": 2}).json()["env_name"] == "counter"
    session = Session(yard, "counter", {"split": "train", "index": 2}, prefix)
    assert session.created.status_code == 200
    assert [tool["name"] for tool in session.get("task_tools").json()["tools"]] == ["increment"]
    roles = [message["role"] for message in session.get("messages").json()]
    assert roles == ["system", "user"]
    assert session.post("ping").json() == {"status": "ok"}
    assert error_of(session.post("score_group", {"candidates": []}))["code"] == "group_scoring_unsupported"
    session.delete()


def test_the_server_describes_itself(yard: RunningServer) -> None:
    assert yard.client.get("/ors/health").json() == {"status": "ok"}
    assert yard.client.get("/ors/list_environments").json() == list(yard.service.spec.environments)
    assert yard.client.get("/list_environments").json()[0] == "counter"
    assert "taskapp-kit" in yard.client.get("/ors/version").json()["version"]
    assert yard.client.get("/health").json()["status"] == "healthy"
    ping = b"POST //ping HTTP/1.1\r\nHost: x\r\nX-API-Key: " + KEY.encode() + b"\r\nContent-Length: 0\r\n\r\n"
    assert b"session_header_missing" in yard.raw(ping)  # openreward, where the base URL ends with a slash
    assert error_of(yard.client.get("/nothing/tools"))["message"] == "The route does not exist."
    assert error_of(yard.client.get("/ors/nothing/tools"))["hint"].startswith("The app's environments are counter")  # type: ignore[attr-defined]
    assert error_of(yard.client.post("/score_group", json={}))["code"] == "invalid_request"  # the kit's own
    by_deployment = yard.client.get("/tools", headers={"X-Deployment": "QUIZ"}).json()["tools"]
    assert by_deployment != yard.client.get("/tools").json()["tools"]


def test_a_prompt_has_no_private_field(yard: RunningServer) -> None:
    session = Session(yard, "quiz", {"split": "train", "index": 1})
    prompt = session.get("prompt").text
    assert "Three and three?" in prompt and "sentinel" not in prompt
    session.delete()


@pytest.mark.parametrize(
    "body,status",
    [
        ({}, 422),
        ({"task_spec": {"seed": 1}, "split": "train", "index": 1}, 422),
        ({"split": "train"}, 422),
        ({"index": 1}, 422),
        ({"task_spec": {}}, 422),
        ({"task_spec": {"seed": -1}}, 422),
        ({"task_spec": {"seed": 1, "x": 1}}, 422),
        ({"task_spec": {"seed": 1}, "toolset_name": "codex"}, 422),
        ({"task_spec": {"seed": 1, "split": "no"}}, 400),
        ({"split": "no", "index": 1}, 400),
        ({"split": "train", "index": 10**6}, 400),
        ({"split": "train", "index": -1}, 400),
        ({"env_name": "no", "split": "train", "index": 1}, 404),
    ],
)
def test_invalid_sessions_are_rejected(yard: RunningServer, body: dict[str, Any], status: int) -> None:
    before = len(yard.service.sessions)
    answer = yard.client.post("/create", json=body, headers={"X-Session-ID": "one"})
    assert answer.status_code == status and error_of(answer)
    assert len(yard.service.sessions) == before


def test_session_header_is_required(yard: RunningServer) -> None:
    body = {"split": "train", "index": 1}
    for headers in ({}, {"X-Session-ID": ""}, {"X-Session-ID": "x" * 256}):
        for verb in ("create", "ping", "call", "delete"):
            answer = yard.client.post(f"/ors/{verb}", json=body, headers=headers)
            assert (answer.status_code, error_of(answer)["code"]) == (400, "session_header_missing")
    session = Session(yard, "counter", body)
    assert error_of(session.post("create", body))["code"] == "session_exists"
    assert session.post("create", body).status_code == 400
    other = yard.client.get("/ors/quiz/prompt", headers=session.headers)
    assert other.status_code == 422 and "'counter'" in str(error_of(other)["message"])
    session.delete()
    for verb in ("ping", "call"):
        assert session.post(verb, {"name": "increment", "input": {}}).status_code == 404
    session.delete()  # again: nothing to do
    assert len(yard.service.sessions) == 0


def test_a_refused_action_is_a_malformed_call_until_it_ends_the_episode(yard: RunningServer) -> None:
    session = Session(yard, "counter", {"task_spec": {"seed": 0}})
    assert session.call("jump", {})["reason"] == "not_found"
    answer = session.call("increment", {"by": "one"})
    assert (answer["ok"], answer["reason"]) == (False, "input_validation") and "by" in answer["error"]
    for wrong in ([], "text", 1, None):
        answer = session.call("increment", wrong)
        if answer["ok"]:
            break
    else:
        for _ in range(20):
            answer = session.call("increment", {"by": "one"})
            if answer["ok"]:
                break
    output = answer["output"]
    assert output["finished"] and output["metadata"]["refused"] and output["metadata"]["truncated"]
    assert output["reward"] == output["metadata"]["episode"]["reward"] == 0.0
    after = session.call("any", {})
    assert (after["ok"], after["reason"]) == (False, "episode_finished")
    session.delete()


def test_a_cut_stream_is_resumed_and_the_tool_is_not_run_twice(yard: RunningServer) -> None:
    session = Session(yard, "counter", {"task_spec": {"seed": 0, "config": {"low": 3, "high": 3}}})
    body = {"name": "increment", "input": {"by": 1}}
    first = session.post("call", body)
    (_, task_id), *_ = events_of(first)
    again = session.post("call", {**body, "task_id": task_id})
    assert again.content == first.content
    assert result_of(again)["output"]["metadata"]["turn"] == 1
    assert session.call("increment", {"by": 1})["output"]["metadata"]["turn"] == 2
    assert session.post("call", {**body, "task_id": task_id}).content == first.content  # also after the next call
    unknown = events_of(session.post("call", {**body, "task_id": "0"}))
    assert unknown == [("task_id", "0"), ("error", "unknown task_id")]
    stranger = Session(yard, "counter", {"task_spec": {"seed": 0}})
    assert events_of(stranger.post("call", {**body, "task_id": task_id}))[1][0] == "error"
    session.delete()
    stranger.delete()


def test_client_that_disconnects_during_a_call_finds_its_result(yard: RunningServer) -> None:
    session = Session(yard, "slow", {"split": "train", "index": 0})
    body = {"name": "wait", "input": {}}
    with yard.client.stream("POST", "/slow/call", json=body, headers=session.headers) as answer:
        head = next(answer.iter_raw())
        task_id = SseReader().feed(head)[0].data
    found = result_of(session.post("call", {**body, "task_id": task_id}))
    assert found["ok"] and found["output"]["metadata"]["turn"] == 1
    session.delete()


def test_calls_of_a_session_run_in_order(yard: RunningServer) -> None:
    session = Session(yard, "counter", {"task_spec": {"seed": 0, "config": {"low": 9, "high": 9}}})

    async def all_at_once() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=yard.url, headers={"X-API-Key": KEY, **session.headers}) as client:
            body = {"name": "increment", "input": {"by": 1}}
            return await asyncio.gather(*(client.post("/call", json=body) for _ in range(5)))

    turns = [result_of(answer)["output"]["metadata"]["turn"] for answer in asyncio.run(all_at_once())]
    assert sorted(turns) == [1, 2, 3, 4, 5]
    session.delete()


def test_failure_is_an_error_event_without_the_exceptions_text(yard: RunningServer) -> None:
    unable = Session(yard, "broken", {"split": "train", "index": 0})
    for answer in (unable.get("prompt"), unable.post("call", {"name": "go", "input": {}})):
        assert answer.status_code == 500 and error_of(answer)["boundary"] == "environment"
        assert "sentinel" not in answer.text
    unable.delete()
    session = Session(yard, "broken", {"split": "train", "index": 1})
    for _ in range(2):  # it stays failed
        _, (kind, text) = events_of(session.post("call", {"name": "go", "input": {}}))
        assert kind == "error" and "boundary environment" in text and "error_id" in text and "rollout_id" in text
        assert "sentinel" not in text and "\n" not in text
    session.delete()
    unscored = Session(yard, "pictures", {"split": "train", "index": 0})
    assert unscored.get("prompt").json()[-1]["mimeType"] == "image/png"
    _, (kind, text) = events_of(unscored.post("call", {"name": "look", "input": {}}))
    assert kind == "error" and "boundary scoring" in text and "sentinel" not in text
    unscored.delete()


def test_another_key_finds_no_session_and_may_use_the_same_id(yard: RunningServer) -> None:
    def ask(key: str, verb: str, body: Any = None) -> httpx.Response:
        headers = {"X-API-Key": key, "X-Session-ID": "the-same"}
        return yard.stranger.post(f"/ors/{verb}", json=body, headers=headers)

    body = {"task_spec": {"seed": 1}}
    assert ask(KEY, "create", body).status_code == 200
    assert ask(ALIAS, "ping").status_code == 404
    assert ask(ALIAS, "delete").status_code == 200
    assert ask(KEY, "ping").status_code == 200
    assert ask(ALIAS, "create", body).status_code == 200
    assert len(yard.service.sessions) == 2
    assert ask(ALIAS, "delete").status_code == ask(KEY, "delete").status_code == 200
    assert len(yard.service.sessions) == 0


def test_id_of_an_expired_session_can_be_reused(yard: RunningServer) -> None:
    sessions = yard.service.sessions
    idle = Session(yard, "counter", {"task_spec": {"seed": 1}})
    seconds, sessions.idle_seconds = sessions.idle_seconds, 0.0
    until(lambda: len(sessions) == 0, 20, "an idle session ends")
    sessions.idle_seconds = seconds
    assert idle.post("ping").status_code == 404
    assert idle.post("create", {"task_spec": {"seed": 1}}).status_code == 200
    idle.delete()


def test_secrets_are_not_read(yard: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    secret = base64.b64encode(json.dumps({"api_key": {"value": "sentinel-secret-7c1"}}).encode()).decode()
    with caplog.at_level(logging.DEBUG):
        headers = {"X-Session-ID": "with-secrets", "X-Secrets": secret}
        created = yard.client.post("/create", json={"task_spec": {"seed": 1}}, headers=headers)
        prompt = yard.client.get("/prompt", headers=headers)
        wrong = yard.client.post("/call", json={"name": 1}, headers=headers)
        assert yard.client.post("/delete", headers=headers).status_code == 200
    assert (created.status_code, prompt.status_code, wrong.status_code) == (200, 200, 422)
    everything = caplog.text + created.text + prompt.text + wrong.text
    assert secret not in everything and "sentinel-secret" not in everything


app = TaskApp("gates", version="1.0.0")
GATE = threading.Event()


@app.environment("gated", splits={"train": range(8)})
class Gated:
    """Begins when the gate is open."""

    def reset(self, seed: int) -> str:
        GATE.wait(20)
        return f"seed {seed}"

    @action
    def go(self) -> Step:
        """Go."""
        return Step("there", reward=0.25, terminated=True)


@app.judge(environment="gated", group=True, weight=0)
def longest(trajectories: list[Trajectory]) -> list[str]:
    """Which one is the best?"""
    return ["" for _ in trajectories]


def test_a_slow_start_is_a_503_that_clients_repeat_and_410_when_it_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskapp_kit.interop.ors.episodes.SETUP_SECONDS", 0.3)
    GATE.clear()
    with opened(SETTINGS, serves=app) as running:
        session = Session(running, "gated", {"split": "train", "index": 1})
        assert session.created.status_code == 200 and session.get("task_tools").status_code == 200
        slow = session.get("prompt")
        assert (slow.status_code, slow.headers["x-backend-state"], slow.headers["retry-after"]) == (
            503,
            "starting",
            "2",
        )
        assert session.post("call", {"name": "go", "input": {}}).status_code == 503
        GATE.set()
        until(lambda: session.get("prompt").status_code == 200, 20, "the episode begins")
        assert session.call("go", {})["output"]["reward"] == 0.25
        assert session.get("task_tools").json()["supports_score_group"] is True
        for candidate in ({"messages": []}, {"messages": [], "metadata": {"rollout_id": "0" * 32}}):
            _, (kind, text) = events_of(session.post("score_group", {"candidates": [candidate, candidate]}))
            assert kind == "error" and text
        session.delete()
    monkeypatch.setattr("taskapp_kit.interop.ors.episodes.SETUP_SECONDS", 20)
    GATE.clear()
    with opened(SETTINGS, serves=app) as running:
        session = Session(running, "gated", {"split": "train", "index": 1})
        answers: list[httpx.Response] = []
        waiting = threading.Thread(target=lambda: answers.append(session.get("prompt")))
        session.post("ping")
        (listed,) = running.service.sessions.listed()
        pinged_at = listed.used_at
        waiting.start()
        until(lambda: listed.used_at > pinged_at, 20, "the prompt is asked for")
        deleting = threading.Thread(target=session.delete)
        deleting.start()
        until(lambda: listed.closed, 20, "the session is deleted")
        GATE.set()
        waiting.join(20)
        deleting.join(20)
        assert (answers[0].status_code, error_of(answers[0])["code"]) == (410, "session_deleted")


@given(st.text(alphabet=st.sampled_from([" ", "a", "\u3000", "é", '"']), max_size=200), st.integers(1, 60))
def test_no_piece_begins_with_a_space(text: str, repeated: int) -> None:
    whole = "{" + text * repeated * 40 + "}"
    found = list(pieces(whole))
    assert "".join(found) == whole
    assert all(not piece[0].isspace() for piece in found)
    assert [piece.lstrip() for piece in found] == found
    rng = random.Random(len(whole))
    plain = "".join(rng.choice("ab") for _ in range(3 * CHUNK + 5))
    assert [len(piece) for piece in pieces(plain)] == [CHUNK, CHUNK, CHUNK, 5]
