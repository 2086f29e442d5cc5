"""Where a gateway listens, and the address that task apps are given."""

from __future__ import annotations

import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.train.gateway.gateway_options import GatewayOptions


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, GatewayOptions()),
        ({"listen": "127.0.0.1:9000"}, GatewayOptions("127.0.0.1", 9000)),
        ({"listen": "[::1]:9000"}, GatewayOptions("::1", 9000)),
        ({"url": "http://localhost:9000/"}, GatewayOptions(port=9000, url="http://localhost:9000")),
        (
            {"url": "https://gateway.example.org/a", "listen": "0.0.0.0:9000"},
            GatewayOptions("0.0.0.0", 9000, "https://gateway.example.org/a"),
        ),
        ({"tunnel": True}, GatewayOptions(tunnel=True)),
        ({"tunnel": True, "listen": "0.0.0.0:0"}, GatewayOptions("0.0.0.0", 0, tunnel=True)),
    ],
    ids=str,
)
def test_flags_say_where_it_listens_and_what_task_apps_are_given(given: dict, options: GatewayOptions) -> None:  # type: ignore[type-arg]
    assert GatewayOptions.of(**given) == options


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"url": "https://gateway.example.org"}, "--gateway-listen HOST:PORT"),
        ({"url": "http://10.0.0.5:9000", "listen": "0.0.0.0:0"}, "0.0.0.0:9000"),
        ({"url": "http://10.0.0.5", "tunnel": True}, "only one of them"),
        ({"url": "ftp://10.0.0.5"}, "does not begin with http"),
        ({"url": "http://user:secret@10.0.0.5"}, "contains a user"),
        ({"listen": "0.0.0.0:9000"}, "--gateway-url http://ADDRESS"),
        ({"listen": "9000"}, "Expected HOST:PORT"),
        ({"listen": "127.0.0.1:99999"}, "Expected HOST:PORT"),
        ({"listen": "127.0.0.1"}, "Expected HOST:PORT"),
    ],
    ids=str,
)
def test_what_cannot_lead_to_the_gateway_is_refused(given: dict, says: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError) as raised:
        GatewayOptions.of(**given)
    assert says in str(raised.value)
    assert "secret" not in str(raised.value)


def test_the_address_of_a_job_wins_over_that_of_the_backend() -> None:
    options = GatewayOptions.of(url="http://127.0.0.1:9000").at("http://host.docker.internal:9000")
    assert options == GatewayOptions(port=9000, url="http://host.docker.internal:9000")
    with pytest.raises(ConfigError, match=r"\[gateway\] url"):
        GatewayOptions().at("http://host.docker.internal:9000")
