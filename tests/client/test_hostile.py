"""Servers that mean harm or are out of luck: every call ends in time with an error of ours or a sound answer."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from aiohttp import web

from taskapp_kit.client import check_backend, check_task_app
from taskapp_kit.client.task_app import TaskAppClient
from taskapp_kit.errors import JobError
from taskapp_kit.jobs.client.backend import BackendClient
from taskapp_kit.jobs.client.job_watch import watch
from taskapp_kit.jobs.client.rl_job import RLJob
from taskapp_kit.jobs.client.stream import all_events, all_metrics, follow_events
from tests.client.listening import listening, raw

pytestmark = pytest.mark.server

KEY = "canary-hostile-key-7788"
REQUEST = {"run_id": "r", "mode": "eval", "env": {"env_name": "adder", "seed": 1}, "policy": {"config": {}}, "ops": []}
ESCAPES = "\x1b[2J\x1b]0;owned\x07\u202e\x9b31m\r\n"


def nested(depth: int) -> bytes:
    return b'{"status":' + b"[" * depth + b"]" * depth + b"}"


BODIES: dict[str, tuple[int, str, bytes]] = {
    "empty": (200, "application/json", b""),
    "html": (200, "text/html", b"<html>" + KEY.encode() + b"</html>"),
    "not utf-8": (200, "application/json", b'{"status":"\xff\xfe"}'),
    "nan": (200, "application/json", b'{"status":"running","final_reward":NaN}'),
    "huge number": (200, "application/json", b'{"status":"running","final_reward":1e999,"seq":' + b"9" * 400 + b"}"),
    "deep": (200, "application/json", nested(100_000)),
    "deep enough": (200, "application/json", nested(900)),
    "deep within": (200, "application/json", json.dumps({"status": "running", "metrics": {"a": 0}, "points": [
        {"step": 1, "v": 0}], "events": [{"seq": 1, "v": 0}]}).encode().replace(b"0", b"[" * 500 + b"]" * 500)),
    "array": (200, "application/json", b"[1,2,3]"),
    "null": (200, "application/json", b"null"),
    "text": (200, "application/json", json.dumps(KEY).encode()),
    "no status": (200, "application/json", b'{"job_id":null,"state":7,"results":[],"metrics":3,"progress":"x"}'),
    "lone surrogate": (200, "application/json", b'{"status":"\\ud800"}'),
    "gzip that is none": (200, "application/json", b'{"status":"running"}'),
    "echo": (422, "application/json", json.dumps({"detail": {"error": {
        "code": KEY + ESCAPES, "message": f"{ESCAPES}your key {KEY} {KEY[3:12]}", "hint": KEY, "rollout_id": KEY,
        "fields": [{"loc": ["body", KEY], "message": KEY}, {"loc": "x"}, 7]}}}).encode()),
    "echo in detail": (500, "application/json", json.dumps({"detail": f"{ESCAPES}{KEY}", "error": KEY}).encode()),
    "echo of a refusal": (401, "text/plain", KEY.encode()),
    "no sense": (600, "application/json", b"{}"),
    "redirect elsewhere": (303, "text/plain", b""),
    "teapot": (418, "application/json", json.dumps({"detail": [{"msg": KEY * 9000}]}).encode()),
}  # fmt: skip


@contextmanager
def answering(reply: Callable[[], web.Response]) -> Iterator[str]:
    async def answer(_: web.Request) -> web.Response:
        return reply()

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answer)
    with listening(app) as url:
        yield url


def hostile(name: str) -> web.Response:
    status, kind, body = BODIES[name]
    headers = {"Content-Type": kind, "Retry-After": "9" * 4000, "Set-Cookie": "a=b"}
    if name.startswith("gzip"):
        headers["Content-Encoding"] = "gzip"
    if status == 303:
        headers["Location"] = f"http://localhost.example.invalid/{KEY}"
    return web.Response(status=status, body=body, headers=headers)


def safe(text: str) -> None:
    assert not any(KEY[at : at + 6] in text for at in range(len(KEY) - 5)), text
    assert "\x1b" not in text, repr(text)
    assert "\u202e" not in text, repr(text)
    assert len(text) < 9000


TASK_APP: list[Callable[[TaskAppClient], Awaitable[Any]]] = [
    lambda client: client.health(),
    lambda client: client.info(),
    lambda client: client.task_info([1]),
    lambda client: client.rollout(REQUEST, timeout_seconds=5),
    lambda client: client.rollout(REQUEST, timeout_seconds=5, idempotency_key="k"),
    lambda client: client.rollout(REQUEST, timeout_seconds=5, submit=True),
]


async def sound(answer: Awaitable[Any]) -> None:
    """It comes in time, and is JSON or an error of ours."""
    try:
        json.dumps(await asyncio.wait_for(answer, 30))
    except JobError as error:
        safe(str(error))


async def streamed(client: BackendClient) -> list[Any]:
    return [event async for event in follow_events(client, "j", poll_seconds=0.01, patience_seconds=0.1)]


BACKEND: list[Callable[[BackendClient], Awaitable[Any]]] = [
    lambda client: client.create_job({"a": 1}),
    lambda client: client.get_job("j"),
    lambda client: client.list_jobs(),
    lambda client: all_events(client, "j"),
    lambda client: all_metrics(client, "j"),
    lambda client: client.timeline("j"),
    lambda client: client.cancel("j"),
    lambda client: client.verify_task_app("http://127.0.0.1:1"),
    lambda client: client.trainer("t"),
    lambda client: client.public_key(),
    lambda client: client.put_env_key("A", "b"),
    lambda client: client.health(),
    lambda client: watch(client, "j", timeout_seconds=0.3, interval_seconds=0.05),
]


def using(client: Any, use: Callable[[Any], Awaitable[None]]) -> None:
    async def once() -> None:
        async with client:
            await use(client)

    asyncio.run(once())


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    ("kind", "retries", "calls"),
    [(TaskAppClient, 1, TASK_APP), (BackendClient, 0, BACKEND)],
    ids=["task app", "backend"],
)
def test_every_call_of_a_server_that_answers_so(kind: Any, retries: int, calls: Any, body: str) -> None:
    async def all_of_them(client: Any) -> None:
        await asyncio.gather(*(sound(call(client)) for call in calls))

    with answering(lambda: hostile(body)) as url:
        using(kind(url, KEY, retries=retries), all_of_them)


def test_a_bomb_in_gzip_is_not_unpacked_whole() -> None:
    """512 MiB of spaces: one flushed block, again and again. Its end is never read."""
    packer = zlib.compressobj(9, wbits=31)
    blocks = [
        packer.compress(b" " * (8 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2)
    ]  # header in the first
    packed = blocks[0] + blocks[1] * 63

    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    with answering(lambda: web.Response(body=packed, headers=headers)) as url:
        tracemalloc.start()
        with pytest.raises(JobError):
            using(TaskAppClient(url, KEY), lambda client: client.health())
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 200 << 20


def drip(connection: socket.socket, head: bytes, piece: bytes) -> None:
    connection.sendall(head)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        connection.sendall(piece)
        time.sleep(0.02)


WIRE: dict[str, Callable[[socket.socket], None]] = {
    "head without an end": lambda connection: drip(connection, b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
    "body that drips": lambda connection: drip(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b" "),
    "cut in the body": lambda connection: connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"a":'),
    "cut in a chunk": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{"),
    "no chunk": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{"),
    "no HTTP": lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.0\r\n"),
    "nothing": lambda connection: None,
    "header of a megabyte": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nX: " + b"a" * (1 << 20) + b"\r\n\r\n"),
    "two lengths": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
}  # fmt: skip


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize("wire", WIRE)
def test_a_line_that_goes_wrong(wire: str) -> None:
    async def ask(client: TaskAppClient) -> None:
        for call in (client.get("/health", seconds=1), client.rollout(REQUEST, timeout_seconds=1)):
            with pytest.raises(JobError) as told:
                await asyncio.wait_for(call, 20)
            safe(str(told.value))

    with raw(WIRE[wire]) as url:
        using(TaskAppClient(url, KEY, retries=0), ask)


def test_a_stream_whose_line_never_ends_is_left() -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ")
        while True:
            connection.sendall(b"a" * 65536)

    with raw(serve) as url, pytest.raises(JobError):
        client = BackendClient(url, KEY, timeout_seconds=1, retries=0)
        using(client, lambda client: asyncio.wait_for(streamed(client), 30))


@pytest.mark.parametrize(
    ("job_id", "expected"),
    [(7, "7"), ("rl_1", "rl_1"), *((odd, None) for odd in (f"j{ESCAPES}", "j" * 600, True, ".."))],
)
def test_an_odd_job_id_is_none(job_id: Any, expected: str | None) -> None:
    """It would be shown, logged and sent back."""
    with answering(lambda: web.json_response({"job_id": job_id, "status": "queued"})) as url:
        job = RLJob(backend_url=url, api_key=KEY, payload={"job_type": "rl"})
        with nullcontext() if expected else pytest.raises(JobError):
            assert job.submit() == expected


def test_why_a_job_failed_is_told_without_any_key() -> None:
    cause = f"{ESCAPES}the backend's {KEY}, the task app's canary-task-app-key-1"
    failed = {"job_id": "rl_1", "status": "FAILED", "error": {"message": cause}}
    with answering(lambda: web.json_response(failed)) as url:
        job = RLJob(backend_url=url, api_key=KEY, job_id="rl_1", task_app_api_key="canary-task-app-key-1")
        with pytest.raises(JobError, match=r"rl_1.*the backend's \(key\), the task app's \(key\)") as told:
            job.get_results()
        safe(str(told.value))
        assert KEY not in repr(job)


@pytest.mark.parametrize("body", BODIES)
def test_checks_of_a_server_that_answers_so(body: str) -> None:
    async def look(url: str) -> None:
        for findings in (await check_task_app(url, KEY), await check_backend(url, KEY, url)):
            assert any(not finding.ok for finding in findings) or body in ("deep within", "no status")
            for finding in findings:
                safe(finding.found + finding.do)

    with answering(lambda: hostile(body)) as url:
        asyncio.run(asyncio.wait_for(look(url), 60))
