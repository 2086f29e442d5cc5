"""Which proxy is used, and that what goes through one arrives; this machine's own traffic meets none."""

from __future__ import annotations

import asyncio
import base64
import socket
from pathlib import Path

import pytest

from taskapp_kit.client.task_app import TaskAppClient
from taskapp_kit.errors import BackendUnreachable, TaskAppUnreachable
from taskapp_kit.jobs.client.backend import BackendClient
from taskapp_kit.net.proxies import Proxy, is_loopback, proxy_for
from tests.client.listening import raw

KEY = "canary-proxy-key-5566"
NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def basic(login: str) -> str:
    return base64.b64encode(login.encode()).decode()


@pytest.fixture
def nobody() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize(
    ("variables", "url", "found"),
    [
        ({}, "https://a.example", None),
        ({"HTTPS_PROXY": "http://p:3128"}, "https://a.example", "http://p:3128"),
        ({"https_proxy": "p:3128"}, "https://a.example", "http://p:3128"),
        ({"HTTPS_PROXY": "http://p:3128"}, "http://a.example", None),
        ({"HTTP_PROXY": "http://p:3128"}, "http://a.example:8001/rollout", "http://p:3128"),
        ({"ALL_PROXY": "https://p"}, "http://a.example", "https://p"),
        ({"ALL_PROXY": "http://p", "NO_PROXY": "*"}, "http://a.example", None),
        ({"ALL_PROXY": "http://p", "NO_PROXY": "b.example, .a.example"}, "http://x.a.example:9", None),
        ({"ALL_PROXY": "http://p", "NO_PROXY": "a.example:8001"}, "http://a.example:8001", None),
        ({"ALL_PROXY": "http://p", "NO_PROXY": "a.example:8001"}, "http://a.example:8002", "http://p"),
        ({"ALL_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8,fd00::/8"}, "http://10.1.2.3", None),
        ({"ALL_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8,fd00::/8"}, "http://[fd00::1]:9", None),
        ({"ALL_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8"}, "http://11.1.2.3", "http://p"),
        ({"ALL_PROXY": "http://[fd00::9]:1"}, "http://11.1.2.3", "http://[fd00::9]:1"),
        ({"ALL_PROXY": "http://p"}, "http://127.0.0.1:8001", None),
        ({"ALL_PROXY": "http://p"}, "http://localhost:8001", None),
        ({"ALL_PROXY": "http://p"}, "http://0.0.0.0:8001", None),
        ({"ALL_PROXY": "http://p"}, "http://[::]:8001", None),
        ({"ALL_PROXY": "http://p"}, "http://[::1]:8001", None),
    ],
)
def test_the_usual_variables(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, found: str | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    proxy = proxy_for(url)
    assert (None if proxy is None else proxy.url) == found


def test_proxy_credentials_are_not_in_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:p%40ss-word@p:3128")
    proxy = proxy_for("https://a.example")
    assert proxy == Proxy("http://p:3128", {"Proxy-Authorization": f"Basic {basic('me:p@ss-word')}"})
    assert "word" not in repr(proxy)


@pytest.mark.parametrize("odd", ["socks5://p:1080", "http://p:port", "http://", "ftp://p"])
def test_unusable_proxy_raises_with_a_reason(monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    monkeypatch.setenv("ALL_PROXY", odd)
    with pytest.raises(ValueError, match="proxy"):
        proxy_for("https://a.example")

    async def ask() -> None:
        async with TaskAppClient("https://a.example", KEY) as client:
            with pytest.raises(TaskAppUnreachable, match=r"^https://a\.example .*NO_PROXY"):
                await client.health()

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("hosts", "loopback"),
    [
        (
            ("localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.1", "2130706433", "::1", "::ffff:127.0.0.1"),
            True,
        ),
        (("localhost.example", "10.0.0.1", "fd00::1", "127.example", "", "1.example", "0.0.0.0"), False),
    ],
)
def test_this_machine_by_any_name(hosts: tuple[str, ...], loopback: bool) -> None:
    assert {is_loopback(host) for host in hosts} == {loopback}


ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{"healthy":true}'


async def health(url: str) -> object:
    async with TaskAppClient(url, KEY, retries=0) as client:
        return await asyncio.wait_for(client.health(), 30)


@pytest.mark.server
def test_a_plain_request_goes_through_with_the_proxys_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No netrc is read, not even for the proxy."""
    heads: list[bytes] = []
    (tmp_path / ".netrc").write_text("default login netrc password netrc-password\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with raw(lambda connection: connection.sendall(ANSWER), heads) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.replace("://", "://me:word@"))
        assert asyncio.run(health("http://app.example:8001")) == {"healthy": True}
        monkeypatch.setenv("HTTP_PROXY", proxy)
        assert asyncio.run(health("http://app.example:8001")) == {"healthy": True}
    assert heads[0].startswith(b"GET http://app.example:8001/health HTTP/1.1\r\n")
    assert b"X-API-Key: " + KEY.encode() in heads[0]
    assert b"Proxy-Authorization: Basic " + basic("me:word").encode() in heads[0]
    assert b"Authorization" not in heads[1]


@pytest.mark.server
def test_https_request_uses_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []
    with raw(lambda connection: connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n"), heads) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.replace("://", "://me:word@"))
        with pytest.raises(TaskAppUnreachable, match=r"^https://app\.example .*\b403\b"):
            asyncio.run(health("https://app.example"))
    assert heads[0].startswith(b"CONNECT app.example:443 HTTP/1.1\r\n")
    assert KEY.encode() not in heads[0]
    assert b"Proxy-Authorization: Basic " + basic("me:word").encode() in heads[0]


@pytest.mark.server
def test_unreachable_proxy_is_reported_as_proxy(monkeypatch: pytest.MonkeyPatch, nobody: str) -> None:
    monkeypatch.setenv("ALL_PROXY", nobody)

    async def jobs() -> None:
        async with BackendClient("http://backend.example", KEY, retries=0) as client:
            await client.list_jobs()

    with pytest.raises(BackendUnreachable, match=r"^http://backend\.example/api .*NO_PROXY"):
        asyncio.run(jobs())


@pytest.mark.server
def test_local_requests_use_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []
    with raw(lambda connection: None, heads) as proxy, raw(lambda connection: connection.sendall(ANSWER)) as app:
        for name in ("HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        assert asyncio.run(health(app)) == {"healthy": True}
        assert asyncio.run(health(app.replace("127.0.0.1", "localhost"))) == {"healthy": True}
    assert heads == []


@pytest.mark.server
def test_guarded_requests_use_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """`refuse` would see the proxy's address only."""
    heads: list[bytes] = []

    async def ask(url: str) -> None:
        async with TaskAppClient(url, KEY, refuse=lambda address: f"{address} is not for us.") as client:
            with pytest.raises(TaskAppUnreachable, match=r"192\.0\.2\.1 is not for us"):
                await client.health()

    with raw(lambda connection: connection.sendall(ANSWER), heads) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        asyncio.run(ask("http://192.0.2.1"))
    assert heads == []
