"""Events: what is told is what is folded, and JSON gives it back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings

from taskapp_kit.contract.content import Image, images
from taskapp_kit.contract.events import (
    KINDS,
    SCHEMA_VERSION,
    Answered,
    Ended,
    Event,
    Observed,
    Started,
    Stepped,
    content_from_json,
    content_to_json,
    encode,
    fold,
    from_json,
    to_json,
)
from taskapp_kit.contract.trajectory import Answer, PlayedStep
from tests.contract.episodes import episodes


def same(one: Any, two: Any) -> bool:
    """Equal, with pictures compared by their bytes."""
    if isinstance(one, Image):
        return isinstance(two, Image) and one.png == two.png
    if isinstance(one, list):
        return isinstance(two, list) and len(one) == len(two) and all(map(same, one, two))
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(two) and all(same(getattr(one, n), getattr(two, n)) for n in one.__dataclass_fields__)
    return bool(one == two)


def contents(events: list[Event]) -> list[Any]:
    return [
        e.observation if isinstance(e, Observed) else e.step.observation
        for e in events
        if isinstance(e, Observed | Stepped)
    ]


@given(episodes())
@settings(deadline=None, max_examples=150)
def test_events_come_back_from_json_as_they_were(events: list[Event]) -> None:
    blobs = {picture.hash: picture.png for item in contents(events) for picture in images(item)}
    stored = orjson.loads(orjson.dumps([to_json(seq, event) for seq, event in enumerate(events)]))
    assert [(body["v"], body["seq"], body["kind"]) for body in stored] == [
        (SCHEMA_VERSION, seq, event.kind) for seq, event in enumerate(events)
    ]
    back = [from_json(body, blobs) for body in stored]
    assert all(map(same, events, back))
    assert same(fold(events), fold(back))
    assert fold(events).digest() == fold(back).digest()


@given(episodes())
@settings(deadline=None, max_examples=100)
def test_without_their_blobs_pictures_stay_out_and_the_digest_stays(events: list[Event]) -> None:
    back = [from_json(to_json(seq, event)) for seq, event in enumerate(events)]
    assert not any(True for item in contents(back) for _ in images(item))
    assert fold(back).digest() == fold(events).digest()


@given(episodes())
@settings(deadline=None, max_examples=100)
def test_a_trajectory_is_the_fold_of_its_events(events: list[Event]) -> None:
    trajectory = fold(events)
    first, ended = events[0], next(event for event in events if isinstance(event, Ended))
    assert isinstance(first, Started)
    assert (trajectory.environment, trajectory.split, trajectory.seed) == (first.environment, first.split, first.seed)
    assert trajectory.steps == [event.step for event in events if isinstance(event, Stepped)]
    assert [step for turn in trajectory.turns for step in turn.steps] == trajectory.steps
    assert [turn.answer for turn in trajectory.turns] == [
        event.answer for event in events if isinstance(event, Answered)
    ]
    assert (trajectory.status, trajectory.stop_reason, trajectory.final_state) == (
        ended.status,
        ended.stop_reason,
        ended.final_state,
    )


def test_an_episode_begins_with_started() -> None:
    with pytest.raises(ValueError, match="first event is 'started', got 'observed'"):
        fold([Observed("x", [])])
    with pytest.raises(ValueError, match="got None"):
        fold([])
    assert fold([Started("e", "1", "s", 0, {}, "p")]).status == "running"


@pytest.mark.parametrize("body", [{}, {"v": 1, "kind": "danced"}, {"v": 99, "kind": "called", "turn": 0}])
def test_an_unknown_event_is_refused_by_name(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="this release reads schema 1"):
        from_json(body)


def test_every_kind_is_known() -> None:
    assert list(KINDS) == [
        "started",
        "observed",
        "called",
        "answered",
        "acted",
        "stepped",
        "limited",
        "failed",
        "ended",
        "scored",
    ]


def test_a_dict_that_looks_like_a_picture_stays_a_dict() -> None:
    step = PlayedStep(0, "t", {}, {"image": "x", "width": 1, "height": 1})
    back = from_json(to_json(0, Stepped(step)))
    assert isinstance(back, Stepped)
    assert back.step == step
    assert content_from_json(content_to_json({"image": 1}), {}) == {"image": 1}


def test_an_answer_stores_only_what_it_has() -> None:
    assert to_json(0, Answered(0, Answer(output="", token_ids=[])))["answer"] == {"output": "", "token_ids": []}
    assert to_json(0, Answered(0, Answer()))["answer"] == {}


@given(episodes())
@settings(max_examples=60, deadline=None)
def test_encoded_events_say_what_to_json_says_but_for_the_private_end_state(events: list[Event]) -> None:
    encoded = encode(events)
    read = [from_json(event, {image.hash: image.png for image in pictures(events)}) for event in encoded]
    public = [replace(event, final_state=None) if isinstance(event, Ended) else event for event in events]
    assert same(read, public)
    assert [(event["seq"], event["kind"], event["v"]) for event in encoded] == [
        (seq, event.kind, SCHEMA_VERSION) for seq, event in enumerate(events)
    ]
    assert encoded == [orjson.loads(text) for text in map(orjson.dumps, encoded)]
    assert len(encoded) == len(events)


def pictures(events: list[Event]) -> list[Image]:
    seen = [event.observation for event in events if isinstance(event, Observed)]
    seen += [event.step.observation for event in events if isinstance(event, Stepped)]
    return [image for content in seen for image in images(content)]
