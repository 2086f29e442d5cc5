"""Which Host and Origin headers a server accepts."""

from __future__ import annotations

from typing import Any

import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.net.auth import SiteRules

LOCAL, ANY, NAMED = (
    SiteRules(local=True),
    SiteRules(any_host=True),
    SiteRules(["app.example", "*.modal.run", "[2001:db8::1]"]),
)


def refused(rules: SiteRules, host: str | None, *origins: str, bound: str = "10.0.0.1") -> str | None:
    scope: dict[str, Any] = {"server": (bound, 8001), "headers": [(b"origin", text.encode()) for text in origins]}
    if host is not None:
        scope["headers"].insert(0, (b"host", host.encode()))
    refusal = rules.refusal(scope)
    return None if refusal is None else refusal.code


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "localhost.", "127.0.0.1:80", "127.0.0.2", "[::1]", "[::1]:8001", "a.localhost"])  # fmt: skip
def test_names_of_loopback_are_accepted_where_only_this_machine_can_call(host: str) -> None:
    assert refused(LOCAL, host) is None
    assert refused(NAMED, host) == "host_not_allowed"
    assert refused(NAMED, host, bound="127.0.0.1") is None or host.startswith("127.0.0.2")


@pytest.mark.parametrize("host", [None, "", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "localhost evil", "localhost:x", "user@localhost", "[::1", "[2001:db8::2]", "testserver", "0.0.0.0"])  # fmt: skip
def test_other_hosts_are_rejected(host: str | None) -> None:
    assert refused(LOCAL, host) == refused(NAMED, host) == "host_not_allowed"
    assert refused(ANY, host) is None, "with exposure public and without TASKAPP_HOSTS any name is right"


@pytest.mark.parametrize("host", ["app.example", "APP.example:8443", "app.example.", "w--a-web.modal.run", "[2001:db8::1]:80", "10.0.0.1:8001"])  # fmt: skip
def test_configured_hosts_and_the_servers_own_address_are_accepted(host: str) -> None:
    assert refused(NAMED, host) is None


def test_two_host_headers_are_rejected() -> None:
    headers = [(b"host", b"localhost"), (b"host", b"evil.example")]
    assert LOCAL.refusal({"headers": headers}) is not None


@pytest.mark.parametrize(
    ("host", "origin", "accepted"),
    [
        ("app.example", "https://app.example", True),
        ("app.example", "http://APP.example.:80", True),
        ("app.example:443", "https://app.example", True),
        ("[::1]:8001", "http://[::1]:8001", True),
        ("app.example:8001", "http://app.example", False),
        ("app.example", "https://app.example:8443", False),
        ("localhost:8001", "http://127.0.0.1:8001", False),
        ("app.example", "https://evil.example", False),
        ("app.example", "null", False),
        ("app.example", "", False),
        ("app.example", "app.example", False),
        ("app.example", "file://app.example", False),
        ("app.example", "http://x@app.example", False),
        (None, "http://app.example", False),
    ],
)
def test_an_origin_must_be_the_host(host: str | None, origin: str, accepted: bool) -> None:
    assert refused(ANY, host, origin) == (None if accepted else "origin_not_allowed")
    assert refused(ANY, host, origin, "http://evil.example") == "origin_not_allowed"


def test_named_origins_may_call() -> None:
    rules = SiteRules(any_host=True, origins=["https://Page.example"])
    assert refused(rules, "app.example", "https://page.example") is None
    assert refused(rules, "app.example", "https://page.example:444") == "origin_not_allowed"
    assert refused(SiteRules(any_host=True, origins=["*"]), "app.example", "null") is None


def test_a_host_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match="TASKAPP_HOSTS"):
        SiteRules(["https://app.example/"])
