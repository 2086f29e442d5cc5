"""Which key goes where, and which to nobody."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.config import Settings
from taskapp_kit.errors import ConfigError, RequestError
from taskapp_kit.net.addresses import read_url
from taskapp_kit.net.redact import LEAST_FRAGMENT
from taskapp_kit.rollout.models.model_settings import VENDORS, Credentials, caller_key

DOOR, ALIAS, DEV = "door-0123456789abcdef", "alias-0123456789abcdef", "dev-0123456789abcdef"
VARIABLES = {name: f"sk-{name.lower()}-0123456789" for name in VENDORS} | {"MY_KEY": "sk-mine-0123456789"}


def keys(*keys_for: str, **more: object) -> Credentials:
    settings = Settings(
        environment_api_key=DOOR,
        environment_api_key_aliases=(ALIAS,),
        dev_environment_api_key=DEV,
        inference_keys_for=keys_for,
        variables=VARIABLES,
    )
    return Credentials(settings, **more)  # type: ignore[arg-type]


def own(url: str, *keys_for: str) -> str | None:
    return keys(*keys_for).own_key(read_url(url))


@pytest.mark.parametrize("variable", VENDORS)
def test_vendor_key_is_sent_only_to_the_vendor(variable: str) -> None:
    for host in VENDORS[variable]:
        assert own(f"https://{host}/v1") == VARIABLES[variable]
        assert own(f"https://{host.upper()}:443/v1?x=1") == VARIABLES[variable]
        for other in (
            f"http://{host}/v1", f"https://{host}:8443/v1", f"https://{host}.evil.example/v1", f"https://x.{host}/v1",
            f"https://evil.example/{host}", f"https://evil{host}/v1", "http://127.0.0.1/v1", "https://evil.example/v1",
        ):  # fmt: skip
            assert own(other) is None


def test_no_variable_no_key() -> None:
    assert Credentials(Settings()).own_key(read_url("https://api.openai.com/v1")) is None
    blank = Credentials(Settings(variables={"OPENAI_API_KEY": ""}))
    assert blank.own_key(read_url("https://api.openai.com/v1")) is None


@pytest.mark.parametrize(
    ("entry", "url", "given"),
    [
        ("gpu.example=MY_KEY", "https://gpu.example/v1", True), ("gpu.example=MY_KEY", "https://gpu.example:8443/v1", True),
        ("gpu.example=MY_KEY", "http://gpu.example/v1", False), ("gpu.example:8443=MY_KEY", "https://gpu.example:8443/v1", True),
        ("gpu.example:8443=MY_KEY", "https://gpu.example/v1", False), ("http://gpu.example=MY_KEY", "http://gpu.example/v1", True),
        ("http://gpu.example:8000=MY_KEY", "http://gpu.example:8000/v1", True), ("localhost:8000=MY_KEY", "http://localhost:8000/v1", True),
        ("127.0.0.1=MY_KEY", "http://127.0.0.1:9/v1", True), ("[::1]:8000=MY_KEY", "http://[::1]:8000/v1", True),
        ("https://gpu.example=MY_KEY", "http://gpu.example/v1", False), ("api.openai.com=MY_KEY", "https://api.openai.com/v1", True),
    ],
)  # fmt: skip
def test_hosts_of_ones_own(entry: str, url: str, given: bool) -> None:
    assert own(url, entry) == (VARIABLES["MY_KEY"] if given else None)
    assert own("https://other.example/v1", entry) is None


@pytest.mark.parametrize(
    "entry",
    [
        "gpu.example=ABSENT_KEY",
        "a b=MY_KEY",
        "gpu.example=ENVIRONMENT_API_KEY",
        "gpu.example=",
        "MY_KEY",
        "127.1=MY_KEY",
    ],
)
def test_entries_that_cannot_be_used(entry: str) -> None:
    with pytest.raises(ConfigError) as caught:
        keys(entry)
    assert "TASKAPP_INFERENCE_KEYS_FOR" in caught.value.message


def test_no_repr_shows_a_key() -> None:
    assert "sk-" not in repr(keys()) and "0123456789" not in repr(keys()) and "api.openai.com" in repr(keys())


@pytest.mark.parametrize("door", [DOOR, ALIAS, DEV])
@pytest.mark.parametrize(
    "form", ["{}", " {} ", "Bearer {}", "bearer  {}", "x{}y", "https://h/v1?key={}", "https://h/{}/v1"]
)
def test_server_key_anywhere_in_policy_config_is_rejected(door: str, form: str) -> None:
    text = form.format(door)
    for config, loc in (
        ({"api_key": text}, ("api_key",)),
        ({"model": "m", "extra": {"headers": [{"x": text}]}}, ("extra", "headers", 0, "x")),
    ):
        with pytest.raises(RequestError) as caught:
            keys().check_config(config)
        assert caught.value.fields[0].loc == ("body", "policy", "config", *loc)
        assert door not in str(caught.value) and door not in str(caught.value.fields)


def test_encoded_or_hashed_server_key_is_recognized() -> None:
    hidden = "0123456789-from-a-file"
    digest = hashlib.sha256(hidden.encode()).digest()

    def is_server_key(text: str) -> bool:
        return hashlib.sha256(text.encode()).digest() == digest

    some = keys(is_server_key=is_server_key)
    for value in (DOOR.replace("-", "%2D"), hidden, f"Bearer {hidden}", f"https://h/v1?key={hidden}&cid=1"):
        with pytest.raises(RequestError):
            some.check_config({"x": value})
    some.check_config({"x": hidden[:-1], "y": None, "z": 3, "temperature": 0.5})


def test_a_short_door_key_does_not_refuse_every_word_that_holds_it() -> None:
    some = Credentials(Settings(environment_api_key="test"))
    some.check_config({"model": "test-model", "inference_url": "http://test.example/v1"})
    for value in ("test", "Bearer test", "http://h/v1?key=test"):
        with pytest.raises(RequestError):
            some.check_config({"api_key": value})


def test_a_callers_key() -> None:
    assert caller_key({}) is None and caller_key({"api_key": None}) is None and caller_key({"api_key": ""}) is None
    assert caller_key({"api_key": "sk-1"}) == "sk-1"
    for wrong in (3, "a b", "a\r\nX: y", "ü", "x" * 5000, ["a"]):
        with pytest.raises(RequestError) as caught:
            caller_key({"api_key": wrong})
        assert caught.value.fields[0].loc == ("body", "policy", "config", "api_key")


def test_an_excerpt_is_one_short_line() -> None:
    some = keys()
    assert some.excerpt("", None) == ""
    assert some.excerpt("no\nsuch\t model\x1b[31m\u202e", None) == "no such model [31m"
    assert len(some.excerpt("word " * 200, None)) == 200


@given(
    st.sampled_from([DOOR, ALIAS, VARIABLES["OPENAI_API_KEY"], "used-by-this-call-only-77"]),
    st.data(),
    st.text(max_size=10),
)
def test_no_excerpt_holds_a_part_of_a_key(key: str, data: st.DataObject, around: str) -> None:
    start = data.draw(st.integers(0, len(key) - LEAST_FRAGMENT))
    end = data.draw(st.integers(start + LEAST_FRAGMENT, len(key)))
    part = key[start:end]
    spaced = data.draw(st.sampled_from(["", " ", "\n"])).join(part)
    assert keys().excerpt(f"wrong: {around}{spaced}{around}", "used-by-this-call-only-77") == ""
