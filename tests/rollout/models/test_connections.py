"""HTTP as it is on the wire: what goes out, what comes back whole, cut, polled for, or from the wrong place."""

from __future__ import annotations

import gzip
import socket
from collections.abc import AsyncIterator

import orjson
import pytest

from taskapp_kit.net.addresses import AddressPolicy, read_url
from taskapp_kit.net.http import AddressRefused, GuardedResolver, HttpResponse
from taskapp_kit.rollout.models.attempts import AttemptFailed
from taskapp_kit.rollout.models.client import ModelConnections
from taskapp_kit.testing import MockModel
from tests.rollout.models.raw_server import RawServer, Sent, http, raw_server, said

pytestmark = [pytest.mark.server, pytest.mark.anyio]


@pytest.fixture
async def connections() -> AsyncIterator[ModelConnections]:
    opened = ModelConnections(AddressPolicy("local"))
    yield opened
    await opened.close()


async def exchange(
    connections: ModelConnections, *answers: Sent, key: str | None = "sk-1", query: str = ""
) -> tuple[HttpResponse, RawServer]:
    """The response to one call, and what the server saw."""
    async with raw_server(answers) as server:
        return await connections.post(read_url(server.url + query), b'{"a":1}', key), server


async def failure(connections: ModelConnections, *answers: Sent) -> tuple[AttemptFailed, RawServer]:
    async with raw_server(answers) as server:
        with pytest.raises(AttemptFailed) as caught:
            await connections.post(read_url(server.url), b'{"a":1}', "sk-1")
        return caught.value, server


async def test_request_headers_and_body(connections: ModelConnections) -> None:
    answer, server = await exchange(connections, http(200, said()), query="?cid=a%20b/c&x=1")
    assert answer.json() == said()
    (request,) = server.requests
    assert request.line == "POST /v1/chat/completions?cid=a%20b/c&x=1 HTTP/1.1"
    assert request.body == b'{"a":1}'
    assert request.headers["authorization"] == "Bearer sk-1"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("taskapp-kit/")
    assert not {"cookie", "x-api-key", "x-api-keys"} & set(request.headers)


@pytest.mark.parametrize(
    "body",
    [
        http(200, gzip.compress(orjson.dumps(said())), ("Content-Encoding", "gzip")),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
        % (len(orjson.dumps(said())), orjson.dumps(said())),
    ],
)
async def test_other_ways_of_sending_the_same(connections: ModelConnections, body: bytes) -> None:
    answer, _ = await exchange(connections, body)
    assert answer.json() == said()


async def test_a_long_refusal_is_read_to_a_bound(connections: ModelConnections) -> None:
    answer, _ = await exchange(connections, http(500, b"x" * 5_000_000))
    assert 0 < len(answer.body) < 1_000_000


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(http(200, gzip.compress(b" " * 200_000_000, 9), ("Content-Encoding", "gzip")), id="a bomb"),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_invalid_or_oversized_response_fails(connections: ModelConnections, answer: bytes) -> None:
    failed, _ = await failure(connections, answer)
    assert failed.kind == "malformed"


# redirects


async def test_a_303_to_the_same_server_is_polled_as_modal_wants_it(connections: ModelConnections) -> None:
    waiting = http(303, b"", ("Location", "/v1/chat/completions?__modal_function_call_id=fc-1"))
    answer, server = await exchange(connections, waiting, waiting, http(200, said()))
    assert answer.json() == said()
    assert [request.line.split()[0] for request in server.requests] == ["POST", "GET", "GET"]
    assert server.requests[2].line.split()[1] == "/v1/chat/completions?__modal_function_call_id=fc-1"
    assert server.requests[2].body == b"" and server.requests[2].headers["authorization"] == "Bearer sk-1"


async def test_polling_ends(connections: ModelConnections) -> None:
    failed, server = await failure(connections, http(303, b"", ("Location", "/again")))
    assert failed.kind == "redirected" and len(server.requests) == 49


@pytest.mark.parametrize("status", [300, 301, 302, 303, 305, 307, 308])
async def test_other_redirects_are_reported_and_not_followed(connections: ModelConnections, status: int) -> None:
    async with raw_server([http(200, said())]) as other:
        failed, server = await failure(connections, http(status, b"", ("Location", f"{other.url}?token=secret")))
        assert failed.kind == "redirected"
        assert f"127.0.0.1:{other.port}" in failed.words and "secret" not in failed.words
        assert other.connections == 0 and len(server.requests) == 1


@pytest.mark.parametrize(
    "location", ["", "javascript:alert(1)", "//[", "http://a b/", "\\\\h", "http://u:p@127.0.0.1/"]
)
async def test_a_redirect_to_nowhere(connections: ModelConnections, location: str) -> None:
    failed, _ = await failure(connections, http(303, b"", ("Location", location)))
    assert failed.kind == "redirected"


async def test_neither_cookies_nor_a_missing_key_are_sent(connections: ModelConnections) -> None:
    async with raw_server([http(200, said(), ("Set-Cookie", "a=b; Path=/"))]) as server:
        for _ in range(2):
            await connections.post(read_url(server.url), b"{}", None)
    assert server.connections == 1
    assert not {"cookie", "authorization"} & set(server.requests[1].headers)


async def test_unreachable_host_fails(connections: ModelConnections) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed_port = taken.getsockname()[1]
    with MockModel() as model:
        for url in (f"http://127.0.0.1:{closed_port}", "http://nobody.invalid", f"https://127.0.0.1:{model.port}"):
            with pytest.raises(AttemptFailed) as caught:
                await connections.post(read_url(url), b"{}", None)
            assert caught.value.kind == "unreachable"


# the rules, at the socket


@pytest.mark.parametrize("target", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fe80::1%1"])
def test_no_socket_is_made_for_a_refused_address(target: str) -> None:
    checked = GuardedResolver(None, AddressPolicy("public").refusal)  # type: ignore[arg-type]
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with pytest.raises(AddressRefused):
        checked.socket((family, socket.SOCK_STREAM, 0, "", (target, 80)))
    checked.socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("8.8.8.8", 80))).close()


@pytest.mark.parametrize(("allow", "refused"), [(["localhost"], None), ([], "address_refused")])
async def test_the_machines_own_resolver_is_checked_too(allow: list[str], refused: str | None) -> None:
    """`localhost` is allowed by its name only, so the name is really resolved."""
    connections, kind = ModelConnections(AddressPolicy("public", allow)), None
    async with raw_server([http(200, said())]) as server:
        try:
            await connections.post(read_url(f"http://localhost:{server.port}/v1"), b"{}", None)
        except AttemptFailed as failed:
            kind = failed.kind
        await connections.close()
    assert kind == refused and len(server.requests) == (refused is None)
