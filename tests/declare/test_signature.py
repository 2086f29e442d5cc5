"""A signature as JSON Schema, and arguments read leniently but never falsely."""

from __future__ import annotations

import dataclasses
import enum
import random
from typing import Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from taskapp_kit.declare.signature import (
    Arguments,
    BadArguments,
    SignatureProblem,
    is_object,
    parameters_of,
)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(BaseModel):
    x: int
    y: int = Field(0, ge=0, le=9)


class Named(BaseModel):
    colour: str = Field(alias="color")
    count: int = Field(1, description="How many.")


@dataclasses.dataclass
class Pair:
    left: int
    right: int = 0


class Typed(TypedDict):
    n: int


def read(annotation: Any, value: Any, default: Any = ...) -> tuple[Any, int]:
    """What an argument of this type is read as, and how many conversions it took."""

    def function(self: Any, a: Any) -> None: ...

    function.__annotations__["a"] = annotation
    if default is not ...:
        function.__defaults__ = (default,)
    arguments, coerced = Arguments("f", tuple(parameters_of(function, skip_first=True))).read({"a": value})
    return arguments["a"], coerced


READ = [
    (int, 2, 2, 0),
    (int, "2", 2, 1),
    (int, " 2 ", 2, 1),
    (int, 2.0, 2, 1),
    (float, 2, 2.0, 0),
    (float, "0.5", 0.5, 1),
    (str, "a", "a", 0),
    (str, 7, "7", 1),
    (bool, True, True, 0),
    (bool, "true", True, 1),
    (bool, 1, True, 1),
    (Literal[1, 2, 3], 2, 2, 0),
    (Literal[1, 2, 3], "2", 2, 1),
    (Literal["1", "2"], 2, "2", 1),
    (Literal["a b", "c, d"], "c, d", "c, d", 0),
    (Literal[True], True, True, 0),
    (list[Literal[1, 2]], ["1", 2, "2", "1"], [1, 2, 2, 1], 3),
    (Literal[1, 2] | None, "2", 2, 1),
    (int | None, None, None, 0),
    (Colour, "red", Colour.RED, 0),
    (Level, 2, Level.HIGH, 0),
    (Level, "2", Level.HIGH, 1),
    (int | str, 3, 3, 0),
    (int | str, "3", "3", 0),
    (int | bool, True, True, 0),
    (Point, {"x": "1", "y": 2}, Point(x=1, y=2), 1),
    (list[Point], [{"x": 1}, {"x": "2"}], [Point(x=1), Point(x=2)], 1),
    (Pair, {"left": "1"}, Pair(1), 1),
    (Typed, {"n": "1"}, {"n": 1}, 1),
    (Named, {"color": "red", "count": "2"}, Named(color="red", count=2), 1),
    (tuple[int, str], [1, "a"], (1, "a"), 0),
    (set[int], ["1", 2], {1, 2}, 0),
    (dict[str, int], {"a": "1"}, {"a": 1}, 1),
    (dict[int, int], {"1": 2}, {1: 2}, 0),
    (Annotated[str, Field(pattern="^[a-z]{3}$")], "abc", "abc", 0),
    (Annotated[list[int], Field(min_length=1, max_length=2)], [1], [1], 0),
    (Any, {"free": [True]}, {"free": [True]}, 0),
]


@pytest.mark.parametrize(("annotation", "value", "expected", "coerced"), READ, ids=lambda item: str(item)[:40])
def test_an_argument_is_read_and_conversions_are_counted(
    annotation: Any, value: Any, expected: Any, coerced: int
) -> None:
    got, count = read(annotation, value)
    assert got == expected
    assert type(got) is type(expected)
    assert count == coerced


REFUSED = [
    (int, True, "expected a number, got a boolean"),
    (float, False, "expected a number, got a boolean"),
    (Literal[1, 2], True, "boolean"),
    (Level, True, "boolean"),
    (int | str, True, "boolean"),
    (str, True, "string"),
    (list[int], [1, True], "a.1: expected a number, got a boolean"),
    (set[int], [True], "a.0: expected a number, got a boolean"),
    (dict[int, int], {"1": True}, "a.1: expected a number, got a boolean"),
    (Point, {"x": True}, "a.x: expected a number, got a boolean"),
    (Named, {"color": "red", "count": True}, "a.count: expected a number, got a boolean"),
    (Pair, {"left": False}, "a.left: expected a number, got a boolean"),
    (int, 2.5, "fractional part"),
    (int, "two", "valid integer"),
    (int, None, "valid integer"),
    (Literal[1, 2], "3", "input should be 1 or 2"),
    (Literal[1, 2], 3, "input should be 1 or 2"),
    (Colour, "green", "'red' or 'blue'"),
    (Annotated[str, Field(pattern="^[a-z]{3}$")], "abcd", "pattern"),
    (Annotated[list[int], Field(max_length=2)], [1, 2, 3], "at most 2"),
    (Annotated[int, Field(ge=1)], "0", "greater than or equal to 1"),
    (Point, {"y": 1}, "a.x: is missing"),
]


@pytest.mark.parametrize(("annotation", "value", "sentence"), REFUSED, ids=lambda item: str(item)[:40])
def test_invalid_argument_raises_with_its_name(annotation: Any, value: Any, sentence: str) -> None:
    with pytest.raises(BadArguments) as caught:
        read(annotation, value)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("a")
    assert all(path[0] == "a" for path, _ in caught.value.fields)


SHADOWS = (
    "copy json schema dict model_config model_fields model_dump construct validate _hidden fields register class_ a0 "
    "given name"
)


@pytest.mark.parametrize("name", SHADOWS.split())
def test_a_parameter_may_have_any_name(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def f(self, {name}: int, {name}_too: int = 2): ...", namespace)
    arguments = Arguments("f", tuple(parameters_of(namespace["f"], skip_first=True)))
    assert list(arguments.schema["properties"]) == [name, f"{name}_too"]
    assert arguments.read({name: "1"}) == ({name: 1, f"{name}_too": 2}, 1)
    with pytest.raises(BadArguments, match=f"^{name}: "):
        arguments.read({})
    with pytest.raises(BadArguments, match="^other: "):
        arguments.read({name: 1, "other": 1})


def of(function: Any) -> Arguments:
    return Arguments(function.__name__, tuple(parameters_of(function, skip_first=False)))


def test_the_schema_is_an_object_without_titles_with_bounds_and_defaults() -> None:
    def act(
        n: Annotated[int, Field(ge=1, le=3, description="How far.")], title: str = "x", c: Colour = Colour.RED
    ) -> None: ...

    assert of(act).schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["n"],
        "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 3, "description": "How far."},
            "title": {"type": "string", "default": "x"},
            "c": {"$ref": "#/$defs/Colour", "default": "red"},
        },
        "$defs": {"Colour": {"enum": ["red", "blue"], "type": "string"}},
    }


def test_a_field_as_a_default_is_understood_as_pydantics_users_write_it() -> None:
    def act(n: int = Field(2, ge=1, le=3), m: int = Field(ge=5)) -> None: ...

    assert of(act).schema["required"] == ["m"]
    assert of(act).read({"m": 5}) == ({"n": 2, "m": 5}, 0)
    with pytest.raises(BadArguments, match=r"^n: .*\b3\b"):
        of(act).read({"n": 4, "m": 5})


def test_mutable_default_is_not_shared_between_calls() -> None:
    def act(words: list[str] = []) -> None: ...  # noqa: B006

    arguments = of(act)
    arguments.read({})[0]["words"].append("x")
    assert arguments.read({})[0] == {"words": []}


def test_no_parameters_take_the_empty_object_only() -> None:
    def act() -> None: ...

    assert of(act).read({}) == ({}, 0)
    with pytest.raises(BadArguments, match="^x: "):
        of(act).read({"x": 1})
    for wrong in (None, [], "x", 3):
        with pytest.raises(BadArguments, match="^arguments: .*object"):
            of(act).read(wrong)


@pytest.mark.parametrize(
    ("kind", "given_", "expected"),
    [
        (Point, {"x": "1"}, Point(x=1)),
        (Named, {"color": "red"}, Named(color="red")),
        (Pair, {"left": 1, "right": 2}, Pair(1, 2)),
        (Typed, {"n": 4}, {"n": 4}),
        (dict[str, int], {"a": 1}, {"a": 1}),
    ],
)
def test_an_object_is_the_arguments_as_a_whole(kind: Any, given_: Any, expected: Any) -> None:
    def step(action: Any) -> None: ...

    step.__annotations__["action"] = kind
    arguments = Arguments("step", tuple(parameters_of(step, skip_first=False)), whole=True)
    assert is_object(kind)
    assert arguments.schema["type"] == "object"
    assert arguments.read(given_)[0] == {"action": expected}


def test_whole_model_keeps_descriptions_validators_and_rejects_extra_members() -> None:
    class Move(BaseModel):
        a: int = Field(description="First.")
        b: int = 0

        @pydantic.model_validator(mode="after")
        def ordered(self) -> Move:
            if self.b > self.a:
                raise ValueError("b is greater than a")
            return self

    def step(action: Any) -> None: ...

    step.__annotations__["action"] = Move
    arguments = Arguments("step", tuple(parameters_of(step, skip_first=False)), whole=True)
    assert arguments.schema["properties"]["a"]["description"] == "First."
    assert arguments.schema["additionalProperties"] is False
    with pytest.raises(BadArguments, match="b is greater than a"):
        arguments.read({"a": 1, "b": 2})
    with pytest.raises(BadArguments, match="^zz: "):
        arguments.read({"a": 1, "zz": 2})
    with pytest.raises(BadArguments, match="^a: .*number.*boolean"):
        arguments.read({"a": True})


@pytest.mark.parametrize(
    "kind", [int, str, list[int], Literal[1], Point | None, Point | Pair, Annotated[int, Field(ge=1)]]
)
def test_types_that_are_not_objects(kind: Any) -> None:
    assert not is_object(kind)


@pytest.mark.parametrize("kind", [random.Random, type("Own", (), {}), "int |", "Nowhere"])
def test_type_that_json_cannot_represent_is_a_signature_problem(kind: Any) -> None:
    def act(self: Any, a: Any) -> None: ...

    act.__annotations__["a"] = kind
    with pytest.raises(SignatureProblem):
        _ = Arguments("act", tuple(parameters_of(act, skip_first=True))).schema


@given(st.lists(st.integers(-5, 5).flatmap(lambda n: st.sampled_from([n, str(n), float(n)])), max_size=6))
def test_numbers_mean_the_same_however_they_are_written(values: list[Any]) -> None:
    got, count = read(list[int], values)
    assert got == [int(float(value)) for value in values]
    assert count == sum(type(value) is not int for value in values)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_either_read_or_rejected(value: Any) -> None:
    def act(
        self: Any, n: int, c: Colour, p: Point, u: int | list[str] = 0, d: dict[int, float] | None = None
    ) -> None: ...

    arguments = Arguments("act", tuple(parameters_of(act, skip_first=True)))
    base = {"n": 1, "c": "red", "p": {"x": 1}}
    for given_ in (value, {**base, "n": value}, {**base, "u": value}, {**base, "d": value}, {**base, "p": value}):
        try:
            result, count = arguments.read(given_)
        except BadArguments as error:
            assert str(error)
        else:
            assert type(result["n"]) is int
            assert count >= 0
