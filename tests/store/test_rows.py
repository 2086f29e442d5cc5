"""A rollout and its row: equal, or refused by name."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import StoreError, StoreRefusal
from taskapp_kit.records.content import MAX_DEPTH, NotJson, content
from taskapp_kit.records.events import Called, Observed, Started, Stepped, encode, from_json
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.records.trajectory import PlayedStep
from taskapp_kit.store.rows import COLUMNS, from_row, to_row
from taskapp_kit.store.schema import COMPRESS_ABOVE_BYTES
from tests.store.stored_samples import any_rollout, episode, finite, json_values, nested, pictured, png, rollout, words


def exactly(value: Any) -> Any:
    """Something that is equal only for equal types, digits, signs of zero and order of keys."""
    if isinstance(value, dict):
        return [(key, exactly(item)) for key, item in value.items()]
    return [exactly(item) for item in value] if isinstance(value, list) else (type(value), repr(value))


@given(any_rollout("r1"))
def test_accepted_rollout_is_read_back_equal(made: StoredRollout) -> None:
    back = from_row(to_row(made).values)
    assert back == replace(made, blobs={})
    for name in ("config", "private", "events", "scorecard", "failure"):
        assert exactly(getattr(back, name)) == exactly(getattr(made, name))


faults = st.sampled_from(
    [
        float("nan"), float("inf"), 2**64, -(2**63) - 1, "a\ud800b", {"\udfff": 1}, {1: 2}, (1, 2), {1, 2}, b"bytes",
        OrderedDict(a=1), nested(300),
    ]
)  # fmt: skip


@given(faults, st.lists(json_values, max_size=3), st.sampled_from(["config", "private", "events", "scorecard"]))
def test_value_that_is_not_json_is_rejected_by_name(fault: Any, before: list[Any], name: str) -> None:
    held: Any = {"deep": {"list": [*before, fault]}}
    with pytest.raises(StoreRefusal, match=name):
        to_row(rollout(**{name: [held] if name == "events" else held}))


def test_an_object_that_holds_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["me"] = loop
    with pytest.raises(StoreRefusal, match="config"):
        to_row(rollout(config=loop))


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reward": float("nan")}, "reward is nan"),
        ({"total_reward": float("-inf")}, "total_reward is -inf"),
        ({"total_reward": None}, "total_reward is NoneType"),
        ({"outcome_score": 2**53 + 1}, "outcome_score is an integer that a float cannot represent"),
        ({"seed": 2**63}, "seed is an integer beyond 64 bits"),
        ({"seed": True}, "seed is bool"),
        ({"length": 1.0}, "length is float"),
        ({"run_id": "\ud800"}, "run_id contains a lone surrogate"),
        ({"environment": None}, "environment is NoneType"),
        ({"rollout_id": ""}, "rollout_id is empty"),
        ({"schema_version": 2}, "schema_version is 2"),
        ({"events": ()}, "events is tuple"),
        ({"config": []}, "config is list"),
        ({"config": {"colour": Colour.RED}}, "config"),
        ({"blobs": {"0" * 64: b"x"}}, "does not match its bytes"),
        ({"blobs": {hashlib.sha256(b"x").hexdigest(): bytearray(b"x")}}, "but must be bytes"),
    ],
)
def test_field_of_the_wrong_type_is_rejected_by_name(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StoreRefusal) as refused:
        to_row(rollout(**changes))
    assert sentence in str(refused.value)


def test_only_long_events_are_compressed_and_the_row_says_so() -> None:
    def column(made: StoredRollout, name: str) -> Any:
        return to_row(made).values[COLUMNS.index(name)]

    short, long = rollout(events=episode(2)), rollout(events=episode(100))
    assert column(short, "events_encoding") == "json"
    assert orjson.loads(column(short, "events")) == short.events
    assert column(long, "events_encoding") == "zlib"
    written = len(orjson.dumps(long.events))
    assert written > COMPRESS_ABOVE_BYTES
    assert len(column(long, "events")) < written / 4


def test_filter_columns_are_derived_from_policy_and_failure() -> None:
    made = rollout(
        policy={"name": "random", "model": "gpt-x", "inference_url": "https://models.example/v1?cid=trace_1"},
        failure={"boundary": "policy", "code": "unreachable", "message": "…", "error_id": "e1"},
    )
    row = dict(zip(COLUMNS, to_row(made).values, strict=True))
    assert (row["policy_name"], row["model"], row["failure_boundary"]) == ("random", "gpt-x", "policy")
    row = dict(zip(COLUMNS, to_row(rollout(events=[], policy={"policy": "noop"})).values, strict=True))
    assert (row["policy_name"], row["model"], row["failure_boundary"]) == ("noop", None, None)


def test_images_are_listed_by_hash_and_missing_bytes_are_noted() -> None:
    made = pictured("r1", 1, 2)
    assert to_row(made).lacking == []
    one, two = (hashlib.sha256(png(shade)).hexdigest() for shade in (1, 2))
    del made.blobs[two]
    row = to_row(made)
    assert row.lacking == [two]
    assert row.values[COLUMNS.index("blob_hashes")] == orjson.dumps(sorted([one, two])).decode()


def test_damaged_row_raises_store_error() -> None:
    values = list(to_row(rollout(events=episode(100))).values)
    values[COLUMNS.index("events")] = values[COLUMNS.index("events")][:-20]
    with pytest.raises(StoreError, match="'r1' cannot be read from the store"):
        from_row(values)


def test_a_row_of_a_newer_schema_is_refused() -> None:
    values = list(to_row(rollout()).values)
    values[COLUMNS.index("schema_version")] = 99
    with pytest.raises(StoreError, match="schema version 99"):
        from_row(values)


# -- from an author's observation to the store and back ----------------------------------------------------------------

integers = st.integers(-(2**63), 2**63 - 1)
shapes = st.sampled_from([(), (0,), (3,), (2, 2), (2, 0, 1)])
arrays = st.builds(
    lambda shape, kind, start: (np.arange(int(np.prod(shape))) + start).astype(kind).reshape(shape),
    shapes,
    st.sampled_from(["int8", "int64", "uint32", "float16", "float64", "bool"]),
    st.integers(-3, 3),
)
leaves = (
    st.none()
    | st.booleans()
    | integers
    | finite
    | st.sampled_from([-0.0, 5e-324, 1.7976931348623157e308, -(2**63), 2**63 - 1, "", [], {}, (), [[]], {"": {}}])
    | words
    | arrays
    | integers.map(np.int64)
    | finite.map(np.float64)
)
authors_values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


def deep(value: Any, depth: int) -> Any:
    """The value inside `depth` lists and objects."""
    for level in range(depth):
        value = (value,) if level % 2 else {"é": value}
    return value


@st.composite
def observations(draw: st.DrawFn) -> dict[str, Any]:
    """What an author shows: nested, with one object in several places, numpy, tuples, any text and number."""
    shared = draw(authors_values)
    depth = draw(st.integers(0, 60 - 6))  # an inner value has some levels of its own
    return {"once": deep(shared, depth), "again": [shared, shared], "more": draw(authors_values)}


def as_json_has_it(value: Any) -> Any:
    """The same by another writer and reader than the kit's."""
    return json.loads(json.dumps(value, default=lambda array: array.tolist()))


def kept_and_read(shown: list[Any]) -> tuple[StoredRollout, list[Any]]:
    """A rollout that shows these observations, as the store gives it back; and its events, whole."""
    first, *others = [content(value) for value in shown]
    told: list[Any] = [Started("e", "1", "train", 0, {}, "p"), Observed(first, [])]
    for index, seen in enumerate(others):
        told += [Called(index), Stepped(PlayedStep(index, "go", {}, seen))]
    made = rollout(events=encode(told))
    return from_row(to_row(made).values), told


@given(st.lists(observations(), min_size=1, max_size=3))
def test_stored_observation_equals_its_json(shown: list[dict[str, Any]]) -> None:
    back, told = kept_and_read(shown)
    read = [from_json(body) for body in back.events]
    seen = [event.observation if isinstance(event, Observed) else event.step.observation for event in read[1::2]]
    assert exactly(seen) == exactly([as_json_has_it(value) for value in shown])
    assert read == told
    assert encode(read).text == orjson.dumps(back.events)


def test_an_observation_sixty_deep_is_kept_and_one_too_deep_is_refused() -> None:
    back, told = kept_and_read([deep({"bottom": -0.0}, 61)])
    assert [from_json(body) for body in back.events] == told
    with pytest.raises(NotJson, match=r"\b64\b"):
        content({"top": deep("bottom", MAX_DEPTH)})


unkeepable = st.sampled_from(
    [
        (b"bytes", "is of type bytes"),
        (bytearray(b"x"), "is of type bytearray"),
        ("a\ud800b", "lone surrogate"),
        ({"\udfff": 1}, "lone surrogate"),
        (2**63, "beyond 64 bits"),
        (-(2**63) - 1, "beyond 64 bits"),
        (np.uint64(2**63), "beyond 64 bits"),
        (np.array([0.0, np.nan]), "is nan"),
        (np.array([b"x"]), "is of type bytes"),
        (np.array([1j]), "is of type complex"),
        (np.datetime64("2024-01-02"), "is of type datetime.date"),
        (float("-inf"), "is -inf"),
        ({1, 2}, "is of type set"),
        ({(1, 2): 3}, "keys must be str"),
    ]
)


@given(unkeepable, authors_values, st.integers(0, 50))
def test_unstorable_value_is_rejected_with_its_path(fault: tuple[Any, str], beside: Any, depth: int) -> None:
    value, sentence = fault
    with pytest.raises(NotJson) as refused:
        content({"beside": beside, "wrong": deep([beside, value], depth)})
    assert sentence in refused.value.found
    assert refused.value.path.startswith("observation.wrong")
    assert "[1]" in refused.value.path
