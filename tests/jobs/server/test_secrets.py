"""Keys in every place where a key can be, a whole job's life, then all that the backend kept, logged or answered is searched."""

from __future__ import annotations

import json
import secrets
import string
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.jobs.server.exchange import BackendProcess, ScriptedApp, a_config, a_job, episode, failure, seal, serving
from tests.sentinels import Key, Search
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.server]

LETTERS = "".join(set(string.ascii_letters) - set("abcdefABCDEF"))


def a_key(name: str) -> Key:
    """A key with what files, shells and JSON have to quote, and ends that stand nowhere else."""
    first, last = ("".join(secrets.choice(LETTERS) for _ in range(8)) for _ in range(2))
    return Key(name, f'{first}/+=%7E~"&<{last}')


class AnswerLog:
    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: list[tuple[str, bytes]] = []

    def ask(self, verb: str, path: str, key: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}", **more.pop("headers", {})}
        answer = httpx.request(verb, self.url + path, headers=headers, trust_env=False, timeout=60, **more)
        self.answers.append((f"{verb} {path}", answer.content + repr(answer.headers).encode()))
        assert answer.status_code < 500 or answer.status_code == 501, answer.text
        return answer

    def ended(self, job_id: str, key: str) -> None:
        path = f"/api/rl/jobs/{job_id}"
        until(lambda: self.ask("GET", path, key).json()["status"] in ("succeeded", "failed", "cancelled"))
        for path in ("events?limit=1000", "events/stream", "metrics?limit=1000", "timeline"):
            self.ask("GET", f"/api/rl/jobs/{job_id}/{path}", key)


def test_no_key_comes_out_of_a_backend(tmp_path: Path) -> None:
    ring = {
        name: a_key(name)
        for name in ("bearer", "second", "own", "uploaded", "uploaded_too", "vendor", "wrong", "quoted")
    }
    text = {name: key.text for name, key in ring.items()}
    (tmp_path / "tmp").mkdir()
    process = BackendProcess(
        tmp_path, "--port", "0", "--log-level", "debug", TMPDIR=str(tmp_path / "tmp"),
        SYNTH_API_KEY=f"{text['bearer']},{text['second']}", ENVIRONMENT_API_KEY=text["own"],
    )  # fmt: skip
    app = ScriptedApp(key=text["own"])

    def play(body: dict[str, Any]) -> Any:
        """Answers that repeat every key that the task app was sent, wherever there is room for a text."""
        shown = " ".join(text[name] for name in ("own", "uploaded", "uploaded_too"))
        number = len(app.requests) % 4
        if number == 0:
            return episode(1.0, rollout_id=text["own"][:40], pipeline_metadata={"key": shown}, stop_reason=shown)
        if number == 1:
            return episode(0.0, rollout_id=shown[:100], status=shown)
        status, answer = failure("policy", shown[:60], 502)
        answer["detail"]["error"] |= {"message": shown, "hint": shown, "rollout_id": text["uploaded"], "error_id": shown,
                                      "fields": [{"loc": [shown], "message": shown}]}  # fmt: skip
        if number == 2:
            status = 422
            del answer["detail"]["error"]["boundary"]
        return status, answer

    app.play = play
    app.info["taskset"]["splits"] = [text["own"]]
    with serving(app.app()) as url:
        try:
            process.start()
            log = AnswerLog(process.url)
            a_whole_life(log, url, text["bearer"], text)
        finally:
            status = process.end()
    assert status == 0, process.err
    # what is no key by its name or looks is quoted in the refusal, to who sent it, and may stand nowhere else
    search = Search(
        list(ring.values()), lambda hit: hit.key == "quoted" and hit.place == "the answer to POST /api/rl/jobs"
    )
    for what, answer in log.answers:
        search.unpack(answer, f"the answer to {what}")
    search.folder(tmp_path)
    assert not search.hits, "\n".join(map(str, search.hits))
    assert search.databases >= 1
    assert len(log.answers) > 60
    assert "job ended" in process.err


def a_whole_life(log: AnswerLog, url: str, key: str, text: dict[str, str]) -> None:
    public = log.ask("GET", "/api/v1/crypto/public-key", key).json()["public_key"]
    for name in ("uploaded", "uploaded_too"):
        sealed = seal(public, text[name].encode())
        body = {"name": "ENVIRONMENT_API_KEY" + "_TOO" * (name == "uploaded_too"), "ciphertext_b64": sealed}
        assert log.ask("POST", "/api/v1/env-keys", key, json=body).status_code == 200
        log.ask("POST", "/api/v1/env-keys", key, json={**body, "ciphertext_b64": text[name]})
        log.ask("POST", "/api/v1/env-keys", key, json={**body, "name": text[name]})
    assert log.ask("POST", "/api/rl/verify_task_app", key, json={"endpoint_base_url": url}).json()["any_ok"]

    # jobs: some rollouts fail, all fail, nobody answers, cancelled; under keys that are keys
    config = a_config(training={"iterations_per_epoch": 2, "batch_size": 4, "group_size": 2},
                      evaluation={"instances": 2, "every_n_iters": 1, "seeds": [1, 2]})  # fmt: skip
    for address, names in ((url, ("bearer", "own")), ("http://127.0.0.1:9", ("second", "wrong"))):
        for idempotency in (text[name] for name in names):
            headers = {"Idempotency-Key": idempotency}
            for _ in range(2):
                made = log.ask("POST", "/api/rl/jobs", key, json=a_job(address, config), headers=headers)
                assert made.status_code in (200, 201), made.text
            log.ended(made.json()["job_id"], key)
            log.ask("POST", "/api/rl/jobs", key, json=a_job(address), headers=headers)
    made = log.ask("POST", "/api/rl/jobs", key, json=a_job(url, config)).json()["job_id"]
    log.ask("POST", f"/api/rl/jobs/{made}/cancel", key)
    log.ended(made, key)
    made = log.ask("POST", "/api/rl/jobs", text["second"], json=a_job("http://127.0.0.1:9")).json()["job_id"]
    log.ended(made, text["second"])

    # a vendor's key in a config, in every form that has a name
    vendor = text["vendor"]
    for config in (
        a_config(rollout={"policy_config": {"api_key": vendor}}),
        a_config(rollout={"policy_config": {"headers": {"Authorization": f"Bearer {vendor}"}}}),
        a_config(rollout={"policy_config": {"extra": [{"token": vendor}]}}),
        a_config(policy={"inference_url": f"https://me:{quote(vendor, safe='')}@host.example/v1"}),
        a_config(policy={"inference_url": f"https://host.example/v1?api_key={quote(vendor, safe='')}"}),
        a_config(judge={"options": {"password": vendor}}),
        a_config(data={"seeds": [text["quoted"]]}),
    ):
        assert log.ask("POST", "/api/rl/jobs", key, json=a_job(url, config)).status_code == 422
    for body in (
        {"model": "m", "endpoint_base_url": url, "trainer": {"api_key": vendor}},
        {"model": "m", "endpoint_base_url": f"http://me:{vendor}@127.0.0.1:9"},
        {"model": "m", "endpoint_base_url": f"http://127.0.0.1:9/?key={vendor}"},
        {"model": "m", "endpoint_base_url": f"{vendor}"},
        {"model": "m", "endpoint_base_url": url, "trainer_id": vendor},
        {"job_type": vendor, "data": vendor},
        {vendor: {vendor: vendor}},
    ):
        assert log.ask("POST", "/api/rl/jobs", key, json=body).status_code == 422
    # tags and metadata are not kept
    tagged = {**a_job(url), "tags": {"a": vendor}, "metadata": {"b": vendor}, "compute": {"c": vendor}}
    log.ended(log.ask("POST", "/api/rl/jobs", key, json=tagged).json()["job_id"], key)

    # keys where something else is due
    for wrong in (text["wrong"], text["bearer"][:-1], text["bearer"] + "x"):
        assert log.ask("GET", "/api/rl/jobs", wrong).status_code == 401
    quoted = quote(text["own"], safe="")
    for path in (f"/api/rl/jobs/{quoted}", f"/api/rl/services/{quoted}", f"/{quoted}", f"/api/rl/jobs?status={quoted}",
                 f"/api/rl/jobs?limit={quoted}", f"/api/rl/jobs?model={quoted}&after={quoted}", f"/health?key={quoted}"):  # fmt: skip
        log.ask("GET", path, key)
    for raw in (text["own"].encode(), json.dumps([text["own"]]).encode(), b'{"' + text["own"][:8].encode()):
        log.ask("POST", "/api/rl/jobs", key, content=raw, headers={"Content-Type": "application/json"})
    log.ask("POST", "/api/rl/jobs", key, json={}, headers={"Idempotency-Key": text["own"] + " x"})
    log.ask("POST", "/api/rl/jobs", key, json={}, headers={"Content-Type": text["own"]})
    log.ask("POST", "/api/inference/v1/chat/completions", key, json={"model": text["own"]})
    log.ask("GET", "/api/rl/jobs?limit=1000", key)
