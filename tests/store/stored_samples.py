"""Rollouts to store: a plain one, one with pictures, and a Hypothesis strategy for any that JSON can hold."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from hypothesis import strategies as st

from taskapp_kit.records.content import Image
from taskapp_kit.records.events import Acted, Answered, Called, EpisodeEnded, Event, Observed, Started, Stepped, to_json
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.records.trajectory import Decision, PlayedStep, ToolCall


def png(shade: int) -> bytes:
    """A PNG of one pixel whose red is `shade` modulo 256; each `shade` gives other bytes."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(bytes([0, shade % 256, 0, 0]))
    comment = b"shade\0" + str(shade).encode()
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"tEXt", comment)
        + chunk(b"IDAT", pixel)
        + chunk(b"IEND", b"")
    )


def episode(steps: int = 10, *, shades: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """The events of an adder episode as JSON; step i shows a picture of `shades[i]`, as long as there are some."""
    told: list[Event] = [
        Started("adder", "1", "train", 7, {"low": 5}, "random"),
        Observed("target 14, total 0", ["add"], 0.00001),
    ]
    for index in range(steps):
        seen: Any = f"target 14, total {index}"
        if index < len(shades):
            seen = [seen, Image(png(shades[index]))]
        args = {"amount": 2}
        told += [
            Called(index),
            Answered(index, Decision(tool_calls=[ToolCall("add", args)]), 0.0000123),
            Acted(index, "add", args),
            Stepped(PlayedStep(index, "add", args, seen, 0.0, seconds=0.0000123)),
        ]
    told.append(EpisodeEnded("terminated", "environment", None, {"steps": float(steps)}))
    return [to_json(number, event) for number, event in enumerate(told)]


def rollout(rollout_id: str = "r1", **changes: Any) -> StoredRollout:
    """A scored rollout of ten steps; `changes` are fields."""
    fields: dict[str, Any] = {
        "rollout_id": rollout_id,
        "run_id": "run",
        "created_at": 1_800_000_000.25,
        "app": "adder",
        "app_version": "1.0.0",
        "environment": "adder",
        "environment_version": "1",
        "split": "train",
        "seed": 7,
        "config": {"low": 5, "high": 15},
        "policy": {"policy": "random", "sample": 0},
        "mode": "rl",
        "status": "terminated",
        "stop_reason": "environment",
        "length": 10,
        "total_reward": 1.0,
        "events": episode(),
        "spec_hash": "a" * 64,
        "kit_version": "0.1.0",
        "schema_version": 1,
        "reward": 0.875,
        "outcome_score": 0.875,
        "digest": "b" * 64,
        "scorecard": {"criteria": [], "outcome_score": 0.875, "reward": 0.875},
        "timing": {"reset": 0.0001, "steps": 0.001},
        "seconds": 0.0125,
    }
    return StoredRollout(**(fields | changes))


def pictured(rollout_id: str, *shades: int) -> StoredRollout:
    """A rollout whose first steps show pictures of these shades, with their bytes."""
    blobs = {Image(png(shade)).hash: png(shade) for shade in shades}
    return rollout(rollout_id, events=episode(shades=shades), blobs=blobs)


def nested(depth: int) -> dict[str, Any]:
    """A dict and list, `depth` deep."""
    value: Any = "the bottom"
    for level in range(depth):
        value = [value] if level % 2 else {"down": value}
    return {"top": value}


words = st.text(max_size=12)  # all of Unicode but surrogates, NUL included
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | words
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4), max_leaves=25
)
json_objects = st.dictionaries(words, json_values, max_size=4)
finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def shared_objects(draw: st.DrawFn) -> dict[str, Any]:
    """A JSON object in which one inner object stands in several places."""
    inner = draw(json_objects)
    return {"one": inner, "two": [inner, inner], "rest": draw(json_values)}


@st.composite
def any_rollout(draw: st.DrawFn, rollout_id: str) -> StoredRollout:
    """A rollout with arbitrary text, numbers, JSON and pictures in every field that takes them."""
    objects = json_objects | shared_objects() | st.integers(0, 60).map(nested)
    shades = draw(st.lists(st.integers(0, 10**6), max_size=3))
    told = draw(st.lists(objects, max_size=4))
    return rollout(
        rollout_id,
        run_id=draw(words),
        created_at=draw(finite),
        environment=draw(words),
        split=draw(words),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        config=draw(objects),
        status=draw(words),
        length=draw(st.integers(0, 2**63 - 1)),
        total_reward=draw(finite),
        reward=draw(st.none() | finite),
        outcome_score=draw(st.none() | finite),
        events_score=draw(st.none() | finite),
        events=told + (episode(shades=tuple(shades)) if draw(st.booleans()) else []),
        group_id=draw(st.none() | words),
        row_hash=draw(st.none() | words),
        digest=draw(st.none() | words),
        observation_digest=draw(st.none() | words),
        key_label=draw(st.none() | words),
        scorecard=draw(st.none() | objects),
        failure=draw(st.none() | objects),
        private=draw(objects),
        timing=draw(st.dictionaries(words, finite, max_size=3)),
        seconds=draw(finite),
        blobs={Image(png(shade)).hash: png(shade) for shade in shades},
    )
