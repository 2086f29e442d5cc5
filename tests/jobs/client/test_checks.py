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
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.client.listening import drop, listening

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[3]
KEY = "k3y-0F-the-task-app-abcdef"
SECONDS = 10.0
CERTIFICATE = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key -out cert"


def look(url: str, key: str | None = KEY, seconds: float = SECONDS) -> list[Finding]:
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
GOOD: dict[str, Any] = {
    "/": answer(body={"status": "ok", "service": "scripted"}),
    "/health": answer(body={"healthy": True}),
    "/info": answer(
        body={"service": {"task": {"id": "t"}}, "rubrics": {"outcome": {"criteria": [{"id": "a"}]}, "events": None}}
    ),
    "/task_info": None,
    "/rollout": answer(405, body={}),
}


async def good_task_info(request: web.Request) -> web.Response:
    if "seed" in request.query:
        return web.json_response(GOOD_TASK)
    return web.json_response({"taskset": {"id": "d", "splits": ["train"], "seeds": {"train": [40, 64]}}})


@contextmanager
def scripted(**changed: Any) -> Iterator[tuple[str, list[web.Request]]]:
    """A task app as the contract wants it, but for what is changed; None takes a route away. And what it was asked."""
    seen: list[web.Request] = []

    @web.middleware
    async def noted(request: web.Request, handler: Any) -> web.StreamResponse:
        seen.append(request)
        return await handler(request)

    routes = {**GOOD, "/task_info": good_task_info}
    routes.update({("/" if name == "root" else f"/{name}"): handler for name, handler in changed.items()})
    app = web.Application(middlewares=[noted])
    for path, handler in routes.items():
        if handler is not None:
            app.router.add_get(path, handler)
    with listening(app) as url:
        yield url, seen


async def dropped(request: web.Request) -> web.Response:
    return drop(request)


HTML = answer(text="<!doctype html><p>SECRETPAGE</p>", content_type="text/html")
REDIRECT = answer(307, headers={"Location": "http://elsewhere.example/path?token=SECRETPAGE"})


# a real task app


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
        assert [finding.found for finding in found] == [
            f"{url} answers as task app adder.",
            "The task app accepts the key.",
            "Data set adder: splits train, test.",
            "GET /task_info?seed=0 answers a whole TaskInfo.",
            "GET /info advertises a rubric: criteria 2 for outcome.",
        ]
        assert not any(finding.do for finding in found)
        assert parts(look(url + "/")) == parts(found)
        wrong = look(url, "another-Key-than-that-one")
        assert parts(wrong) == [("task app", True), ("key", False)]
        assert only(wrong, "key").found == "The task app refuses the key (401)."
        for none in (None, "", "  "):
            assert only(look(url, none), "key").found == "The task app asks for a key, and none is given."
        assert "no HTTP header carries" in only(look(url, "kéy-with-an-accent"), "key").found
        assert "not as a backend" in only(look_at_backend(url), "backend").found


def test_a_task_app_without_a_key_of_its_own() -> None:
    with adder(None) as url:
        finding = only(look(url), "key")
    assert (
        finding.found == "The task app has no key of its own, so it refuses every request."
        and "ENVIRONMENT_API_KEY" in finding.do
    )


# addresses


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8001",
        "ftp://h",
        "http://",
        "http://u:SECRETpw@h",
        "http://h?k=SECRETpw",
        "http://h:99999",
        "http://[::1",
    ],
)
def test_an_address_that_cannot_be_read(url: str) -> None:
    for finding in (only(look(url), "task app"), only(look_at_backend(url), "backend")):
        assert (
            "address cannot be used" in finding.found
            and "SECRET" not in finding.found
            and "http://127.0.0.1" in finding.do
        )


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    finding = only(look(f"http://127.0.0.1:{port}"), "task app")
    assert finding.found == f"http://127.0.0.1:{port} refuses connections." and "taskapp serve" in finding.do
    finding = only(look_at_backend(f"http://127.0.0.1:{port}"), "backend")
    assert "refuses connections" in finding.found and "taskapp backend serve" in finding.do


def test_a_name_that_nobody_knows() -> None:
    finding = only(look("http://no-such-host.invalid"), "task app")
    assert "name that cannot be resolved" in finding.found and "spelling" in finding.do


def test_https_where_plain_http_is_spoken() -> None:
    with scripted() as (url, _):
        finding = only(look(url.replace("http:", "https:")), "task app")
    assert "TLS" in finding.found and "http:// instead of https://" in finding.do


@pytest.mark.process
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl (Debian: apt-get install openssl)")
def test_a_certificate_that_nobody_signed(tmp_path: Path) -> None:
    subprocess.run(
        f"openssl {CERTIFICATE}".split(),
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with raw(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", context) as port:
        finding = only(look(f"https://localhost:{port}"), "task app")
    assert "certificate that this machine does not trust" in finding.found and "certificate" in finding.do


@contextmanager
def raw(reply: bytes | None, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """A socket that answers every connection with these bytes; with None it says nothing."""
    over = threading.Event()

    def serve(listener: socket.socket) -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                if context is not None:
                    connection = context.wrap_socket(connection, server_side=True)
                if reply is not None:
                    connection.recv(4096)
                    connection.sendall(reply)
                    connection.close()
                else:
                    held.append(connection)
            except OSError:
                connection.close()

    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            for connection in held:
                connection.close()
            thread.join(10)


def test_something_that_is_not_http() -> None:
    with raw(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        finding = only(look(f"http://127.0.0.1:{port}"), "task app")
    assert "not HTTP" in finding.found and "Another program" in finding.do


def test_a_server_that_says_nothing() -> None:
    with raw(None) as port:
        finding = only(look(f"http://127.0.0.1:{port}", seconds=0.3), "task app")
        assert "0.3 s" in finding.found and "cold container" in finding.do
        finding = only(look_at_backend(f"http://127.0.0.1:{port}", timeout_seconds=0.3), "backend")
        assert "0.3 s" in finding.found


# servers that are no task app, or not quite


@pytest.mark.parametrize(
    ("changed", "part", "found"),
    [
        ({"root": dropped}, "task app", "dropped the connection"),
        ({"health": dropped}, "task app", "/health dropped the connection"),
        ({"root": HTML, "health": HTML}, "task app", "GET / gives 200 with a web page, GET /health gives 200 with a web page"),
        ({"root": REDIRECT, "health": REDIRECT}, "task app", "gives 307, a redirect to elsewhere.example"),
        ({"root": None, "health": None}, "task app", "not as a task app: GET / gives 404"),
        ({"health": HTML}, "contract", "GET /health answers 200 with a web page"),
        ({"health": answer(500, body={})}, "contract", "GET /health answers 500; expected 200"),
        ({"health": answer(body={"healthy": False, "status": "draining"})}, "task app", "reports that it is draining"),
        ({"health": answer(400, body={"detail": {"error": {"code": "unauthorised", "message": f"try {KEY}"}}})}, "key", "(400)"),
        ({"health": answer(403, text=f"no {KEY}")}, "key", "refuses the key (403)"),
        ({"health": answer(503, body={"detail": {"error": {"code": "missing_environment_api_key", "message": ""}}})}, "key", "no key of its own"),
        ({"task_info": None}, "contract", "GET /task_info answers 404"),
        ({"task_info": answer(401, body={})}, "key", "GET /task_info refuses the key (401), and GET /health does not ask for one"),
        ({"task_info": HTML}, "contract", "GET /task_info answers 200 with a web page"),
        ({"task_info": answer(body=[1])}, "contract", "something that is no JSON object"),
        ({"task_info": answer(body={"x": 1})}, "contract", "describes no data set"),
        ({"task_info": answer(body={"taskset": {"id": "d", "splits": ["train"]}})}, "contract", "?seed=0 lacks task.id, environment, dataset"),
        ({"task_info": dropped}, "contract", "dropped the connection"),
        ({"info": answer(500, body={})}, "contract", "GET /info answers 500"),
        ({"info": answer(body={"service": 1})}, "contract", "GET /info lacks service.task"),
        ({"rollout": None}, "contract", "There is no POST /rollout (404)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_under_its_part(changed: dict[str, Any], part: str, found: str) -> None:
    with scripted(**changed) as (url, _):
        finding = only(look(url), part)
    assert found in finding.found and "SECRETPAGE" not in f"{finding.found}{finding.do}"


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"root": None}, "answers as a task app."),
        ({"root": REDIRECT}, "answers as a task app."),
        ({"info": None}, "There is no GET /info (404)."),
        ({"info": answer(body={"service": {"task": {}}, "rubrics": None})}, "No rubric is advertised."),
        ({"root": answer(body={"status": "ok", "service": f"x \x1b[31m{KEY} " + "y" * 500})}, "answers as task app x"),
    ],
)
def test_what_is_only_advice_stands_in_nobodys_way(changed: dict[str, Any], found: str) -> None:
    with scripted(**changed) as (url, _):
        findings = look(url)
    assert all(finding.ok for finding in findings)
    assert [finding for finding in findings if found in finding.found]


@pytest.mark.parametrize("splits", [5, "train", {"train": 1}, None])
def test_splits_of_another_shape_are_none(splits: Any) -> None:
    async def task_info(request: web.Request) -> web.Response:
        whole = {"taskset": {"id": "d", "splits": splits}}
        return web.json_response(GOOD_TASK if "seed" in request.query else whole)

    with scripted(task_info=task_info) as (url, _):
        findings = look(url)
    assert [finding for finding in findings if "names no splits" in finding.found and finding.ok]


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
        open_door = look(url, None)
    assert open_door[1] == Finding("key", True, "The task app asks for no key.", open_door[1].do) and open_door[1].do


# backends


@contextmanager
def backend(**changed: Any) -> Iterator[tuple[str, list[web.Request]]]:
    routes: dict[str, Any] = {
        "jobs": ("GET", "/api/rl/jobs", answer(body=[])),
        "learning": ("GET", "/api/learning/jobs", answer(404, body={})),
        "key": ("GET", "/api/v1/crypto/public-key", answer(body={"public_key": base64.b64encode(b"x" * 32).decode()})),
        "verify": ("POST", "/api/rl/verify_task_app", answer(body={"any_ok": True})),
    }
    seen: list[web.Request] = []

    @web.middleware
    async def noted(request: web.Request, handler: Any) -> web.StreamResponse:
        seen.append(request)
        return await handler(request)

    app = web.Application(middlewares=[noted])
    for name, (verb, path, handler) in routes.items():
        if changed.get(name, handler) is not None:
            app.router.add_route(verb, path, changed.get(name, handler))
    with listening(app) as url:
        yield url, seen


@pytest.mark.parametrize("path", ["", "/", "/api", "/api/"])
def test_a_backend_that_can_be_used(path: str) -> None:
    with backend() as (url, seen):
        found = look_at_backend(url + path)
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
        ({"jobs": answer(401, body={"detail": f"not {KEY}"})}, "key", "The backend refuses the key (401)."),
        ({"jobs": answer(403, body={})}, "key", "refuses the key (403)"),
        ({"jobs": None, "learning": None}, "backend", "not as a backend: GET rl/jobs gives 404"),
        ({"jobs": HTML}, "backend", "200 with a web page"),
        ({"jobs": REDIRECT}, "backend", "307, a redirect to elsewhere.example"),
        ({"jobs": answer(500, body={})}, "backend", "GET rl/jobs gives 500"),
        ({"jobs": dropped}, "backend", "dropped the connection"),
    ],
)
def test_a_backend_that_cannot(changed: dict[str, Any], part: str, found: str) -> None:
    with backend(**changed) as (url, _):
        assert found in only(look_at_backend(url), part).found


def test_what_a_backend_may_lack() -> None:
    with backend(jobs=None, learning=answer(body={"jobs": []}), key=None, verify=None) as (url, _):
        found = look_at_backend(url)
        assert all(finding.ok for finding in found)
        assert "no public key that can be used (GET v1/crypto/public-key gives 404)" in found[2].found and found[2].do
        assert "cannot verify task apps" in found[3].found and found[3].do
    with backend(jobs=answer(401, body={})) as (url, _):
        assert only(look_at_backend(url, None), "key").found == "The backend asks for a key, and none is given."
    with backend(key=answer(body={"public_key": "AAAA"})) as (url, _):
        assert "no public key that can be used" in look_at_backend(url)[2].found


def test_a_backend_is_asked_whether_it_reaches_the_task_app() -> None:
    app = "http://127.0.0.1:8001"
    with backend() as (url, _):
        assert look_at_backend(url, task_app_url=app)[-1] == Finding("backend", True, "It reaches the task app.")
    with backend(verify=answer(body={"any_ok": False, "error": f"bad {KEY}"})) as (url, _):
        assert "does not reach the task app" in only(look_at_backend(url, task_app_url=app), "backend").found
    with backend(verify=answer(500, body={})) as (url, _):
        assert "could not verify" in only(look_at_backend(url, task_app_url=app), "backend").found
    with backend(verify=None) as (url, _):
        assert look_at_backend(url, task_app_url=app)[-1].ok
