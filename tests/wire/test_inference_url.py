"""The model's address: found, stripped of what is secret, its correlation id read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import RequestError
from taskapp_kit.wire.inference_url import (
    INFERENCE_URL,
    complete_url,
    correlation_id,
    inference_url,
    stored_url,
    where,
    without_userinfo,
)


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("https://h/v1", "https://h/v1"),
        ("https://user:pw@h:8/v1?cid=1#f", "https://h:8/v1?cid=1#f"),
        ("https://u:p@w@h/v1", "https://h/v1"),
        ("https://user@h", "https://h"),
        ("https://h/path@x?q=a@b", "https://h/path@x?q=a@b"),
        ("https://h?q=//a@b", "https://h?q=//a@b"),
        ("user:pw@h/v1", "h/v1"),
        ("//user:pw@h/v1", "//h/v1"),
        ("u:p@h/a//b", "h/a//b"),
        ("http://u:p@[::1]:80/v1", "http://[::1]:80/v1"),
        ("http://u:p@[::1/v1", "http://[::1/v1"),
        ("", ""),
    ],
)
def test_userinfo_is_stripped(url: str, bare: str) -> None:
    assert without_userinfo(url) == bare


@given(st.text(max_size=40))
def test_any_text_is_accepted_without_an_exception(text: str) -> None:
    assert len(without_userinfo(text)) <= len(text)
    assert without_userinfo(without_userinfo(text)) == without_userinfo(text)
    stored_url(text)
    correlation_id({}, text, None)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://u:p@h/v1?key=secret&cid=a%20b&x=1#f", "https://h/v1?cid=a+b"),
        ("https://h/v1?key=secret", "https://h/v1"),
        ("https://h/v1#frag", "https://h/v1"),
        ("http://127.0.0.1:4711/served-here/v1", "http://127.0.0.1/served-here/v1"),
        ("http://h:4711/served-here/v1", "http://h:4711/served-here/v1"),
        ("http://127.0.0.1:4711/v1", "http://127.0.0.1:4711/v1"),
    ],
)
def test_the_store_keeps_the_address_and_cid(url: str, kept: str) -> None:
    assert stored_url(url) == kept


def test_readers_are_told_that_a_model_is_on_this_machine() -> None:
    for port in ("", ":4711"):
        assert where(f"http://127.0.0.1{port}/served-here/v1") == "on this machine"
    for elsewhere in (
        "http://h/served-here/v1",
        "http://127.0.0.1:8100/v1",
        "https://h/http://127.0.0.1/served-here/v1",
    ):
        assert where(elsewhere) == f"at {elsewhere}"


def test_inference_url_location() -> None:
    assert inference_url({"inference_url": "https://u:p@a"}, "https://b") == "https://a"
    assert inference_url({}, "https://u:p@b/v1") == "https://b/v1"
    assert inference_url({"inference_url": None}, "https://b") == "https://b"
    assert inference_url({"inference_url": ""}, None) is None
    with pytest.raises(RequestError) as caught:
        inference_url({"inference_url": 3}, "https://b")
    assert caught.value.fields[0].loc == INFERENCE_URL


def test_correlation_id_location() -> None:
    url = "https://h/v1?trace=t&cid=c"
    assert correlation_id({"trace_correlation_id": "1", "trace": "2"}, url, "3") == "1"
    assert correlation_id({"trace": "2"}, url, "3") == "2"
    assert correlation_id({"trace": 5}, url, "3") == "c"
    assert correlation_id({}, "https://h/?trace=t", "3") == "t"
    assert correlation_id({}, "https://h/?trace_correlation_id=u", "3") == "u"
    assert correlation_id({}, "https://h/", "3") == "3"
    assert correlation_id({}, None, None) is None


@pytest.mark.parametrize(
    ("url", "complete"),
    [
        ("https://h/v1", "https://h/v1/chat/completions"),
        ("https://h/v1/", "https://h/v1/chat/completions"),
        ("https://h", "https://h/v1/chat/completions"),
        ("https://h/", "https://h/v1/chat/completions"),
        ("https://h/openai", "https://h/openai/v1/chat/completions"),
        ("https://h/v1/chat", "https://h/v1/chat/completions"),
        ("https://h/v1/chat/completions", "https://h/v1/chat/completions"),
        ("https://h/v1/chat/completions/?cid=1", "https://h/v1/chat/completions?cid=1"),
        ("https://h/v1?cid=a%2Fb&x=1#f", "https://h/v1/chat/completions?cid=a%2Fb&x=1"),
        ("https://h?cid=1", "https://h/v1/chat/completions?cid=1"),
        ("https://h/rollouts/r-1/v1?cid=1", "https://h/rollouts/r-1/v1/chat/completions?cid=1"),
        ("https://h/v1?cid=1/v1/chat/completions", "https://h/v1/chat/completions?cid=1"),
        ("https://h?cid=1/chat/completions", "https://h/v1/chat/completions?cid=1"),
        ("https://h/v1/chat/completions?cid=1/v1/chat/completions", "https://h/v1/chat/completions?cid=1"),
    ],
)
def test_an_endpoints_address_is_completed(url: str, complete: str) -> None:
    assert complete_url(url) == complete


@given(st.text(max_size=40))
def test_a_complete_address_is_complete(text: str) -> None:
    once = complete_url(text)
    assert complete_url(once) == once
