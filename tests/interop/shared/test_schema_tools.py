"""Tools that come as JSON Schema: what fits the schema arrives unchanged, and nothing is shown that the schema does not say."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskapp_kit import Image, Text
from taskapp_kit.declare.check_actions import check_actions
from taskapp_kit.declare.declarations import Problems
from taskapp_kit.interop.chat_content import UnknownContent, observation_of
from taskapp_kit.interop.class_parts import ClassParts
from taskapp_kit.interop.schema_tools import resolved, tool_method
from taskapp_kit.rollout.policy.sampling import compile_sampler
from tests.serve.running_server import PNG

LEAVES = st.one_of(
    st.builds(lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
              st.integers(-9, 9), st.integers(0, 9)),
    st.builds(lambda low: {"type": "number", "minimum": low, "maximum": low + 1.5}, st.integers(-9, 9)),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"const": "go"}, {"$ref": "#/$defs/Way"}]),
    st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=4, unique_by=repr).map(
        lambda values: {"enum": values}
    ),
)  # fmt: skip
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda item, high: {"type": "array", "items": item, "maxItems": high}, inner, st.integers(0, 3)),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
        st.dictionaries(st.sampled_from(["title", "x", "y"]), inner, min_size=1).map(
            lambda members: {"type": "object", "properties": members, "required": list(members)}
        ),
    ),
    max_leaves=6,
)
WAY = {"type": "string", "enum": ["left", "right"], "title": "Way"}


def spec_of(schema: dict[str, Any], received: list[dict[str, Any]]) -> tuple[Any, type]:
    parts = ClassParts("from_there", "there", sys._getframe())
    method = tool_method(parts, "go", "Go.", schema, lambda environment, arguments: received.append(arguments))
    made = type("Made", (), {"act": method})
    problems = Problems()
    spec = check_actions(made, "here:1", problems)["go"]
    assert not problems
    return spec, made


@settings(max_examples=100)  # each makes a pydantic model
@given(st.dictionaries(st.sampled_from(["title", "here", "there"]), SCHEMAS, min_size=1), st.integers(0, 99))
def test_valid_arguments_arrive_unchanged(members: dict[str, Any], seed: int) -> None:
    schema = {"type": "object", "properties": members, "required": list(members), "$defs": {"Way": WAY}}
    received: list[dict[str, Any]] = []
    spec, made = spec_of(schema, received)
    drawn = compile_sampler(schema)(random.Random(seed))
    arguments, _ = spec.arguments.read(drawn)
    getattr(made(), spec.method)(**arguments)
    assert received == [drawn]
    shown = {name: resolved(member, schema) for name, member in members.items()}
    assert spec.tool.parameters["properties"] == shown
    assert "$ref" not in repr(spec.tool.parameters)


def test_absent_argument_stays_absent_without_a_default() -> None:
    received: list[dict[str, Any]] = []
    schema = {"properties": {"a": {"type": "integer"}, "b": {"type": ["integer", "null"], "default": 3}, "c": {}}}
    spec, made = spec_of(schema, received)
    for given_, expected in (
        ({}, {"b": 3}),
        ({"a": "4", "b": None}, {"a": 4, "b": None}),
        ({"c": [1]}, {"b": 3, "c": [1]}),
    ):
        arguments, _ = spec.arguments.read(given_)
        getattr(made(), spec.method)(**arguments)
        assert received.pop() == expected


def test_messages_become_an_observation() -> None:
    assert observation_of([{"role": "system", "content": "rules"}, {"role": "user", "content": "go"}]) == "rules\n\ngo"
    shown = observation_of([{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}])
    assert shown == "[user] 1\n\n[assistant] 2"
    address = Image(PNG).data_url()
    picture = {"role": "user", "content": [{"type": "text", "text": "see"}, {"image_url": {"url": address}}]}
    text, image = observation_of([picture])
    assert isinstance(text, Text) and isinstance(image, Image) and (text.text, image.png) == ("see", PNG)
    with pytest.raises(UnknownContent, match="input_audio"):
        observation_of([{"role": "user", "content": [{"type": "input_audio"}]}])
