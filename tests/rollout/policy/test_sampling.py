"""Uniform draws from a JSON Schema."""

from __future__ import annotations

import collections
import enum
import random
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from taskapp_kit.declare.signature import Arguments, Parameter
from taskapp_kit.rollout.policy.sampling import Unbounded, compile_sampler


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


def test_an_optional_field_without_bounds_is_left_out_and_one_with_bounds_is_drawn() -> None:
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
