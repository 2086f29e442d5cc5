"""What of `policy.config` becomes an endpoint, and what is refused before the rollout."""

from __future__ import annotations

from typing import Any

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.errors import RequestError
from taskapp_kit.net.addresses import AddressPolicy
from taskapp_kit.rollout.models.access import endpoint_of
from taskapp_kit.rollout.models.model_settings import Credentials
from taskapp_kit.wire.chat.conversation import Endpoint
from taskapp_kit.wire.inference_url import given_url

DOOR = "door-key-0123456789"
KEYS = Credentials(Settings(environment_api_key=DOOR))
URL = "https://h.example/v1/chat/completions"


def read(config: dict[str, Any], top_level: str | None = None, **more: Any) -> Endpoint | None:
    return endpoint_of(
        config, top_level, given_url(config, top_level), **{"rules": AddressPolicy("public"), "keys": KEYS, **more}
    )


def test_endpoint_is_read_from_policy_config() -> None:
    assert read({"inference_url": "https://h.example?cid=1"}) == Endpoint(f"{URL}?cid=1")
    assert read({}, "https://h.example/v1") == Endpoint(URL)
    assert read({"inference_url": "https://h.example"}, "https://other.example") == Endpoint(URL)
    assert read({"inference_url": "", "model": "m", "api_key": "sk-1"}, "https://h.example", cache=True) == Endpoint(
        URL, "m", "sk-1", True
    )
    assert read({"model": "m"}) is None and read({"inference_url": None}, "") is None
    assert read({"inference_url": "http://10.0.0.1"}, rules=AddressPolicy("public", ["10.0.0.0/8"])) is not None


@pytest.mark.parametrize(
    ("config", "top_level", "loc"),
    [
        ({"inference_url": 3}, None, ("body", "policy", "config", "inference_url")),
        ({"inference_url": "ftp://h"}, None, ("body", "policy", "config", "inference_url")),
        ({"inference_url": "https://u:p@h.example"}, None, ("body", "policy", "config", "inference_url")),
        ({"inference_url": "http://127.0.0.1"}, None, ("body", "policy", "config", "inference_url")),
        ({}, "http://127.0.0.1", ("body", "inference_url")),
        ({}, f"https://h.example?key={DOOR}", ("body", "inference_url")),
        ({"inference_url": URL, "model": 3}, None, ("body", "policy", "config", "model")),
        ({"inference_url": URL, "model": ""}, None, ("body", "policy", "config", "model")),
        ({"inference_url": URL, "api_key": "a b"}, None, ("body", "policy", "config", "api_key")),
        ({"inference_url": URL, "api_key": DOOR}, None, ("body", "policy", "config", "api_key")),
        ({"inference_url": f"{URL}?key={DOOR}"}, None, ("body", "policy", "config", "inference_url")),
        ({"model": DOOR}, None, ("body", "policy", "config", "model")),
    ],
)
def test_invalid_endpoint_is_rejected(config: dict[str, Any], top_level: str | None, loc: tuple[str, ...]) -> None:
    with pytest.raises(RequestError) as caught:
        read(config, top_level)
    assert caught.value.fields[0].loc == loc
    assert ".".join(loc[1:]) in caught.value.message
    assert DOOR not in str(caught.value) and "u:p" not in str(caught.value)
