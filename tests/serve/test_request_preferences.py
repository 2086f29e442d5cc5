"""What headers ask for: strictly where a mistake would cost a rollout, leniently where a preference is only a wish."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import RequestError
from taskapp_kit.serve.routes.rollout import MAX_WAIT_SECONDS, NONE, RequestPreferences, read_preferences


def read(**headers: str | bytes) -> RequestPreferences:
    return read_preferences(
        [
            (name.replace("_", "-").encode(), value if isinstance(value, bytes) else value.encode("latin-1"))
            for name, value in headers.items()
        ]
    )


def test_request_without_preferences_is_plain() -> None:
    assert read() is NONE
    assert read(host="a", x_api_key="k", content_type="application/json") is NONE
    assert read(accept="*/*").plain
    assert read(prefer="wait=5").plain, "to wait is what a plain request does anyway"


@pytest.mark.parametrize("key", ["a", "a" * 255, "8e03978e-40d5-43e8-bc93-6894a57f9324", '"quoted"', "!~,;="])
def test_valid_idempotency_keys_are_accepted(key: str) -> None:
    preferences = read(idempotency_key=key)
    assert preferences.idempotency_key == key
    assert not preferences.plain


@given(st.binary(max_size=300))
def test_invalid_idempotency_key_is_rejected(key: bytes) -> None:
    fits = 1 <= len(key) <= 255 and all(0x21 <= byte <= 0x7E for byte in key)
    try:
        assert read(idempotency_key=key).idempotency_key == key.decode()
        assert fits
    except RequestError as error:
        assert not fits
        assert error.code == "invalid_header"
        assert error.fields[0].loc == ("header", "Idempotency-Key")
        assert "Idempotency-Key" in error.message


def test_two_idempotency_keys_are_rejected() -> None:
    with pytest.raises(RequestError, match="Idempotency-Key .*twice"):
        read_preferences([(b"idempotency-key", b"a"), (b"host", b"x"), (b"idempotency-key", b"a")])


@pytest.mark.parametrize(
    ("text", "respond_async", "wait_seconds"),
    [
        ("respond-async", True, None),
        ("Respond-Async", True, None),
        ("respond-async, wait=5", True, 5.0),
        ("respond-async; wait=5", True, 5.0),
        ("return=minimal,respond-async,  WAIT = 12", True, 12.0),
        ('respond-async, wait="7"', True, 7.0),
        ("wait=100000", False, MAX_WAIT_SECONDS),
        ("wait=9999999999", False, MAX_WAIT_SECONDS),
        ("wait=0", False, 0.0),
        ("wait=-1", False, None),
        ("wait=x", False, None),
        ("await=5", False, None),
        ("not-respond-async", False, None),
        ('foo="respond-async"', False, None),
        ("", False, None),
    ],
)
def test_preferences(text: str, respond_async: bool, wait_seconds: float | None) -> None:
    preferences = read(prefer=text)
    assert (preferences.respond_async, preferences.wait_seconds) == (respond_async, wait_seconds)


def test_preferences_in_two_headers_are_one_list() -> None:
    preferences = read_preferences([(b"prefer", b"wait=3"), (b"prefer", b"respond-async")])
    assert (preferences.respond_async, preferences.wait_seconds) == (True, 3.0)


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream; charset=utf-8", True),
        ("text/event-stream;q=0.5, */*;q=0.1", True),
        ("application/json, text/event-stream", True),
        ("text/event-stream;q=0", False),
        ("text/event-stream; q=0.000", False),
        ("text/event-streams", False),
        ("text/*", False),
        ("*/*", False),
    ],
)
def test_accept_header_selects_the_stream(text: str, streams: bool) -> None:
    assert read(accept=text).event_stream is streams


@pytest.mark.parametrize(("last", "first"), [("0", 1), ("41", 42), ("007", 8), ("999999999", 1_000_000_000)])
def test_the_first_event_is_the_one_after_the_last(last: str, first: int) -> None:
    assert read(last_event_id=last).first_event == first


@pytest.mark.parametrize("last", ["", " ", "-1", "1.0", "x", "1,2", "9999999999", "٣".encode().decode("latin-1")])
def test_invalid_last_event_id_is_rejected(last: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(last_event_id=last)
    assert caught.value.fields[0].loc == ("header", "Last-Event-ID")


def test_trace_context_is_passed_on_when_it_may_be_one() -> None:
    preferences = read(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", tracestate="a=b")
    assert preferences.traceparent == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert preferences.tracestate == "a=b"
    assert preferences.plain
    assert read(traceparent=b"\xff", tracestate="x" * 513) == NONE
