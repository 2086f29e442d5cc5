"""The routes as clients call them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.jobs.server.exchange import (
    APP_KEY,
    OTHER_KEY,
    Backend,
    GatedApp,
    ScriptedApp,
    a_config,
    a_job,
    backend,
    client,
    seal,
    serving,
)
from tests.waiting import until

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def shared() -> Iterator[Backend]:
    """One that is only refused things."""
    with backend() as back:
        yield back


def error(answer: httpx.Response) -> dict[str, Any]:
    told = answer.json()["detail"]["error"]
    assert set(told) >= {"code", "message", "hint"}
    return dict(told)


def frames(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(id, event, data) of each frame; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            fields = dict(line.split(": ", 1) for line in lines)
            found.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return found


def test_a_job_from_its_making_to_its_end_under_every_prefix() -> None:
    with serving(ScriptedApp().app()) as url, backend() as back:
        made = back.http.post("/rl/jobs", json=a_job(url, a_config()))
        assert made.status_code == 201
        job_id = made.json()["job_id"]
        assert made.json()["id"] == job_id
        status = back.ended(job_id)
        for family in ("rl", "learning", "orchestration"):
            base = f"/{family}/jobs/{job_id}"
            assert back.http.get(base).json() == status
            events = back.http.get(f"{base}/events", params={"since_seq": 0, "limit": 200}).json()
            assert [event["seq"] for event in events["events"]] == [1, 2, 3, 4]
            assert events["last_seq"] == 4
            assert {"type", "message", "level", "data", "job_id", "created_at"} <= set(events["events"][0])
            later = back.http.get(f"{base}/events", params={"since_seq": 3, "limit": 200}).json()["events"]
            assert [event["type"] for event in later] == ["rl.job.completed"]
            points = back.http.get(f"{base}/metrics", params={"after_step": -1, "limit": 200}).json()["points"]
            assert {"name", "value", "step", "phase", "epoch", "created_at"} <= set(points[0])
            phases = [entry["phase"] for entry in back.http.get(f"{base}/timeline").json()["events"]]
            assert phases == ["queued", "running", "succeeded"]
        for verb in ("start", "cancel"):
            assert back.http.post(f"/rl/jobs/{job_id}/{verb}", json={}).json() == status, "a job that is over stays so"


def test_a_job_is_found_by_the_tags_of_its_config() -> None:
    tags = {"run": "first", "try": 3, "rate": 0.5, "warm": True, "build": 1234567890123456789}
    with serving(ScriptedApp().app()) as url, backend() as back:
        job_id = back.submit(url, a_config(tags=tags))
        back.ended(back.submit(url, a_config(tags={"run": "second", "warm": False})))
        assert back.status(job_id)["tags"] == tags

        def found(*asked: str) -> list[dict[str, Any]]:
            return list(back.http.get("/rl/jobs", params={"tag": list(asked)}).json()["jobs"])

        assert [len(found("run")), len(found("warm")), len(found("ru")), len(found("first"))] == [2, 2, 0, 0]
        for asked in ("run=first", "try=3", "try=3.0", "rate=0.5", "warm=true", "build=1234567890123456789"):
            assert [(job["job_id"], job["tags"]) for job in found(asked)] == [(job_id, tags)], asked
        assert [job["job_id"] for job in found("run=first", "try")] == [job_id]
        assert found("run=first", "warm=false") == found("run=3") == found("warm=1") == found("try=3=3") == []
        assert back.http.get("/rl/jobs", params={"tag": ["run"] * 65}).status_code == 422


@pytest.mark.parametrize(
    "tags", [{"a": ["b"]}, {"a": {"b": 1}}, {"a": "b" * 513}, {"a" * 513: 1}, dict.fromkeys(map(str, range(65)), 1)]
)
def test_tags_are_short_texts_numbers_and_switches(tags: dict[str, Any], shared: Backend) -> None:
    answer = shared.http.post("/rl/jobs", json=a_job("http://127.0.0.1:9", a_config(tags=tags)))
    assert answer.status_code == 422
    assert [field["loc"] for field in error(answer)["fields"]] == [["body", "data", "config", "tags"]]


def test_the_stream_gives_what_was_then_what_happens_then_ends() -> None:
    app = GatedApp()
    with serving(app.app()) as url, backend() as back:
        job_id = back.submit(url)
        until(lambda: back.status(job_id)["progress"]["total"] == 4)
        text = ""
        with back.http.stream("GET", f"/rl/jobs/{job_id}/events/stream") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for piece in answer.iter_text():
                text += piece
                if "rl.train.started" in text:
                    app.gate.open()
        found = frames(text)
        assert [int(number) for number, _, _ in found] == [1, 2, 3, 4]
        assert found[-1][1] == found[-1][2]["type"] == "rl.job.completed"
        assert [data["seq"] for _, _, data in found] == [1, 2, 3, 4]
        assert [data for _, _, data in found] == back.events(job_id)
        rest = back.http.get(f"/rl/jobs/{job_id}/events/stream", headers={"Last-Event-ID": "3"})
        assert [number for number, _, _ in frames(rest.text)] == ["4"]
        asked = back.http.get(f"/learning/jobs/{job_id}/events?since_seq=2", headers={"Accept": "text/event-stream"})
        assert [number for number, _, _ in frames(asked.text)] == ["3", "4"]


def test_the_same_idempotency_key_is_the_same_job() -> None:
    with serving(ScriptedApp().app()) as url, backend() as back:
        body, headers = a_job(url), {"Idempotency-Key": "idem-1"}
        first = back.http.post("/rl/jobs", json=body, headers=headers)
        again = back.http.post("/rl/jobs", json=dict(reversed(body.items())), headers=headers)
        assert (first.status_code, again.status_code) == (201, 200)
        assert again.json()["job_id"] == first.json()["job_id"]
        changed = back.http.post("/rl/jobs", json={**body, "tags": {"source": "other"}}, headers=headers)
        assert (changed.status_code, error(changed)["code"]) == (409, "idempotency_key_reused")


def test_jobs_are_listed_by_page_and_status() -> None:
    with serving(ScriptedApp().app()) as url, backend() as back:
        made = [back.submit(url) for _ in range(3)]
        for job_id in made:
            back.ended(job_id)
        page = back.http.get("/rl/jobs?limit=2").json()
        assert page["has_more"] is True
        rest = back.http.get("/rl/jobs", params={"limit": 2, "after": page["jobs"][-1]["job_id"]}).json()
        assert [job["job_id"] for job in page["jobs"] + rest["jobs"]] == made[::-1]
        assert back.http.get("/rl/jobs?status=failed").json()["jobs"] == []
        assert back.http.get("/rl/jobs?status=lost").status_code == 422


def test_trainers_are_known_by_their_id() -> None:
    with serving(ScriptedApp().app()) as url, backend(trainers={"local-1": "the one under the desk"}) as back:
        found = back.http.get("/rl/services/local-1").json()
        assert found["trainer_id"] == "local-1"
        assert found["name"] == "the one under the desk"
        assert found["training_start_url"] == f"{back.url}/api/rl/jobs"
        missing = back.http.get("/rl/services/h100")
        assert (missing.status_code, error(missing)["code"]) == (404, "trainer_not_found")
        body = {"model": "Qwen/Qwen3-0.6B", "endpoint_base_url": url, "trainer_id": "h100"}
        refused = back.http.post("/rl/jobs", json=body)
        assert refused.status_code == 422
        assert "local-1, rollouts" in error(refused)["hint"]
        taken = back.http.post("/rl/jobs", json={**body, "trainer_id": "local-1"})
        assert taken.status_code == 201
        assert back.ended(taken.json()["job_id"])["trainer_id"] == "local-1"


def test_models_are_not_served_and_that_is_said(shared: Backend) -> None:
    asked = {"model": "ft:Qwen/Qwen3-0.6B:mine", "messages": []}
    for answer in (
        shared.http.post("/inference/v1/chat/completions", json=asked),
        shared.http.get("/inference/v1/models"),
    ):
        told = answer.json()["error"]  # as clients of OpenAI's APIs read it
        assert (answer.status_code, told["code"]) == (501, "no_models")
    without = httpx.post(f"{shared.url}/api/inference/v1/chat/completions", json=asked, trust_env=False)
    assert without.status_code == 401


def test_the_form_of_the_first_client_is_taken() -> None:
    with serving(ScriptedApp().app()) as url, backend() as back:
        data = {"model": "Qwen/Qwen3-0.6B", "endpoint_base_url": url, "trainer": {"batch_size": 1, "group_size": 2}}
        made = back.http.post("/rl/jobs", json={"job_type": "rl", "data": data})
        assert made.status_code == 201
        assert back.ended(made.json()["job_id"])["progress"]["total"] == 2


def test_verify_asks_with_every_key_and_tells_none() -> None:
    with serving(ScriptedApp().app()) as url, backend() as back:
        told = back.http.post("/rl/verify_task_app", json={"endpoint_base_url": url}).json()
        assert told["any_ok"] is True
        assert told["results"][0]["key"] == "ENVIRONMENT_API_KEY (of the backend)"
        assert APP_KEY not in str(told)
    with serving(ScriptedApp(key="another").app()) as url, backend() as back:
        told = back.http.post("/rl/verify_task_app", json={"endpoint_base_url": url}).json()
        assert told["any_ok"] is False
        assert told["results"][0]["health"] == {"ok": False, "status": 401}
        assert told["results"][0]["do"]
        assert back.http.post("/rl/verify_task_app", json={}).status_code == 422


def test_an_uploaded_key_opens_the_task_app_also_after_a_restart(tmp_path: Path) -> None:
    store, token = str(tmp_path / "jobs.db"), "sentinel-uploaded-key"
    options = {"store": store, "environment_api_key": None}
    with serving(ScriptedApp(key=token).app()) as url:
        with backend(**options) as back, client(back.url, OTHER_KEY) as other:
            told = back.http.get("/v1/crypto/public-key").json()
            assert told["alg"] == "libsodium.sealedbox.v1"
            assert len(base64.b64decode(told["public_key"])) == 32
            body = {"name": "ENVIRONMENT_API_KEY", "ciphertext_b64": seal(told["public_key"], token.encode())}
            kept = back.http.post("/v1/env-keys", json=body).json()
            assert kept["stored"] is True
            assert {"id", "name", "updated_at"} <= set(kept)
            check = {"endpoint_base_url": url}
            assert back.http.post("/rl/verify_task_app", json=check).json()["any_ok"] is True
            assert other.post("/rl/verify_task_app", json=check).json()["any_ok"] is False
        with backend(**options) as back:
            assert back.ended(back.submit(url))["status"] == "succeeded"
    assert token.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_key_in_a_config_is_refused_and_not_repeated(shared: Backend) -> None:
    secret = "sk-sentinel0123456789abcdef"
    for config in (
        a_config(rollout={"policy_config": {"api_key": secret}}),
        a_config(rollout={"env_config": {"deep": [{"password": "sentinel-password"}]}}),
        a_config(policy={"inference_url": f"https://u:{secret}@host.example/v1"}),
        a_config(policy={"inference_url": "https://host.example/v1?cid=c1&api_key=sentinel-plain"}),
        a_config(rollout={"policy_config": {"inference_url": "https://host.example/v1#token=sentinel-plain"}}),
        a_config(rollout={"env_config": {secret: 1}}),
        a_config(rollout={"env_config": {"a": {secret: {"password": "x"}}}}),
    ):
        answer = shared.http.post("/rl/jobs", json=a_job("http://127.0.0.1:1", config))
        assert answer.status_code == 422, answer.text
        assert "sentinel" not in answer.text
    body = {"model": "m", "endpoint_base_url": "http://127.0.0.1:1", "trainer": {"api_key": secret}}
    answer = shared.http.post("/rl/jobs", json=body)
    assert answer.status_code == 422, answer.text
    assert "sentinel" not in answer.text


def test_an_address_with_a_query_that_is_no_key_is_taken() -> None:
    with serving(ScriptedApp().app()) as url, backend() as back:
        config = a_config(policy={"inference_url": "http://127.0.0.1:9/v1?cid=trace_1"})
        assert back.ended(back.submit(url, config))["status"] == "succeeded"


WEIGHT_SYNC = {"enable": True, "targets": ["policy"], "mode": "direct", "interval": 1}


@pytest.mark.parametrize("training", [{}, {"weight_sync": WEIGHT_SYNC}], ids=["0.2.22 and 0.3.9", "0.2.17"])
def test_what_the_clients_of_synth_ai_ask_is_answered(training: dict[str, Any]) -> None:
    """Their configs have members of their own, and their polls a number against caches."""
    config = a_config(
        evaluation={"instances": 2, "every_n_iters": 1, "seeds": [0, 1]},
        training=training,
        reference={"placement": "none"},
    )
    with serving(ScriptedApp().app()) as url, backend() as back:
        config["services"]["task_url"] = url
        job_id = back.submit(url, config, **{"Idempotency-Key": "idem-1"})
        assert back.ended(job_id)["status"] == "succeeded"
        assert back.http.get(f"/learning/jobs/{job_id}", params={"_t": "1"}).status_code == 200
