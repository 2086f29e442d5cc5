"""Values drawn from schemas are valid, by a validator that is not ours."""

from __future__ import annotations

import enum
import random
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from taskapp_kit.rollout.policy.sampling import draw, sentence

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
def test_whatever_the_schema_the_value_fits(schema: Any, seed: int) -> None:
    assert draw(schema, random.Random(seed)) == draw(schema, random.Random(seed))
    jsonschema_rs.validate(schema, draw(schema, random.Random(seed)), validate_formats=True)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Leaf(BaseModel, extra="forbid"):
    kind: Literal["leaf"]
    weight: Annotated[float, Field(gt=0, lt=1)]


class Tree(BaseModel, extra="forbid"):
    kind: Literal["tree"]
    colour: Colour
    code: Annotated[str, Field(pattern=r"^[A-Z]{2}\d{3}$")]
    children: list[Annotated[Tree | Leaf, Field(discriminator="kind")]]
    tags: Annotated[set[int], Field(min_length=1, max_length=3)]
    left: Tree | None = None
    place: tuple[int, str] = (0, "")
    notes: dict[str, bool] = {}


@pytest.mark.parametrize("seed", range(60))
def test_a_model_that_holds_itself_comes_to_an_end(seed: int) -> None:
    Tree.model_validate(draw(Tree.model_json_schema(), random.Random(seed)))


def test_references_that_only_refer_to_each_other_come_to_an_end() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    draw(schema, random.Random(0))


def test_a_value_that_would_never_end_is_told() -> None:
    with pytest.raises(ValueError, match="itself"):
        draw({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, random.Random(0))


def test_allof_is_taken_together() -> None:
    schema = {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 4}, "b": {"const": 1}}, "required": ["b"]},
        ]
    }
    for seed in range(30):
        jsonschema_rs.validate(schema, draw(schema, random.Random(seed)))


def test_all_choices_are_drawn() -> None:
    rng = random.Random(0)
    assert {draw({"enum": ["a", "b", "c"]}, rng) for _ in range(100)} == {"a", "b", "c"}  # type: ignore[misc]
    assert {draw({"type": "integer", "minimum": 1, "maximum": 3}, rng) for _ in range(100)} == {1, 2, 3}  # type: ignore[misc]


@pytest.mark.parametrize(
    "schema",
    [{"pattern": "^[A-Z]+$"}, {"pattern": "^\\d{3}$"}, {"pattern": "^[a-z]+-?[0-9]+$", "minLength": 3}],
)
def test_a_simple_pattern_is_matched(schema: dict[str, Any]) -> None:
    jsonschema_rs.validate(schema, draw(schema, random.Random(0)))


@pytest.mark.parametrize("pattern", ["^b{20}$", "(?<=x)y", "^a$", "["])
def test_for_a_pattern_that_is_not_matched_a_text_of_the_right_length_is_drawn(pattern: str) -> None:
    value = draw({"pattern": pattern, "minLength": 5, "maxLength": 9}, random.Random(0))
    assert isinstance(value, str) and 5 <= len(value) <= 9


def test_a_sentence_is_words() -> None:
    said = sentence(random.Random(3))
    assert said.endswith(".") and said[0].isupper() and len(said.split()) >= 3
