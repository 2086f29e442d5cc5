"""JSON of strangers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.backend.body import parse_object
from taskapp_kit.errors import RequestError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(TEXT, JSON, max_size=5))
def test_every_object_is_read_as_it_was_written(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value).encode()) == value
    assert parse_object(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        assert isinstance(parse_object(raw), dict)
    except RequestError as refused:
        assert refused.code == "invalid_json"


@pytest.mark.parametrize("depth", [63, 64, 65, 100_000])
def test_depth_is_bounded(depth: int) -> None:
    raw = b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)
    if depth <= 64:
        parse_object(raw)
    else:
        with pytest.raises(RequestError):
            parse_object(raw)


def test_brackets_in_texts_are_no_depth() -> None:
    assert parse_object(b'{"a":"\\"[[[[' + b"[{" * 100 + b'"}')["a"].startswith('"[[[[')
