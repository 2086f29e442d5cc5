"""The gate through which an author's values become recorded data."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import math
import re
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel

from taskapp_kit.records.content import (
    MAX_DEPTH,
    Image,
    NotJson,
    Text,
    content,
    images,
    plain,
    text_of,
    without_images,
)


class Suit(enum.Enum):
    HEART = "heart"
    NONE = None
    PAIR = (1, 2)


class Word(str, enum.Enum):
    A = "a"


class Rank(enum.IntEnum):
    ONE = 1


class Own(str):
    pass


class Board(BaseModel):
    cells: list[int] = [1]
    when: datetime.date = datetime.date(2024, 1, 2)


class Odd(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    thing: object = dataclasses.field(default_factory=object)


@dataclasses.dataclass
class Place:
    x: int
    y: Any = None


class Pair(collections.namedtuple("Pair", "a b")):
    pass


PLAIN: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (3, 3),
    (0.5, 0.5),
    ("é", "é"),
    ((1, "a"), [1, "a"]),
    (Own("x"), "x"),
    (np.float32(0.5), 0.5),
    (np.float64(0.5), 0.5),
    (np.int64(3), 3),
    (np.bool_(True), True),
    (np.str_("x"), "x"),
    (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
    (np.array(7), 7),
    (np.array(["a"]), ["a"]),
    (Suit.HEART, "heart"),
    (Suit.NONE, None),
    (Suit.PAIR, [1, 2]),
    (Word.A, "a"),
    (Rank.ONE, 1),
    (Board(), {"cells": [1], "when": "2024-01-02"}),
    (RootModel[list[int]]([1]), [1]),
    (Place(1, Place(2)), {"x": 1, "y": {"x": 2, "y": None}}),
    (Pair(1, 2), [1, 2]),
    ({1: "a", True: "b"} if False else {1: "a"}, {"1": "a"}),
    ({True: 1}, {"true": 1}),
    ({Word.A: 1}, {"a": 1}),
    ({Own("k"): 1}, {"k": 1}),
    (MappingProxyType({"a": 1}), {"a": 1}),
    (collections.OrderedDict(a=1), {"a": 1}),
    ({"a": [{"b": (np.int8(1),)}]}, {"a": [{"b": [1]}]}),
]


@pytest.mark.parametrize(("value", "expected"), PLAIN, ids=lambda item: repr(item)[:40])
def test_what_becomes_json(value: Any, expected: Any) -> None:
    got = plain(value, "v")
    assert got == expected
    assert orjson.loads(orjson.dumps(got)) == expected
    assert exact(got)


def exact(value: Any) -> bool:
    """Nothing but plain Python types."""
    if isinstance(value, dict):
        return type(value) is dict and all(type(key) is str and exact(item) for key, item in value.items())
    if isinstance(value, list):
        return type(value) is list and all(map(exact, value))
    return value is None or type(value) in (str, int, float, bool)


HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)

REFUSED: list[tuple[Any, str]] = [
    (math.nan, "v is nan"),
    (math.inf, "v is inf"),
    (-math.inf, "v is -inf"),
    (np.float32("nan"), "v is nan"),
    (np.array([1.0, np.inf]), "v[1] is inf"),
    ({"a": [1, {"b": math.nan}]}, "v.a[1].b is nan"),
    (2**63, "beyond 64 bits"),
    (-(2**63) - 1, "beyond 64 bits"),
    ([2**64], "v[0] is an integer beyond 64 bits"),
    ("\ud800", "lone surrogate"),
    ({"\ud800": 1}, "lone surrogate"),
    ({"a": "\udfff"}, "v.a holds a lone surrogate"),
    ({1, 2}, "v is of type set"),
    (frozenset(), "frozenset"),
    (b"x", "bytes"),
    (bytearray(b"x"), "bytearray"),
    (object(), "v is of type object"),
    (1j, "complex"),
    (decimal.Decimal(1), "Decimal"),
    (datetime.date(2024, 1, 1), "date"),
    (lambda: 1, "function"),
    (Board, "the class Board itself"),
    (Place, "the class Place itself"),
    (Suit, "the class Suit itself"),
    (Odd(thing=object()), "is a Odd that pydantic cannot serialize"),
    ({(1, 2): 3}, "keys must be str"),
    ({None: 1}, "keys must be str"),
    ({1: "a", "1": "b"}, "two keys that are both '1'"),
    (HOLDS_ITSELF, "nested more than"),
    ((i for i in "ab"), "generator"),
    (Image(b"\x89PNG\r\n\x1a\n" + b"\0" * 24), "Image"),
    (RootModel[float](math.nan), "nan"),
]


@pytest.mark.parametrize(("value", "words"), REFUSED, ids=lambda item: re.sub(r" at 0x.*", "", repr(item)[:40]))
def test_invalid_value_is_rejected_with_its_path(value: Any, words: str) -> None:
    with pytest.raises(NotJson) as caught:
        plain(value, "v")
    assert words in str(caught.value)
    assert caught.value.path.startswith("v")


def test_the_depth_is_bounded() -> None:
    def nested(depth: int) -> Any:
        value: Any = "x"
        for _ in range(depth):
            value = [value]
        return value

    assert plain(nested(MAX_DEPTH), "v") == nested(MAX_DEPTH)
    with pytest.raises(NotJson, match=r"\b64\b"):
        plain(nested(MAX_DEPTH + 1), "v")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_json_passes_unchanged_and_as_a_copy(value: Any) -> None:
    got = plain(value, "v")
    assert got == value
    assert orjson.dumps(got, option=orjson.OPT_SORT_KEYS) == orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if isinstance(value, (list, dict)):
        assert got is not value


def test_the_copy_does_not_follow_the_authors_object() -> None:
    board = {"rows": [[0, 0]]}
    seen = content(board)
    board["rows"][0][0] = 9
    assert seen == {"rows": [[0, 0]]}


RED = np.zeros((2, 3, 3), np.uint8)


def test_observations() -> None:
    assert content("x") == "x"
    assert content(None) is None
    assert content(Text("x")) == "x"
    assert content(Word.A) == "a"
    assert content(Board()) == {"cells": [1], "when": "2024-01-02"}
    assert content(Place(1)) == {"x": 1, "y": None}
    picture = Image(RED)
    assert content(picture) == [picture]
    assert content([Text("a"), picture, "b"]) == ["a", picture, "b"]
    assert content((Text("a"), picture)) == ["a", picture]
    assert list(images(content([Text("a"), picture]))) == [picture]
    assert not list(images("x"))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1, 2], "is a list; an observation must be"),
        (["a", "b"], "is a list; an observation must be"),
        ([], "is a list"),
        (np.zeros(3), "is a ndarray"),
        (7, "is a int"),
        (True, "is a bool"),
        (("obs", 1.0, True, {}), "is a tuple"),
        ([Text("a"), 3], "observation[1] is a int"),
        ([Image(RED), Text("\ud800")], "observation[1].text holds a lone surrogate"),
        ({"picture": Image(RED)}, "observation.picture is of type taskapp_kit.records.content.Image"),
        ({"x": math.nan}, "observation.x is nan"),
    ],
    ids=lambda item: repr(item)[:30],
)
def test_invalid_observation_is_rejected(value: Any, words: str) -> None:
    with pytest.raises(NotJson) as caught:
        content(value)
    assert words in str(caught.value)


def test_the_words_of_an_observation() -> None:
    picture = Image(RED)
    assert text_of("x") == "x"
    assert text_of(None) == ""
    assert text_of(["a", picture, "b"]) == "a\nb"
    assert text_of({"é": [1, 2]}) == '{"é": [1, 2]}'
    assert without_images(["a", picture]) == without_images("a") == "a"
    assert without_images([picture]) == []
    assert without_images(["a", "b"]) == ["a", "b"]


def test_an_image_is_encoded_late_and_keeps_what_was_drawn() -> None:
    from PIL import Image as Pillow

    frame = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    picture = Image(frame)
    expected = frame.copy()
    frame[:] = 0
    assert (picture.width, picture.height) == (5, 4)
    import io

    decoded = np.asarray(Pillow.open(io.BytesIO(picture.png)))
    assert (decoded == expected).all()
    assert Image(picture.png).hash == picture.hash
    assert (Image(picture.png).width, Image(picture.png).height) == (5, 4)
    assert picture.data_url().startswith("data:image/png;base64,iVBOR")
    assert repr(picture) == "Image(5x4)"


@pytest.mark.parametrize(
    "data",
    [
        b"GIF89a",
        b"\x89PNG\r\n\x1a\n",
        "x",
        None,
        3,
        np.zeros((2, 2), np.uint8),
        np.zeros((2, 2, 4), np.uint8),
        np.zeros((2, 2, 3)),
    ],
    ids=lambda item: repr(item)[:20],
)
def test_invalid_image_data_is_rejected(data: Any) -> None:
    with pytest.raises(ValueError, match="Image: "):
        Image(data)
