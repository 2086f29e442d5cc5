"""The inference route: whose models are whose, what is passed on, and what no request can reach."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest

from taskapp_kit.errors import Unavailable
from taskapp_kit.jobs.server.inference import MAX_BODY_BYTES, MODEL_ROUTES, NEVER_OPENED, AvailableModel
from taskapp_kit.net.http import HttpResponse
from tests.jobs.server.exchange import KEY, OTHER_KEY, Backend, ScriptedApp, a_config, a_job, backend, client, serving
from tests.train.gateway.test_attacks import BAD_BODIES

pytestmark = pytest.mark.server

IMPORTED = "rl:tiny:job_from_elsewhere:checkpoint-1"


@dataclass
class ScriptedModels:
    """A model server without a model. names: of its models, which `train` adds to."""

    names: list[str] = field(default_factory=lambda: ["tiny", IMPORTED])
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    routes: list[str] = field(default_factory=list)
    answer: HttpResponse | Exception = field(
        default_factory=lambda: HttpResponse(200, b'{"choices": []}', {"content-type": "application/json", "x": "y"})
    )
    closed: bool = False
    cancelled: int = 0
    held: bool = False

    def train(self, job: str) -> str:
        self.names.append(f"rl:tiny:{job}:checkpoint-1")
        return self.names[-1]

    def find(self, name: str) -> AvailableModel | None:
        if name not in self.names:
            return None
        return AvailableModel(name, name.split(":")[2] if name.startswith("rl:") else "", 5.0)

    def available(self) -> list[AvailableModel]:
        return [model for name in self.names if (model := self.find(name)) is not None]

    async def complete(self, model: AvailableModel, route: str, body: bytes) -> HttpResponse:
        self.routes.append(route)
        self.requests.append((model.name, orjson.loads(body)))
        if self.held:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def close(self) -> None:
        self.closed = True


@contextmanager
def opened(**members: Any) -> Iterator[tuple[ScriptedModels, Backend, httpx.Client]]:
    """Models, their backend, and the client of another key."""
    models = ScriptedModels(**members)
    with backend(models=models) as back, client(back.url, OTHER_KEY) as other:
        yield models, back, other


def ask(http: httpx.Client, model: Any, route: str = "chat/completions", **more: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi."}], **more}
    return http.post(f"/inference/v1/{route}", json=body)


def code(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


def names(http: httpx.Client) -> list[str]:
    answer = http.get("/inference/v1/models")
    assert answer.status_code == 200
    return [model["id"] for model in answer.json()["data"]]


def test_a_model_is_for_the_key_whose_job_made_it() -> None:
    with serving(ScriptedApp().app()) as url, opened() as (models, back, other):
        job = back.submit(url)
        back.ended(job)
        theirs = other.post("/rl/jobs", json=a_job(url)).json()["job_id"]
        mine, foreign = models.train(job), models.train(theirs)
        assert names(back.http) == ["tiny", IMPORTED, mine]
        assert names(other) == ["tiny", foreign]
        assert ask(back.http, mine).status_code == 200
        assert ask(other, foreign).status_code == 200
        refused = [ask(back.http, foreign), ask(other, mine), ask(other, "rl:tiny:absent:checkpoint-1")]
        assert {(answer.status_code, code(answer)) for answer in refused} == {(404, "model_not_found")}
        assert len({answer.text for answer in refused}) == 1, "what is another's looks like what is not there"
    assert [name for name, _ in models.requests] == [mine, foreign]


def test_an_imported_model_is_the_operators_whose_key_comes_first() -> None:
    with opened() as (_, back, other):
        assert ask(back.http, IMPORTED).status_code == 200
        assert ask(other, IMPORTED).status_code == 404
        assert ask(back.http, "tiny").status_code == ask(other, "tiny").status_code == 200


def test_the_body_goes_on_as_it_is_and_the_answer_comes_back() -> None:
    stream = HttpResponse(200, b"data: {}\n\ndata: [DONE]\n\n", {"content-type": "text/event-stream", "x": "secret"})
    with opened(answer=stream) as (models, back, _):
        answer = ask(back.http, "tiny", temperature=0.2, stream=True, tools=[{"type": "function"}])
        assert (answer.content, answer.headers["content-type"]) == (stream.body, "text/event-stream")
        assert "x" not in answer.headers
        models.answer = HttpResponse(503, b'{"error": {"code": "saturated"}}', {"retry-after": "5"})
        busy = ask(back.http, "tiny")
        assert (busy.status_code, code(busy), busy.headers["retry-after"]) == (503, "saturated", "5")
        models.answer = Unavailable("A model cannot be served without the package torch.", hint="pip install it")
        missing = ask(back.http, "tiny")
        assert (missing.status_code, code(missing)) == (501, "unavailable")
    sent = models.requests[0][1]
    assert (sent["temperature"], sent["stream"], sent["tools"]) == (0.2, True, [{"type": "function"}])
    assert models.closed


def test_each_api_reaches_the_model_and_has_errors_of_its_own_shape() -> None:
    with opened() as (models, back, other):
        for route in MODEL_ROUTES:
            assert ask(back.http, "tiny", route).status_code == 200
            refused = ask(other, IMPORTED, route)
            assert (refused.status_code, code(refused)) == (404, "model_not_found")
            error = refused.json()
            if route == "messages":
                assert (error["type"], error["error"]["type"]) == ("error", "not_found_error")
            else:
                assert (error["error"]["type"], error["error"]["param"]) == ("invalid_request_error", None)
        assert back.http.post("/inference/v1/messages/batches", json={}).status_code == 404
        keyed = {"x-api-key": KEY, "Authorization": ""}  # as Anthropic's client sends it
        body = {"model": "tiny", "messages": [], "max_tokens": 5}
        assert back.http.post("/inference/v1/messages", headers=keyed, json=body).status_code == 200
    assert models.routes == [*MODEL_ROUTES, "messages"] and set(MODEL_ROUTES) >= {"responses", "messages"}


@pytest.mark.parametrize("member", NEVER_OPENED)
def test_no_path_in_a_request_is_opened(member: str) -> None:
    with opened() as (models, back, _):
        answer = ask(back.http, "tiny", **{member: "/etc/passwd"})
        assert (answer.status_code, code(answer)) == (422, "invalid_request")
    assert not models.requests


def test_no_odd_name_is_a_model() -> None:
    with opened() as (models, back, _):
        texts = ("/etc", "./x", "../x", "rl:..:job:x", "rl:tiny:../..:x", "", "x" * 1000, "\x00")
        for name in (*texts, None, 5, ["tiny"]):
            assert ask(back.http, name).status_code in (404, 422), name
    assert not models.requests


def test_bad_bodies_reach_no_model() -> None:
    with opened() as (models, back, _):
        url = "/inference/v1/chat/completions"
        for name, (body, status, expected) in BAD_BODIES.items():
            if expected == "invalid_json":
                answer = back.http.post(url, content=body, headers={"content-type": "application/json"})
                assert (answer.status_code, code(answer)) == (status, expected), name
        for headers, status, expected in (
            ({"content-encoding": "gzip"}, 415, "unsupported_content_encoding"),
            ({"content-type": "text/plain"}, 415, "unsupported_content_type"),
        ):
            answer = back.http.post(url, content=b"{}", headers=headers)
            assert (answer.status_code, code(answer)) == (status, expected)
        large = back.http.post(url, content=b" " * (MAX_BODY_BYTES + 1))
        assert (large.status_code, code(large)) == (413, "body_too_large")
    assert not models.requests


def test_a_job_starts_from_no_model_of_another_key() -> None:
    with serving(ScriptedApp().app()) as url, opened() as (models, back, other):
        job = back.submit(url)
        mine = models.train(job)

        def submitted(http: httpx.Client, model: str, **sections: dict[str, Any]) -> httpx.Response:
            made = a_job(url, a_config(model={"base": model}, **sections))
            made["data"]["base_model"] = model
            return http.post("/rl/jobs", json=made)

        for http, model, sections in (
            (other, mine, {}),
            (back.http, "rl:tiny:absent:checkpoint-1", {}),
            (other, IMPORTED, {}),
            (other, "m", {"models": {"alias": {"m": mine}}}),
        ):
            answer = submitted(http, model, **sections)
            assert answer.status_code == 422, (model, sections)
            assert answer.json()["detail"]["error"]["code"] == "invalid_config"


def test_a_client_that_hangs_up_ends_its_request() -> None:

    async def hang_up(url: str) -> None:
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, trust_env=False) as http:
            path = f"{url}/api/inference/v1/chat/completions"
            asking = asyncio.ensure_future(http.post(path, json={"model": "tiny", "messages": []}))
            while not models.requests:
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.wait((asking,))
        while not models.cancelled:
            await asyncio.sleep(0.01)

    with opened(held=True) as (models, back, _):
        asyncio.run(asyncio.wait_for(hang_up(back.url), 30))
