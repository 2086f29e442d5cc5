"""Request heads are bounded before the key is looked at: a stranger can hold neither memory nor connections."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import aiohttp
import httpx
import pytest
from starlette.types import Receive, Scope, Send

from taskapp_kit.net.response import EncodedResponse, json_answer, peer_of
from taskapp_kit.serve.connection_limits import ConnectionLimits
from taskapp_kit.serve.uvicorn_protocol import BoundedHttp
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.serve.running_server import RunningServer, error_of, read_answer
from tests.waiting import until

pytestmark = pytest.mark.server

SEEN: list[list[tuple[bytes, bytes]]] = []
GATE = threading.Event()
HELD = threading.Event()
LONG = bytes(range(256)) * 20_000
QUICK = ConnectionLimits(max_connections=6, head_seconds=1.0, idle_seconds=1.0)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Keeps the headers, and reads the body but at /early. /key: as a valid key does; /long: 5 MB; /gate: waits; /hold: so
    does the event loop.
    """
    if scope["type"] == "http":
        path = scope["path"]
        while path != "/early" and (await receive()).get("more_body"):
            pass
        SEEN.append(list(scope["headers"]))
        peer_of(scope).keyed |= path == "/key"
        if path == "/hold":
            HELD.set()
            GATE.wait(10)
        while path == "/gate" and not GATE.is_set():
            await asyncio.sleep(0.01)
        await (EncodedResponse(200, LONG) if path == "/long" else json_answer({"path": path}))(scope, receive, send)


@pytest.fixture(scope="module")
def server() -> Iterator[BackgroundServer]:
    with BackgroundServer(echo) as running:
        yield running


@pytest.fixture(scope="module")
def strict() -> Iterator[BackgroundServer]:
    """One that waits a second for everything, and has room for six connections."""
    with BackgroundServer(echo, limits=QUICK) as running:
        yield running


def connect(server: BackgroundServer, data: bytes = b"") -> socket.socket:
    made = socket.create_connection((server.host, server.port), timeout=20)
    made.sendall(data)
    return made


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def ends(connection: socket.socket) -> bytes:
    """All that still comes until the server closes; TimeoutError when it does not."""
    found = b""
    try:
        while chunk := connection.recv(65536):
            found += chunk
    except ConnectionResetError:
        pass
    return found


def test_a_long_head_is_refused(running: RunningServer) -> None:
    for junk in (b"X-Junk: " + b"j" * 400_000, b"".join(b"X-J%d: 1\r\n" % n for n in range(40_000)), b"X" * 400_000):
        answer = running.raw(b"GET / HTTP/1.1\r\nHost: x\r\n" + junk + b"\r\n\r\n")
        assert answer[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400", b"HTTP/1.1 200", b"")
        endless = running.raw(b"GET / HTTP/1.1\r\nHost: x\r\n" + junk)
        assert endless[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400", b"")
    assert running.client.get("/health").status_code == 200


def test_an_endless_header_does_not_fill_the_memory(server: BackgroundServer) -> None:
    with socket.create_connection((server.host, server.port), timeout=5) as connection:
        sent = 0
        connection.sendall(b"GET / HTTP/1.1\r\nX-Junk: ")
        with pytest.raises(OSError):
            while sent < 200_000_000:
                sent += connection.send(b"j" * 65536)
    assert sent < 20_000_000, "the server stopped listening long before"


def test_trailers_never_become_headers(server: BackgroundServer) -> None:
    SEEN.clear()
    request = (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\nX-API-Key: sneaked\r\nX-Other: in\r\n\r\n"
    )
    with socket.create_connection((server.host, server.port), timeout=5) as connection:
        connection.sendall(request)
        assert read_answer(connection).startswith(b"HTTP/1.1 200")
    (headers,) = SEEN
    assert not [name for name, _ in headers if name in (b"x-api-key", b"x-other")]


def test_the_body_before_a_head_is_none_of_its_bytes(server: BackgroundServer) -> None:
    """They arrive together when the server was busy meanwhile."""
    GATE.clear()
    HELD.clear()
    body = 250_000 * b"x"
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connect(server, get("/")) as connection, connect(server) as other:
        assert read_answer(connection).startswith(b"HTTP/1.1 200")
        other.sendall(get("/hold"))
        assert HELD.wait(10)
        connection.sendall(head + body + head[:20])
        GATE.set()
        assert read_answer(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(head[20:] + body)
        assert read_answer(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:99999 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\0\r\n\r\n",
    ],
    ids=["no address", "no port", "no chunk", "no method"],
)
def test_invalid_http_returns_400(server: BackgroundServer, sent: bytes) -> None:
    with connect(server, sent) as connection:
        assert ends(connection).startswith(b"HTTP/1.1 400")


def test_invalid_http_is_not_answered_before_an_earlier_response(server: BackgroundServer) -> None:
    GATE.clear()
    with connect(server, get("/gate") + b"\0\r\n\r\n") as connection:
        assert ends(connection) == b""
    GATE.set()


def test_pending_response_is_sent_after_the_client_closed_its_side(server: BackgroundServer) -> None:
    with connect(server) as connection:
        connection.sendall(get("/"))
        connection.shutdown(socket.SHUT_WR)
        assert ends(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"", b""), (b"GET / HTTP/1.1\r\nX-Slow: ", b"408"), (b"\r\n", b"408"), (get("/"), b"200")],
    ids=["silent", "half a head", "an empty line", "idle after an answer"],
)
def test_each_connection_state_has_a_time_limit(strict: BackgroundServer, sent: bytes, status: bytes) -> None:
    with connect(strict, sent) as connection:
        assert ends(connection)[9:12] == status


def test_connection_time_limits_survive_a_clock_set_back(strict: BackgroundServer) -> None:
    strict._server.last_notified = time.time() + 3600
    with connect(strict) as connection:
        assert ends(connection) == b""
    strict._server.last_notified = 0.0


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize("more", [b"\r\n", b"G"], ids=["an empty line", "a letter"])
def test_a_byte_after_an_answer_does_not_stop_the_idle_timer(strict: BackgroundServer, more: bytes) -> None:
    with connect(strict, get("/")) as connection:
        assert read_answer(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(more)
        assert ends(connection)[9:12] in (b"", b"408")


@pytest.mark.parametrize("rest", [b"", b"{", b"x" * 3_000_000], ids=["nothing", "a byte", "three megabytes"])
def test_an_answer_before_the_body_came_closes_the_connection(server: BackgroundServer, rest: bytes) -> None:
    head = b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n"
    with connect(server, head) as connection:
        answer = read_answer(connection)
        assert answer.startswith(b"HTTP/1.1 200") and b"connection: close" in answer
        try:
            connection.sendall(rest)
        except OSError:
            assert len(rest) > 1
        assert ends(connection) == b""


def test_the_same_answer_after_the_body_came_does_not(server: BackgroundServer) -> None:
    with connect(server) as connection:
        for _ in range(2):
            connection.sendall(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            assert b"connection: close" not in read_answer(connection)


@pytest.mark.parametrize(
    "sent",
    [get("/", "Connection: close"), b"POST /early HTTP/1.1\r\nContent-Length: 99\r\n\r\n{", get("/long")],
    ids=["closed", "answered early", "not read"],
)
def test_closed_connection_is_freed_without_garbage_collection(server: BackgroundServer, sent: bytes) -> None:
    """A server's collector comes seldom, and a body may be large."""

    def held() -> int:
        return sum(isinstance(thing, BoundedHttp) for thing in gc.get_objects())

    gc.collect()
    gc.freeze()  # what is there already is looked at no more
    gc.disable()
    try:
        for _ in range(5):
            with connect(server, sent) as connection:
                assert connection.recv(12) == b"HTTP/1.1 200"
        until(lambda: held() == 0, 10)
    finally:
        gc.enable()


@pytest.mark.parametrize("wrong", [None, "a-wrong-key"])
def test_client_with_a_wrong_key_and_a_large_body_reads_the_401(running: RunningServer, wrong: str | None) -> None:
    headers = {} if wrong is None else {"X-API-Key": wrong}
    for _ in range(5):
        answer = httpx.post(running.url + "/rollout", content=b" " * 3_000_000, headers=headers, timeout=20)
        assert (answer.status_code, error_of(answer)["code"]) == (401, "unauthorised")

    async def by_aiohttp() -> list[int]:
        async with aiohttp.ClientSession(headers=headers) as client:
            found = []
            for _ in range(5):
                async with client.post(running.url + "/rollout", data=b" " * 3_000_000) as told:
                    found.append(told.status)
                    assert await told.json()
            return found

    assert asyncio.run(by_aiohttp()) == [401] * 5


@pytest.mark.parametrize("headers", [(), ("Connection: close",)], ids=["kept", "closed"])
def test_long_response_is_complete(server: BackgroundServer, headers: tuple[str, ...]) -> None:
    with connect(server, get("/long", *headers)) as connection:
        assert read_answer(connection).partition(b"\r\n\r\n")[2] == LONG


def test_sixteen_requests_may_wait_on_a_connection_and_one_more_ends_it(server: BackgroundServer) -> None:
    GATE.clear()
    with connect(server, get("/gate") + 16 * get("/next")) as patient, connect(server, get("/gate")) as hasty:
        hasty.sendall(17 * get("/next"))
        assert ends(hasty) == b""
        GATE.set()
        for path in ("/gate", *["/next"] * 16):
            answer = b""
            while not answer.endswith(b"}"):
                answer += patient.recv(1)
            assert f'"{path}"'.encode() in answer


def test_at_the_cap_the_oldest_without_a_key_makes_room(strict: BackgroundServer) -> None:
    with ExitStack() as held:
        keyed = [held.enter_context(connect(strict, get("/key"))) for _ in range(2)]
        assert all(read_answer(connection).startswith(b"HTTP/1.1 200") for connection in keyed)
        GATE.clear()
        strangers = [held.enter_context(connect(strict, get("/gate"))) for _ in range(4)]
        for connection in keyed:
            connection.sendall(get("/gate"))
        for oldest in strangers[:3]:
            newest = held.enter_context(connect(strict, get("/")))
            assert read_answer(newest).startswith(b"HTTP/1.1 200")
            assert ends(oldest) == b""
        GATE.set()
        assert all(read_answer(connection).startswith(b"HTTP/1.1 200") for connection in (*keyed, strangers[3]))


def test_newest_connection_gets_503_if_all_have_a_key(strict: BackgroundServer) -> None:
    with ExitStack() as held:
        GATE.clear()
        keyed = [held.enter_context(connect(strict, get("/key"))) for _ in range(6)]
        assert all(read_answer(connection).startswith(b"HTTP/1.1 200") for connection in keyed)
        for connection in keyed:
            connection.sendall(get("/gate"))
        with connect(strict, get("/")) as newest:
            assert ends(newest).startswith(b"HTTP/1.1 503")
        GATE.set()
        assert all(read_answer(connection).startswith(b"HTTP/1.1 200") for connection in keyed)
