"""Which of address, key and contract is wrong: a real task app, and servers that are none."""

from __future__ import annotations

import asyncio
import base64
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from taskapp_kit.asgi import build
from taskapp_kit.client import Finding, check_backend, check_task_app, try_rollout
from taskapp_kit.client.checks import WHAT_TO_DO
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.net.http import Trouble
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.client.listening import drop, listening, raw

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[3]
KEY = "k3y-0F-the-task-app-abcdef"
CERTIFICATE = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key -out cert"


def look(url: str, key: str | None = KEY, seconds: float = 10.0) -> list[Finding]:
    return without_keys(asyncio.run(check_task_app(url, key, timeout_seconds=seconds)), key)


def look_at_backend(url: str, key: str | None = KEY, **more: Any) -> list[Finding]:
    return without_keys(asyncio.run(check_backend(url, key, **more)), key)


def without_keys(findings: list[Finding], key: str | None) -> list[Finding]:
    """The findings, once it is seen that no part of a key stands in them and that each sentence is one."""
    for finding in findings:
        told = f"{finding.found} {finding.do}"
        for secret in (KEY, key or KEY):
            assert not [i for i in range(len(secret) - 5) if secret[i : i + 6] in told], told
        assert finding.found.endswith(".") and told.isprintable() and (finding.ok or finding.do), finding
    return findings


def parts(findings: list[Finding]) -> list[tuple[str, bool]]:
    return [(finding.part, finding.ok) for finding in findings]


def only(findings: list[Finding], part: str) -> Finding:
    """The one finding that is wrong, of this part; it is the last one."""
    wrong = [finding for finding in findings if not finding.ok]
    assert [finding.part for finding in wrong] == [part], findings
    return wrong[0]


@contextmanager
def adder(key: str | None = KEY, example: str = "adder.py", store: str | None = None) -> Iterator[str]:
    app = find_app(str(ROOT / "examples" / example))
    with BackgroundServer(build(app, settings=Settings(environment_api_key=key, store=store))) as server:
        yield server.url


def answer(status: int = 200, body: Any = None, **more: Any) -> Callable[[web.Request], Any]:
    async def handle(_: web.Request) -> web.Response:
        return web.json_response(body, status=status) if not more else web.Response(status=status, **more)

    return handle


GOOD_TASK = {
    "task": {"id": "t", "name": "t"},
    "environment": "e",
    "dataset": {"id": "d"},
    "rubric": {"outcome": None, "events": None},
    "inference": {},
    "limits": {},
}


def described(**taskset: Any) -> Callable[[web.Request], Any]:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response(GOOD_TASK if "seed" in request.query else {"taskset": {"id": "d", **taskset}})

    return handle


GOOD: dict[str, Any] = {
    "/": answer(body={"status": "ok", "service": "scripted"}),
    "/health": answer(body={"healthy": True}),
    "/info": answer(
        body={"service": {"task": {"id": "t"}}, "rubrics": {"outcome": {"criteria": [{"id": "a"}]}, "events": None}}
    ),
    "/task_info": described(splits=["train"], seeds={"train": [40, 64]}),
    "/rollout": answer(405, body={}),
}


@contextmanager
def recorded(*routes: tuple[str, str, Any]) -> Iterator[tuple[str, list[web.Request]]]:
    """A server of these (verb, path, handler), None for no handler, and what it was asked."""
    seen: list[web.Request] = []

    @web.middleware
    async def noted(request: web.Request, handler: Any) -> web.StreamResponse:
        seen.append(request)
        return await handler(request)

    app = web.Application(middlewares=[noted])
    for verb, path, handler in routes:
        if handler is not None:
            app.router.add_route(verb, path, handler)
    with listening(app) as url:
        yield url, seen


@contextmanager
def scripted(**changed: Any) -> Iterator[tuple[str, list[web.Request]]]:
    """A task app as the contract wants it, but for what is changed; None takes a route away."""
    routes = GOOD | {("/" if name == "root" else f"/{name}"): handler for name, handler in changed.items()}
    with recorded(*(("GET", path, handler) for path, handler in routes.items())) as server:
        yield server


async def dropped(request: web.Request) -> web.Response:
    return drop(request)


HTML = answer(text="<!doctype html><p>SECRETPAGE</p>", content_type="text/html")
REDIRECT = answer(307, headers={"Location": "http://elsewhere.example/path?token=SECRETPAGE"})


@pytest.mark.parametrize(("example", "policy"), [("adder.py", "random"), ("capitals.py", "constant")])
def test_one_rollout_is_played_by_whichever_policy_can_act_without_a_model(
    tmp_path: Path, example: str, policy: str
) -> None:
    with adder(example=example, store=str(tmp_path / "rollouts.db")) as url:
        finding = asyncio.run(try_rollout(url, KEY))
        listed = httpx.get(f"{url}/rollouts", headers={"X-API-Key": KEY})
    assert listed.status_code == 200 and listed.json()["rollouts"] == [], "a trial is not stored"
    assert (finding.part, finding.ok) == ("rollout", True)
    assert f"policy {policy}," in finding.found and "reward" in finding.found


def test_a_real_task_app_is_right_in_every_part() -> None:
    with adder() as url:
        found = look(url)
        assert parts(found) == [("task app", True), ("key", True), *[("contract", True)] * 3]
        assert not any(finding.do for finding in found)
        assert parts(look(url + "/")) == parts(found)
        wrong = look(url, "another-Key-than-that-one")
        assert parts(wrong) == [("task app", True), ("key", False)]
        assert "(401)" in only(wrong, "key").found
        for key in (None, "", "  ", "kéy-with-an-accent"):
            only(look(url, key), "key")
        only(look_at_backend(url), "backend")


def test_a_task_app_without_a_key_of_its_own() -> None:
    with adder(None) as url:
        assert "ENVIRONMENT_API_KEY" in only(look(url), "key").do


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8001", "ftp://h", "http://", "http://u:SECRETpw@h", "http://h?k=SECRETpw", "http://h:99999", "http://[::1"],
)  # fmt: skip
def test_an_address_that_cannot_be_read(url: str) -> None:
    for finding in (only(look(url), "task app"), only(look_at_backend(url), "backend")):
        assert "SECRET" not in finding.found and "http://127.0.0.1" in finding.do


def is_told(url: str, trouble: Trouble) -> None:
    """Both checks say what to do about the reason why nothing answers."""
    for finding in (
        only(look(url, seconds=0.5), "task app"),
        only(look_at_backend(url, timeout_seconds=0.5), "backend"),
    ):
        assert WHAT_TO_DO.get(trouble, "Start ") in finding.do


@pytest.mark.parametrize(
    ("url", "trouble"),
    [("http://127.0.0.1:9", Trouble.REFUSED), ("http://no-such-host.invalid", Trouble.UNKNOWN_HOST)],
)
def test_nobody_listens(url: str, trouble: Trouble) -> None:
    is_told(url, trouble)


def test_https_where_plain_http_is_spoken() -> None:
    with scripted() as (url, _):
        is_told(url.replace("http:", "https:"), Trouble.TLS)


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("reply", "trouble"),
    [(b"SSH-2.0-OpenSSH_9.2\r\n", Trouble.NOT_HTTP), (b"", Trouble.DROPPED), (None, Trouble.TIMEOUT)],
)
def test_a_server_without_an_answer(reply: bytes | None, trouble: Trouble) -> None:
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        if reply is None:
            over.wait(30)
        else:
            connection.sendall(reply)

    with raw(serve) as url:
        is_told(url, trouble)
        over.set()


@pytest.mark.process
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl (Debian: apt-get install openssl)")
def test_a_certificate_that_nobody_signed(tmp_path: Path) -> None:
    subprocess.run(f"openssl {CERTIFICATE}".split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with raw(lambda connection: connection.sendall(OK), tls=context) as url:
        is_told(url.replace("http://127.0.0.1", "https://localhost"), Trouble.CERTIFICATE)


@pytest.mark.parametrize(
    ("changed", "part", "found"),
    [
        ({"root": dropped}, "task app", "closed the connection"),
        ({"health": dropped}, "task app", "/health closed the connection"),
        ({"root": HTML, "health": HTML}, "task app", "GET / returns 200 with a web page, and GET /health"),
        ({"root": REDIRECT, "health": REDIRECT}, "task app", "returns 307, a redirect to elsewhere.example"),
        ({"root": None, "health": None}, "task app", "is not a task app: GET / returns 404"),
        ({"health": HTML}, "contract", "GET /health returns 200 with a web page"),
        ({"health": answer(500, body={})}, "contract", "GET /health returns 500. Expected 200"),
        ({"health": answer(body={"healthy": False, "status": "draining"})}, "task app", "reports the status draining"),
        ({"health": answer(400, body={"detail": {"error": {"code": "unauthorised", "message": f"try {KEY}"}}})}, "key", "(400)"),
        ({"health": answer(403, text=f"no {KEY}")}, "key", "rejects the key (403)"),
        ({"health": answer(503, body={"detail": {"error": {"code": "missing_environment_api_key", "message": ""}}})}, "key", "without a key"),
        ({"task_info": None}, "contract", "GET /task_info returns 404"),
        ({"task_info": answer(401, body={})}, "key", "GET /task_info rejects the key (401), but GET /health does not require a key"),
        ({"task_info": HTML}, "contract", "GET /task_info returns 200 with a web page"),
        ({"task_info": answer(body=[1])}, "contract", "200 without a JSON object"),
        ({"task_info": answer(body={"x": 1})}, "contract", "describes no data set"),
        ({"task_info": answer(body={"taskset": {"id": "d", "splits": ["train"]}})}, "contract", "?seed=0 returns no task.id, environment, dataset"),
        ({"task_info": dropped}, "contract", "closed the connection"),
        ({"info": answer(500, body={})}, "contract", "GET /info returns 500"),
        ({"info": answer(body={"service": 1})}, "contract", "GET /info returns no `service.task`"),
        ({"rollout": None}, "contract", "POST /rollout does not exist (404)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_under_its_part(changed: dict[str, Any], part: str, found: str) -> None:
    with scripted(**changed) as (url, _):
        finding = only(look(url), part)
    assert found in finding.found and "SECRETPAGE" not in f"{finding.found}{finding.do}"


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"root": None}, "is a task app."),
        ({"root": REDIRECT}, "is a task app."),
        ({"info": None}, "GET /info does not exist (404)."),
        ({"info": answer(body={"service": {"task": {}}, "rubrics": None})}, "GET /info describes no rubric."),
        ({"root": answer(body={"status": "ok", "service": f"x \x1b[31m{KEY} " + "y" * 500})}, "is the task app x"),
    ],
)
def test_what_is_only_advice_stands_in_nobodys_way(changed: dict[str, Any], found: str) -> None:
    with scripted(**changed) as (url, _):
        findings = look(url)
    assert all(finding.ok for finding in findings)
    assert [finding for finding in findings if found in finding.found]


@pytest.mark.parametrize("splits", [5, "train", {"train": 1}, None])
def test_splits_of_another_shape_are_none(splits: Any) -> None:
    with scripted(task_info=described(splits=splits)) as (url, _):
        findings = look(url)
    assert [finding for finding in findings if "has no splits" in finding.found and finding.ok]


def test_the_key_goes_to_that_address_alone_and_only_what_is_needed_is_asked() -> None:
    with (
        scripted() as (elsewhere, not_asked),
        scripted(health=answer(307, headers={"Location": elsewhere})) as (url, _),
    ):
        look(url)
    assert not not_asked
    with scripted() as (url, seen):
        assert all(finding.ok for finding in look(url))
    assert sorted((request.method, request.path_qs) for request in seen) == sorted(
        [("GET", path) for path in ("/", "/health", "/task_info", "/info", "/rollout", "/task_info?seed=40")]
    )
    assert all(request.headers.get("X-API-Key") == (None if request.path == "/" else KEY) for request in seen)
    with scripted() as (url, _):
        told = look(url, None)[1]
    assert told == Finding("key", True, "The task app does not require a key.", told.do) and told.do


@contextmanager
def backend(**changed: Any) -> Iterator[tuple[str, list[web.Request]]]:
    routes: dict[str, Any] = {
        "jobs": ("GET", "/api/rl/jobs", answer(body=[])),
        "learning": ("GET", "/api/learning/jobs", answer(404, body={})),
        "key": ("GET", "/api/v1/crypto/public-key", answer(body={"public_key": base64.b64encode(b"x" * 32).decode()})),
        "verify": ("POST", "/api/rl/verify_task_app", answer(body={"any_ok": True})),
    }
    given = [(verb, path, changed.get(name, handler)) for name, (verb, path, handler) in routes.items()]
    with recorded(*given) as server:
        yield server


def test_a_backend_that_can_be_used() -> None:
    with backend() as (url, seen):
        found = look_at_backend(url)
    assert parts(found) == [("backend", True), ("key", True), ("backend", True), ("backend", True)]
    assert not any(finding.do for finding in found)
    assert [(request.method, request.path_qs) for request in seen] == [
        ("GET", "/api/rl/jobs?limit=1"),
        ("GET", "/api/v1/crypto/public-key"),
        ("GET", "/api/rl/verify_task_app"),
    ]
    assert all(request.headers["Authorization"] == f"Bearer {KEY}" for request in seen)


@pytest.mark.parametrize(
    ("changed", "part", "found"),
    [
        ({"jobs": answer(401, body={"detail": f"not {KEY}"})}, "key", "The backend rejects the key (401)."),
        ({"jobs": answer(403, body={})}, "key", "rejects the key (403)"),
        ({"jobs": None, "learning": None}, "backend", "is not a backend: GET rl/jobs returns 404"),
        ({"jobs": HTML}, "backend", "200 with a web page"),
        ({"jobs": REDIRECT}, "backend", "307, a redirect to elsewhere.example"),
        ({"jobs": answer(500, body={})}, "backend", "GET rl/jobs returns 500"),
        ({"jobs": dropped}, "backend", "closed the connection"),
    ],
)
def test_a_backend_that_cannot(changed: dict[str, Any], part: str, found: str) -> None:
    with backend(**changed) as (url, _):
        assert found in only(look_at_backend(url), part).found


def test_what_a_backend_may_lack() -> None:
    with backend(jobs=None, learning=answer(body={"jobs": []}), key=None, verify=None) as (url, _):
        found = look_at_backend(url)
        assert parts(found) == [("backend", True), ("key", True), ("backend", True), ("backend", True)]
        assert [bool(finding.do) for finding in found] == [False, False, True, True]
    with backend(jobs=answer(401, body={})) as (url, _):
        only(look_at_backend(url, None), "key")
    with backend(key=answer(body={"public_key": "AAAA"})) as (url, _):
        assert look_at_backend(url)[2].do


def test_a_backend_is_asked_whether_it_reaches_the_task_app() -> None:
    app = "http://127.0.0.1:8001"
    with backend() as (url, _):
        assert look_at_backend(url, task_app_url=app)[-1] == Finding(
            "backend", True, "The backend can reach the task app."
        )
    for verify in (answer(body={"any_ok": False, "error": f"bad {KEY}"}), answer(500, body={})):
        with backend(verify=verify) as (url, _):
            only(look_at_backend(url, task_app_url=app), "backend")
    with backend(verify=None) as (url, _):
        assert look_at_backend(url, task_app_url=app)[-1].ok
