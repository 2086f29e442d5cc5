"""`/sessions` over HTTP: what each route answers, whose sessions they are, replays, refusals, keys that are revoked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskapp_kit.config import Settings
from taskapp_kit.serve import key_file
from taskapp_kit.serve.routes.sessions import SessionList, SessionStarted, SessionState, SessionStepped
from taskapp_kit.store import open_store
from tests.serve.running_server import KEY, RunningServer, error_of, opened, request_body
from tests.waiting import until

pytestmark = pytest.mark.server

UNKNOWN = "0" * 32


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with opened(store=open_store(str(tmp_path_factory.mktemp("sessions") / "s.db"))) as found:
        yield found


def post(running: RunningServer, path: str, body: Any = None, **named: Any) -> Any:
    answer = running.client.post(path, json={} if body is None else body, **named)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_episode_over_http_is_the_rollout_of_the_same_actions(stored: RunningServer) -> None:
    rollout = stored.client.post("/rollout", json=request_body(seed=5)).json()
    steps = rollout["trajectories"][0]["steps"]
    opened_now = SessionState.model_validate(post(stored, "/sessions", {"env_name": "counter", "run_id": "mine"}))
    path = f"/sessions/{opened_now.session_id}"
    assert opened_now.state == "open" and opened_now.idle_seconds == 900.0
    start = SessionStarted.model_validate(post(stored, f"{path}/reset", {"seed": 5}))
    assert start.observation == steps[0]["info"]["initial_observation"] and start.seed == 5
    assert start.messages[0]["role"] == "system" and start.tools[0]["function"]["name"] == "increment"
    played = []
    for step in steps:
        (call,) = step["tool_calls"]
        played.append(SessionStepped.model_validate(post(stored, f"{path}/step", call)))
        assert played[-1].observation == step["obs"] and played[-1].results[0].reward == step["reward"]
    last = played[-1].episode
    assert last is not None and played[-1].terminated and (last.digest, last.reward) == (
        rollout["digest"], rollout["reward"],
    )  # fmt: skip
    assert sum(step.reward or 0.0 for step in played) == pytest.approx(rollout["reward"])
    found = stored.client.get(f"/rollouts/{last.rollout_id}").json()
    assert found["digest"] == rollout["digest"] and found["run_id"] == "mine"
    assert SessionState.model_validate(stored.client.get(path).json()).state == "over"
    assert post(stored, f"{path}/finish")["episode"]["rollout_id"] == last.rollout_id
    assert stored.client.delete(path).json()["state"] == "closed"
    assert error_of(stored.client.get(path))["code"] == "session_not_found"


def test_finish_and_close(stored: RunningServer) -> None:
    path = f"/sessions/{post(stored, '/sessions')['session_id']}"
    assert error_of(stored.client.post(f"{path}/step", json={"tool": "increment"}))["code"] == "no_episode"
    post(stored, f"{path}/reset", {"seed": 1, "config": {"low": 9, "high": 9}})
    step = post(stored, f"{path}/step", {"actions": [{"tool": "increment"}] * 2})
    assert step["observation"] == {"text": "count 2"}
    assert [result["observation"] for result in step["results"]] == [{"text": "count 1"}, None]
    end = post(stored, f"{path}/finish")
    assert end["truncated"] and end["episode"]["stop_reason"] == "finished" and end["reward"] == 0.0
    refused = stored.client.post(f"{path}/step", json={"tool": "increment"})
    assert (refused.status_code, error_of(refused)["code"]) == (409, "episode_over")
    assert post(stored, f"{path}/close")["state"] == "closed"


def test_text_step_works_in_an_environment_with_a_text_action(stored: RunningServer) -> None:
    path = f"/sessions/{post(stored, '/sessions', {'env_name': 'quiz'})['session_id']}"
    start = post(stored, f"{path}/reset", {"seed": 0})
    assert start["observation"] == {"text": "Two and two?"} and start["actions"][0]["text"] is True
    assert "sentinel" not in str(start)
    assert post(stored, f"{path}/step", {"text": "It is sentinel-four."})["reward"] == 1.0
    post(stored, f"{path}/close")


def test_images_are_inline_in_session_answers(stored: RunningServer) -> None:
    path = f"/sessions/{post(stored, '/sessions', {'env_name': 'pictures'})['session_id']}"
    (block,) = post(stored, f"{path}/reset", {"seed": 0})["observation"]["content"]
    assert block["image_url"]["url"].startswith("data:image/png;base64,")
    failed = stored.client.post(f"{path}/step", json={"tool": "look"})
    assert (failed.status_code, error_of(failed)["boundary"]) == (500, "scoring")
    assert "sentinel" not in failed.text
    again = stored.client.post(f"{path}/finish")
    assert error_of(again)["rollout_id"] == error_of(failed)["rollout_id"]
    post(stored, f"{path}/close")


@pytest.mark.parametrize(
    "verb,body,field",
    [
        ("reset", {"seed": -1}, "seed"),
        ("reset", {"seed": 64, "split": "train"}, "seed"),
        ("reset", {"split": "exam"}, "split"),
        ("reset", {"config": {"low": "x"}}, "low"),
        ("reset", {"sede": 1}, "sede"),
        ("reset", {"reward": {"env": 0}}, "reward"),
        ("reset", {"timeout_s": 0}, "timeout_s"),
        ("step", {}, "tool"),
        ("step", {"tool": "increment", "text": "x"}, "tool"),
        ("step", {"text": "x", "args": {}}, "args"),
        ("step", {"actions": []}, "actions"),
        ("finish", {"request_id": ""}, "request_id"),
    ],
)
def test_a_wrong_body_is_422_and_names_the_member(stored: RunningServer, verb: str, body: Any, field: str) -> None:
    path = f"/sessions/{post(stored, '/sessions')['session_id']}"
    answer = stored.client.post(f"{path}/{verb}", json=body)
    assert answer.status_code == 422, answer.text
    fields: Any = error_of(answer)["fields"]
    assert fields[0]["loc"][0] == "body" and fields[0]["loc"][-1] == field
    post(stored, f"{path}/close")


def test_a_request_id_makes_a_step_repeatable(stored: RunningServer) -> None:
    path = f"/sessions/{post(stored, '/sessions')['session_id']}"
    post(stored, f"{path}/reset", {"seed": 0})
    body = {"tool": "increment", "request_id": "one"}
    assert post(stored, f"{path}/step", body) == post(stored, f"{path}/step", body)
    other = stored.client.post(f"{path}/step", json={**body, "args": {"by": 2}})
    assert (other.status_code, error_of(other)["code"]) == (409, "idempotency_key_reused")
    post(stored, f"{path}/close")


def test_sessions_need_a_key_and_belong_to_it(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    keys = {"alice": "alice-key-7a1d", "bob": "bob-key-88e2", "operator": KEY}
    for who in ("alice", "bob"):
        key_file.add(file, who, keys[who], max_in_flight=2 if who == "bob" else None)
    store = open_store(str(tmp_path / "s.db"))
    with opened(Settings(environment_api_key=KEY, keys_file=file), store=store) as running:

        def ask(who: str, method: str, path: str, **named: Any) -> httpx.Response:
            return httpx.request(method, running.url + path, headers={"X-API-Key": keys[who]}, timeout=20, **named)

        path = f"/sessions/{ask('alice', 'POST', '/sessions').json()['session_id']}"
        rollout_id = ask("alice", "POST", f"{path}/reset", json={"seed": 0}).json()["rollout_id"]
        for verb in ("reset", "step", "finish"):
            for who in ("bob", "operator"):
                assert error_of(ask(who, "POST", f"{path}/{verb}", json={}))["code"] == "session_not_found"
            assert running.stranger.post(f"{path}/{verb}").status_code == 401
        for method, where in (("GET", path), ("DELETE", path), ("POST", f"{path}/close")):
            assert ask("bob", method, where).status_code == 404
        assert SessionList.model_validate(ask("bob", "GET", "/sessions").json()).sessions == []
        (seen,) = SessionList.model_validate(ask("operator", "GET", "/sessions").json()).sessions
        assert seen.rollout_id == rollout_id and ask("operator", "GET", path).status_code == 200
        quota = [ask("bob", "POST", "/sessions") for _ in range(3)]
        assert [answer.status_code for answer in quota] == [200, 200, 429] and quota[2].headers["retry-after"]
        key_file.remove(file, "alice")
        until(lambda: ask("operator", "GET", path).status_code == 404, 20, "the session of a revoked key ends")
        failed = ask("operator", "GET", f"/rollouts/{rollout_id}")
        assert (failed.status_code, error_of(failed)["code"]) == (503, "key_revoked")


@pytest.mark.parametrize(
    "method,path", [("GET", ""), ("DELETE", ""), ("POST", "/reset"), ("POST", "/step"), ("POST", "/close")]
)
def test_an_unknown_session_is_404(running: RunningServer, method: str, path: str) -> None:
    for name in (UNKNOWN, "x", "%00", "a" * 500):
        answer = running.client.request(method, f"/sessions/{name}{path}")
        assert (answer.status_code, error_of(answer)["code"]) == (404, "session_not_found")
