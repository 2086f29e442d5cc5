"""Draws from a JSON Schema: uniform ones, and ones of any schema, which another validator accepts."""

from __future__ import annotations

import collections
import enum
import random
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from taskapp_kit.declare.signature import Arguments, Parameter
from taskapp_kit.rollout.policy.sampling import Unbounded, compile_sampler
from taskapp_kit.rollout.policy.sampling import draw as draw_free


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    c: Colour
    n: int = Field(ge=0, le=1)


class Tree(BaseModel):
    children: list[Tree] = Field(max_length=2)


class Chain(BaseModel):
    next: Chain | None = None


def arguments_of(annotation: Any, default: Any = ...) -> Arguments:
    import inspect

    return Arguments("f", (Parameter("a", annotation, inspect.Parameter.empty if default is ... else default),))


def draws(annotation: Any, count: int = 600, default: Any = ...) -> list[Any]:
    arguments = arguments_of(annotation, default)
    draw, rng = compile_sampler(arguments.schema, "f"), random.Random(0)
    drawn = [draw(rng) for _ in range(count)]
    for value in drawn:
        arguments.read(value)  # whatever is drawn is taken
    return [value.get("a", "left out") for value in drawn]


def uniform(values: list[Any], choices: list[Any]) -> bool:
    """Pearson's χ² against the uniform law stays under a bound that one seed in 10⁴ would pass."""
    counts = collections.Counter(map(str, values))
    expected = len(values) / len(choices)
    chi = sum((counts[str(choice)] - expected) ** 2 / expected for choice in choices)
    degrees = len(choices) - 1
    return set(counts) == set(map(str, choices)) and chi < degrees + 4 * (2 * degrees) ** 0.5 + 6


@pytest.mark.parametrize(
    ("annotation", "choices"),
    [
        (Literal[1, 2, 3], [1, 2, 3]),
        (Literal["only"], ["only"]),
        (Colour, ["red", "blue"]),
        (bool, [True, False]),
        (Literal[1] | None, [1, None]),
        (Annotated[int, Field(ge=1, le=6)], [1, 2, 3, 4, 5, 6]),
        (Annotated[int, Field(gt=0, lt=4)], [1, 2, 3]),
        (Annotated[int, Field(ge=0, le=10, multiple_of=5)], [0, 5, 10]),
        (Annotated[list[Literal["x"]], Field(min_length=1, max_length=3)], [["x"], ["x"] * 2, ["x"] * 3]),
        (tuple[Literal[0], bool], [[0, True], [0, False]]),
        (Inner, [{"c": c, "n": n} for c in ("red", "blue") for n in (0, 1)]),
    ],
    ids=str,
)
def test_each_choice_is_equally_likely(annotation: Any, choices: list[Any]) -> None:
    assert uniform(draws(annotation, 200 * len(choices)), choices)


def test_numbers_and_sets() -> None:
    numbers = draws(Annotated[float, Field(ge=-1, le=3)])
    assert all(-1 <= number <= 3 for number in numbers)
    assert abs(sum(numbers) / len(numbers) - 1) < 0.2
    drawn = draws(Annotated[set[Literal[1, 2, 3]], Field(min_length=2, max_length=3)])
    assert {len(set(item)) for item in drawn} == {2, 3}
    assert all(len(item) == len(set(item)) for item in drawn)


def test_optional_field_is_drawn_only_if_it_has_bounds() -> None:
    assert set(draws(str, 5, default="x")) == {"left out"}
    assert set(draws(str | None, 5, default=None)) == {"left out"}
    assert set(draws(Literal[1, 2], 50, default=1)) == {1, 2}


@pytest.mark.parametrize(
    ("annotation", "field"),
    [
        (str, r"f\.a \(string\)"),
        (int, r"f\.a \(integer\) .*minimum"),
        (Annotated[int, Field(ge=0)], r"f\.a \(integer\)"),
        (Annotated[int, Field(ge=0, le=2**63)], r"f\.a \(integer\)"),
        (Annotated[int, Field(ge=1, le=9, multiple_of=20)], r"f\.a \(integer\) .*between"),
        (float, r"f\.a \(number\)"),
        (list[Literal[1]], r"f\.a \(list\) .*length"),
        (Annotated[list[str], Field(max_length=2)], r"f\.a\[\] \(string\)"),
        (dict[str, int], r"f\.a \(object\)"),
        (Any, r"f\.a \(any JSON\)"),
        (Tree, r"Tree\)"),
        (int | Literal["x"], r"f\.a \(integer\)"),
    ],
    ids=str,
)
def test_a_field_without_bounds_is_named(annotation: Any, field: str) -> None:
    with pytest.raises(Unbounded, match=field):
        compile_sampler(arguments_of(annotation).schema, "f")


def test_a_chain_that_may_end_is_cut_at_its_optional_link() -> None:
    assert draws(Chain, 3) == [{}, {}, {}]


@given(st.integers(0, 2**32))
def test_a_draw_is_a_function_of_its_stream(seed: int) -> None:
    draw = compile_sampler(arguments_of(Annotated[list[Inner], Field(max_length=3)]).schema)
    assert draw(random.Random(seed)) == draw(random.Random(seed))


# -- any schema -------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "long name"])


def numbers(kind: str, values: Any) -> Any:
    def of(pair: tuple[Any, Any], exclusive: bool, sides: str) -> dict[str, Any]:
        low, high = min(pair), max(pair) + 2
        schema: dict[str, Any] = {"type": kind}
        if "low" in sides:
            schema["exclusiveMinimum" if exclusive else "minimum"] = low
        if "high" in sides:
            schema["exclusiveMaximum" if exclusive else "maximum"] = high
        return schema

    return st.builds(of, st.tuples(values, values), st.booleans(), st.sampled_from(["", "low", "high", "low high"]))


def text(low: int, more: int | None) -> dict[str, Any]:
    return {"type": "string", "minLength": low} | ({} if more is None else {"maxLength": low + more})


LEAVES = st.one_of(
    numbers("integer", st.integers(-1000, 1000)),
    numbers("number", st.integers(-1000, 1000)),
    st.builds(
        lambda step, low: {"type": "integer", "multipleOf": step, "minimum": low},
        st.integers(1, 9),
        st.integers(-50, 50),
    ),
    st.builds(text, st.integers(0, 40), st.none() | st.integers(0, 9)),
    st.sampled_from(["date", "date-time", "email", "ipv4", "ipv6", "uuid", "uri", "hostname", "time"]).map(
        lambda form: {"type": "string", "format": form}
    ),
    st.lists(st.integers() | st.text(max_size=5) | st.booleans() | st.none(), min_size=1, max_size=5).map(
        lambda choices: {"enum": choices}
    ),
    st.sampled_from(
        [{"type": "boolean"}, {"type": "null"}, {"const": [1, {"a": None}]}, {}, True, {"type": ["integer", "null"]}]
    ),
)


def nested(inner: Any) -> Any:
    def array(item: Any, low: int, more: int | None) -> dict[str, Any]:
        return {"type": "array", "items": item, "minItems": low} | ({} if more is None else {"maxItems": low + more})

    def fields(properties: dict[str, Any], required: set[str], closed: bool) -> dict[str, Any]:
        named = {"type": "object", "properties": properties, "required": sorted(required & properties.keys())}
        return {**named, "additionalProperties": False} if closed else named

    return st.one_of(
        st.builds(array, inner, st.integers(0, 3), st.none() | st.integers(0, 3)),
        st.builds(fields, st.dictionaries(NAMES, inner, max_size=4), st.sets(NAMES), st.booleans()),
        st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches}),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda first: {"type": "array", "prefixItems": first, "items": False}
        ),
        st.builds(lambda values: {"type": "object", "additionalProperties": values, "minProperties": 2}, inner),
    )


@given(st.recursive(LEAVES, nested, max_leaves=8), st.integers(0, 2**32))
def test_drawn_value_matches_any_schema(schema: Any, seed: int) -> None:
    assert draw_free(schema, random.Random(seed)) == draw_free(schema, random.Random(seed))
    jsonschema_rs.validate(schema, draw_free(schema, random.Random(seed)), validate_formats=True)


class Leaf(BaseModel, extra="forbid"):
    kind: Literal["leaf"]
    weight: Annotated[float, Field(gt=0, lt=1)]


class Branch(BaseModel, extra="forbid"):
    kind: Literal["tree"]
    colour: Colour
    code: Annotated[str, Field(pattern=r"^[A-Z]{2}\d{3}$")]
    children: list[Annotated[Branch | Leaf, Field(discriminator="kind")]]
    tags: Annotated[set[int], Field(min_length=1, max_length=3)]
    left: Branch | None = None
    place: tuple[int, str] = (0, "")
    notes: dict[str, bool] = {}


@pytest.mark.parametrize("seed", range(60))
def test_recursive_schema_terminates(seed: int) -> None:
    Branch.model_validate(draw_free(Branch.model_json_schema(), random.Random(seed)))


def test_references_that_only_refer_to_each_other_come_to_an_end() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    draw_free(schema, random.Random(0))


def test_endless_value_raises() -> None:
    with pytest.raises(ValueError, match="itself"):
        draw_free({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, random.Random(0))


def test_allof_is_taken_together() -> None:
    schema = {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 4}, "b": {"const": 1}}, "required": ["b"]},
        ]
    }
    for seed in range(30):
        jsonschema_rs.validate(schema, draw_free(schema, random.Random(seed)))


@pytest.mark.parametrize(
    "schema", [{"pattern": "^[A-Z]+$"}, {"pattern": "^\\d{3}$"}, {"pattern": "^[a-z]+-?[0-9]+$", "minLength": 3}]
)
def test_a_simple_pattern_is_matched(schema: dict[str, Any]) -> None:
    jsonschema_rs.validate(schema, draw_free(schema, random.Random(0)))


@pytest.mark.parametrize("pattern", ["^b{20}$", "(?<=x)y", "^a$", "["])
def test_for_a_pattern_that_is_not_matched_a_text_of_the_right_length_is_drawn(pattern: str) -> None:
    value = draw_free({"pattern": pattern, "minLength": 5, "maxLength": 9}, random.Random(0))
    assert isinstance(value, str) and 5 <= len(value) <= 9
