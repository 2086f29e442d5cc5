"""Keys are taken out of texts, in part and as wholes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.net.redact import LEAST_IN_IDS, holds_key, without_key, without_keys, without_whole

KEY = "abcdefghijklmnop"
PARTS = st.lists(
    st.sampled_from(["x", " ", "ab", "z"]) | st.tuples(st.integers(0, 16), st.integers(0, 16)), max_size=12
)


@pytest.mark.parametrize("least", [6, 7, LEAST_IN_IDS])
@given(PARTS)
def test_no_part_of_the_key_stays(least: int, parts: list[Any]) -> None:
    text = "".join(part if isinstance(part, str) else KEY[part[0] : part[1]] for part in parts)
    kept = without_key(text, KEY, least)
    assert not any(KEY[start : start + least] in kept for start in range(len(KEY) - least + 1))
    if not any(KEY[start : start + least] in text for start in range(len(KEY) - least + 1)):
        assert kept == text


def test_a_short_key_is_taken_out_whole() -> None:
    assert without_key("it is abc, not ab", "abc") == "it is (key), not ab"
    assert without_key("text", None) == without_key("text", "") == "text"


def test_json_is_searched_in_texts_and_names() -> None:
    told = {"a": [f"x {KEY} y", 7, None, True], KEY: {"b": KEY[:11]}, "long": "z" * 30_000 + KEY}
    kept = without_keys(told, (None, KEY))
    assert kept == {"a": ["x (key) y", 7, None, True], "(key)": {"b": KEY[:11]}, "long": "z" * 30_000 + "(key)"}


@given(st.integers(0, 10), st.integers(6, 16), st.sampled_from(["", " ", "\n"]))
def test_a_part_of_the_key_is_found_however_it_is_spaced(start: int, length: int, between: str) -> None:
    part = KEY[start : start + length]
    assert holds_key(f"x {between.join(part)} z", KEY) is (len(part) >= 6)


def test_whole_keys_are_taken_out_with_any_mark() -> None:
    assert without_whole("abcd ab", ("abcd", "ab"), "…") == "… …"
