"""HTTP as it is on the wire: what goes out, what comes back whole, cut, polled for, or from the wrong place."""

from __future__ import annotations

import asyncio
import gzip
import socket
import time

import orjson
import pytest

from taskapp_kit.net.addresses import AddressPolicy, read_url
from taskapp_kit.net.http import AddressRefused, GuardedResolver
from taskapp_kit.rollout.models.attempts import AttemptFailed
from taskapp_kit.rollout.models.client import ModelConnections, ModelHttpResponse
from taskapp_kit.testing import MockModel
from tests.rollout.models.raw_server import RawServer, Sent, http, raw_server, said

pytestmark = pytest.mark.server


def asked(
    *answers: Sent, key: str | None = "sk-1", query: str = ""
) -> tuple[ModelHttpResponse | AttemptFailed, RawServer]:
    """One call, and what the server saw."""

    async def main() -> tuple[ModelHttpResponse | AttemptFailed, RawServer]:
        async with raw_server(answers) as server:
            connections = ModelConnections(AddressPolicy("local"))
            called = read_url(server.url + query)
            try:
                return await connections.post(called, b'{"a":1}', key, time.time), server
            except AttemptFailed as failed:
                return failed, server
            finally:
                await connections.close()

    return asyncio.run(main())


def failing(*answers: Sent) -> tuple[AttemptFailed, RawServer]:
    failed, server = asked(*answers)
    assert isinstance(failed, AttemptFailed)
    return failed, server


def test_what_goes_out() -> None:
    answered, server = asked(http(200, said()), query="?cid=a%20b/c&x=1")
    assert isinstance(answered, ModelHttpResponse) and orjson.loads(answered.body) == said()
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
def test_other_ways_of_sending_the_same(body: bytes) -> None:
    answered, _ = asked(body)
    assert isinstance(answered, ModelHttpResponse) and orjson.loads(answered.body) == said()


def test_statuses_and_retry_after_come_back() -> None:
    assert asked(http(429, b"no", ("Retry-After", "3")))[0] == ModelHttpResponse(429, b"no", 3.0)
    assert asked(http(200, b"yes", ("Retry-After", "3")))[0] == ModelHttpResponse(200, b"yes", None)


def test_a_long_refusal_is_read_to_a_bound() -> None:
    answered, _ = asked(http(500, b"x" * 5_000_000))
    assert isinstance(answered, ModelHttpResponse) and 0 < len(answered.body) < 1_000_000


def test_a_bomb_is_not_unpacked() -> None:
    failed, _ = failing(http(200, gzip.compress(b" " * 200_000_000, 9), ("Content-Encoding", "gzip")))
    assert failed.kind == "malformed" and "more than" in failed.words


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_http(answer: bytes) -> None:
    assert failing(answer)[0].kind == "malformed"


# redirects


def test_a_303_to_the_same_door_is_polled_as_modal_wants_it() -> None:
    waiting = http(303, b"", ("Location", "/v1/chat/completions?__modal_function_call_id=fc-1"))
    answered, server = asked(waiting, waiting, http(200, said()))
    assert isinstance(answered, ModelHttpResponse) and orjson.loads(answered.body) == said()
    assert [request.line.split()[0] for request in server.requests] == ["POST", "GET", "GET"]
    assert server.requests[2].line.split()[1] == "/v1/chat/completions?__modal_function_call_id=fc-1"
    assert server.requests[2].body == b"" and server.requests[2].headers["authorization"] == "Bearer sk-1"


def test_polling_ends() -> None:
    failed, server = failing(http(303, b"", ("Location", "/again")))
    assert failed.kind == "redirected" and len(server.requests) == 49


@pytest.mark.parametrize("status", [300, 301, 302, 303, 305, 307, 308])
def test_every_other_redirect_is_told_and_not_followed(status: int) -> None:
    async def main() -> None:
        async with raw_server([http(200, said())]) as other:
            where = f"{other.url}?token=secret"
            async with raw_server([http(status, b"", ("Location", where))]) as server:
                connections = ModelConnections(AddressPolicy("local"))
                called = read_url(server.url)
                with pytest.raises(AttemptFailed) as caught:
                    await connections.post(called, b"{}", "sk-1", time.time)
                await connections.close()
                assert caught.value.kind == "redirected"
                assert f"127.0.0.1:{other.port}" in caught.value.words and "secret" not in caught.value.words
                assert other.connections == 0 and len(server.requests) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "location", ["", "javascript:alert(1)", "//[", "http://a b/", "\\\\h", "http://u:p@127.0.0.1/"]
)
def test_a_redirect_to_nowhere(location: str) -> None:
    assert failing(http(303, b"", ("Location", location)))[0].kind == "redirected"


def test_no_cookie_goes_back_and_no_key_where_there_is_none() -> None:
    async def main() -> None:
        async with raw_server([http(200, said(), ("Set-Cookie", "a=b; Path=/"))]) as server:
            connections = ModelConnections(AddressPolicy("local"))
            called = read_url(server.url)
            for _ in range(2):
                await connections.post(called, b"{}", None, time.time)
            await connections.close()
            assert server.connections == 1
            assert not {"cookie", "authorization"} & set(server.requests[1].headers)

    asyncio.run(main())


# what cannot be reached


def test_what_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed_port = taken.getsockname()[1]

    async def kind(url: str) -> str:
        connections = ModelConnections(AddressPolicy("local"))
        with pytest.raises(AttemptFailed) as caught:
            await connections.post(read_url(url), b"{}", None, time.time)
        await connections.close()
        return caught.value.kind

    with MockModel() as model:
        for url in (f"http://127.0.0.1:{closed_port}", "http://nobody.invalid", f"https://127.0.0.1:{model.port}"):
            assert asyncio.run(kind(url)) == "unreachable"


# the rules, at the socket


@pytest.mark.parametrize("target", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fe80::1%1"])
def test_no_socket_is_made_for_a_refused_address(target: str) -> None:
    checked = GuardedResolver(None, AddressPolicy("public").refusal)  # type: ignore[arg-type]
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with pytest.raises(AddressRefused):
        checked.socket((family, socket.SOCK_STREAM, 0, "", (target, 80)))
    checked.socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("8.8.8.8", 80))).close()


def test_the_machines_own_resolver_is_checked_too() -> None:
    """`localhost` is allowed here by its name only, so that the name is really resolved."""

    async def main() -> None:
        async with raw_server([http(200, said())]) as server:
            for rules, kind in (
                (AddressPolicy("public", ["localhost"]), None),
                (AddressPolicy("public"), "address_refused"),
            ):
                connections = ModelConnections(rules)
                called = read_url(f"http://localhost:{server.port}/v1")
                try:
                    await connections.post(called, b"{}", None, time.time)
                    assert kind is None
                except AttemptFailed as failed:
                    assert failed.kind == kind and "TASKAPP_INFERENCE_ALLOW=localhost" in str(failed.hint)
                await connections.close()
            assert len(server.requests) == 1

    asyncio.run(main())
