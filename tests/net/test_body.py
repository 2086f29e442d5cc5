"""The strict reader: it agrees with the C parser on what is sound, and refuses what is ambiguous."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskapp_kit.errors import RequestError
from taskapp_kit.net.body import _LocatingParser, read_object

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4))
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=5)


@given(OBJECTS, st.booleans())
def test_both_json_parsers_read_valid_bodies(value: dict[str, object], ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert read_object(raw) == value
    assert _LocatingParser(raw).document() == value
    assert read_object(orjson.dumps(value)) == value


@given(OBJECTS, NAMES, VALUES, VALUES)
def test_duplicate_name_is_always_rejected(value: dict[str, object], name: str, one: object, two: object) -> None:
    value.pop(name, None)
    members = [f"{json.dumps(k)}:{json.dumps(v)}" for k, v in value.items()]
    members += [f"{json.dumps(name)}:{json.dumps(one)}", f"{json.dumps(name, ensure_ascii=False)}:{json.dumps(two)}"]
    with pytest.raises(RequestError) as caught:
        read_object(("{" + ",".join(members) + "}").encode())
    assert caught.value.fields[0].type == "duplicate_name"
    assert caught.value.fields[0].loc[1] == name


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_the_callers_error(raw: bytes) -> None:
    try:
        value = read_object(raw)
    except RequestError as error:
        assert error.fields and error.code == "invalid_json"
    else:
        assert isinstance(value, dict)
        assert orjson.loads(raw) == value


@given(st.integers())
@example(2**63 - 1)
@example(2**63)
@example(2**64 - 1)
@example(2**64)
@example(-(2**63))
@example(-(2**63) - 1)
def test_integers_are_read_exactly_or_refused(number: int) -> None:
    raw = b'{"n":%d}' % number
    if -(2**63) <= number < 2**63:
        assert read_object(raw) == {"n": number}
    else:
        with pytest.raises(RequestError, match="64 bits"):
            read_object(raw)


@pytest.mark.parametrize("depth", [63, 64, 65, 100_000])
def test_depth_is_bounded(depth: int) -> None:
    raw = b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)
    if depth <= 64:
        assert read_object(raw)
    else:
        with pytest.raises(RequestError) as caught:
            read_object(raw)
        assert caught.value.fields[0].type == "too_deep"


def test_brackets_in_strings_do_not_count_as_depth() -> None:
    assert read_object(b'{"a":"\\"[[[[' + b"[{" * 100 + b'"}')["a"].startswith('"[[[[')


def test_a_server_sets_how_many_values_it_takes() -> None:
    assert read_object(b'{"a":[1,2,3]}', max_values=4)
    with pytest.raises(RequestError) as caught:
        read_object(b'{"a":[1,2,3]}', max_values=3)
    assert caught.value.fields[0].type == "too_many_values"


def test_large_floats_are_not_integers() -> None:
    assert read_object(b'{"a":1e300,"b":-1e19,"c":123456789012345678901234567890.5}') == {
        "a": 1e300, "b": -1e19, "c": 1.2345678901234568e29,
    }  # fmt: skip


def test_a_syntax_error_says_line_and_column() -> None:
    with pytest.raises(RequestError, match="line 2, column 7"):
        read_object(b'{"a": 1,\n "b": }')


def test_names_in_an_answer_are_cut() -> None:
    with pytest.raises(RequestError) as caught:
        read_object(b'{"' + b"x" * 5000 + b'":NaN}')
    assert len(caught.value.message) < 300
