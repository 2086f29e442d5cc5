"""Values on their way to a replica and back."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import BadArgument, ServiceError
from taskapp_kit.services.encoding import decode, encode
from tests.services.actors import Point

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters())  # lone surrogates included
    | st.binary()
)
KEYS = st.text() | st.integers() | st.just("\0") | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.builds(Point, st.tuples(st.floats(allow_nan=False)), st.text())
    ),
    max_leaves=12,
)


@given(VALUES)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    found = decode(encode(value))
    assert found == value
    assert repr(found) == repr(value)  # 1 and True, 0.0 and -0.0 are equal


def test_what_is_not_a_number_comes_back() -> None:
    found = decode(encode([math.nan, math.inf, -math.inf]))
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]


def test_numpy_and_members_of_an_enumeration_become_plain_values() -> None:
    class Direction(str, Enum):
        LEFT = "left"

    assert decode(encode(Direction.LEFT)) == "left"
    numpy = pytest.importorskip("numpy")
    assert decode(encode({"reward": numpy.float32(0.5), "ids": numpy.arange(3)})) == {"reward": 0.5, "ids": [0, 1, 2]}


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (object(), "the top of a value"),
        ({"a": [1, {2}]}, "a[1]"),
        (Point((1.0,), name=object()), "name"),  # type: ignore[arg-type]
        (lambda: None, "the top of a value"),
    ],
)
def test_value_that_cannot_be_sent_is_named_with_its_location(value: Any, place: str) -> None:
    with pytest.raises(BadArgument) as raised:
        encode(value)
    assert place in raised.value.message


def test_a_value_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(BadArgument):
        encode(endless)


def test_an_answer_imports_nothing() -> None:
    data = encode(Point((1.0,))).replace(b"tests.services.actors", b"wsgiref.simple_server")
    with pytest.raises(ServiceError):
        decode(data)


def test_no_other_class_than_a_dataclass_is_made() -> None:
    data = encode(Point((1.0,))).replace(b"tests.services.actors", b"subprocess").replace(b"Point", b"Popen")
    with pytest.raises(ServiceError):
        decode(data, imports=True)
