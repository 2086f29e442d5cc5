"""The mock model without its wire: whatever a client sends, it gets an answer or a refusal that says why."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.testing.mock_model.connection import ReceivedRequest, WritePlan
from taskapp_kit.testing.mock_model.responder import Responder

from .conversation import ADD, STOP, body

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
WHOLE = body(
    {"role": "system", "content": "rules"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
    },
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm", "refusal": None},
    {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    tools=[ADD, STOP],
    tool_choice={"type": "function", "function": {"name": "add"}},
    response_format={
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {}}}},
    },
    stream=True,
    stream_options={"include_usage": True},
    logprobs=True,
    top_logprobs=2,
    return_token_ids=True,
    n=1,
    max_tokens=100,
    temperature=1,
    seed=3,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "name", "text", "minLength", "$ref"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """The value with something else at one place."""
    if not place:
        return new
    value = copy.deepcopy(value)
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = new
    return value


def status_of(sent: Any, answering: Responder) -> int:
    arrived = ReceivedRequest("POST", b"/v1/chat/completions", [(b"host", b"x")], orjson.dumps(sent))
    plan = answering.handle(arrived)
    assert isinstance(plan, WritePlan)
    first = plan.parts[0][1]
    assert first.startswith(b"HTTP/1.1 %d " % plan.status)
    return plan.status


@given(st.sampled_from(places(WHOLE)), JSON, st.booleans())
def test_whatever_is_sent_is_answered_or_refused(place: tuple[Any, ...], new: Any, tools: bool) -> None:
    answering = Responder()
    sent = changed(WHOLE, place, new)
    if not tools and isinstance(sent, dict):
        sent = {key: value for key, value in sent.items() if key not in ("tools", "tool_choice")}
    assert status_of(sent, answering) in (200, 400)
    assert answering.records.script_errors == 0


@pytest.mark.parametrize("required", [[None], [[]], [1], "name", 5, None])
def test_a_schema_may_require_nonsense(required: Any) -> None:
    answering = Responder()
    sent = changed(WHOLE, ("tools", 0, "function", "parameters", "required"), required)
    assert status_of(sent, answering) in (200, 400)
    assert answering.records.script_errors == 0


def test_the_whole_request_is_answered() -> None:
    assert status_of(WHOLE, Responder()) == 200


def test_how_often_a_conversation_came_is_remembered_within_bounds() -> None:
    answering = Responder(remembered=10)
    for said in ["first", *(f"q{i}" for i in range(10)), "first", "first", "q9"]:
        status_of(body(said), answering)
    assert [one.attempt for one in answering.records.recorded][-3:] == [0, 1, 1]
