"""Request heads are bounded before the key is looked at: a stranger can hold neither memory nor connections."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from front_door import Door, read_answer
from starlette.types import Receive, Scope, Send

from taskapp_kit.serve import limits
from taskapp_kit.serve.answer import json_answer
from taskapp_kit.serve.runner import BackgroundServer

SEEN: list[list[tuple[bytes, bytes]]] = []


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body, then keeps the headers."""
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        SEEN.append(list(scope["headers"]))
        await json_answer({"ok": True})(scope, receive, send)


@pytest.fixture(scope="module")
def server() -> Iterator[BackgroundServer]:
    with BackgroundServer(echo) as running:
        yield running


def test_a_long_head_is_refused(door: Door) -> None:
    for junk in (b"X-Junk: " + b"j" * 400_000, b"".join(b"X-J%d: 1\r\n" % n for n in range(40_000)), b"X" * 400_000):
        answer = door.raw(b"GET / HTTP/1.1\r\nHost: x\r\n" + junk + b"\r\n\r\n")
        assert answer[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400", b"HTTP/1.1 200", b"")
        endless = door.raw(b"GET / HTTP/1.1\r\nHost: x\r\n" + junk)
        assert endless[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400", b"")
    assert door.client.get("/health").status_code == 200


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


def test_two_requests_in_one_packet_are_two_requests(server: BackgroundServer) -> None:
    SEEN.clear()
    with socket.create_connection((server.host, server.port), timeout=5) as connection:
        connection.sendall(b"GET /a HTTP/1.1\r\nX-N: 1\r\n\r\nGET /b HTTP/1.1\r\nX-N: 2\r\n\r\n")
        end = time.monotonic() + 5
        while len(SEEN) < 2 and time.monotonic() < end:
            time.sleep(0.02)
    assert [dict(headers)[b"x-n"] for headers in SEEN] == [b"1", b"2"]


@pytest.mark.slow
def test_a_head_that_does_not_come_is_not_waited_for(server: BackgroundServer) -> None:
    began = time.monotonic()
    connections = [socket.create_connection((server.host, server.port), timeout=20) for _ in range(3)]
    connections[1].sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
    connections[2].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert read_answer(connections[2]).startswith(b"HTTP/1.1 200")
    assert read_answer(connections[0]) == b""
    assert read_answer(connections[1])[:12] in (b"HTTP/1.1 408", b"")
    assert limits.HEAD_SECONDS - 1 < time.monotonic() - began < limits.HEAD_SECONDS + 3
    connections[2].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert read_answer(connections[2]).startswith(b"HTTP/1.1 200"), "an idle, honest connection is kept"
    for connection in connections:
        connection.close()
