from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from taskapp_kit.cli.output.app_output import members
from taskapp_kit.declare.signature import Arguments, Parameter


class Colour(Enum):
    red = "red"
    blue = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Literal[1, 2, 3], "1 | 2 | 3"),
        (Literal["a", "b"], "a | b"),
        (Colour, "red | blue"),
        (int, "integer"),
        (bool, "boolean"),
        (int | None, "integer | null"),
        (Annotated[int, Field(ge=1, le=9)], "integer 1 to 9"),
        (Annotated[float, Field(gt=0)], "number > 0"),
        (Annotated[list[Literal["a", "b"]], Field(min_length=1, max_length=8)], "list of 1 to 8 of (a | b)"),
        (Annotated[list[int], Field(max_length=8)], "list of at most 8 of integer"),
        (list[int], "list of integer"),
        (tuple[int, str], "[integer, text]"),
        (Point, "{x: integer, y: integer = 0}"),
        (Annotated[str, Field(pattern="^[a-z]$")], "text matching ^[a-z]$"),
        (Annotated[str, Field(max_length=5)], "text of at most 5 characters"),
    ],
)
def test_types_in_words(annotation: object, words: str) -> None:
    import inspect

    schema = Arguments("f", (Parameter("it", annotation, inspect.Parameter.empty),)).schema
    assert members(schema) == [("it", words)]


def test_a_default_is_told() -> None:
    assert members(Arguments("f", (Parameter("low", int, 5),)).schema) == [("low", "integer = 5")]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
@settings(max_examples=40)
def test_anything_from_a_server_gives_words(schema: object) -> None:
    ((_, words),) = members({"properties": {"it": schema}})
    assert isinstance(words, str)
