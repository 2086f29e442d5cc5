"""Events: what is told is what is folded, and JSON gives it back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.records.content import Image, images
from taskapp_kit.records.events import (
    SCHEMA_VERSION,
    Answered,
    EpisodeEnded,
    Event,
    Observed,
    Started,
    Stepped,
    content_from_json,
    content_to_json,
    encode,
    encode_one,
    fold,
    from_json,
    joined,
    to_json,
)
from taskapp_kit.records.trajectory import Decision, PlayedStep, ToolCall
from tests.records.episodes import episodes


def same(one: Any, two: Any) -> bool:
    """Equal, with pictures compared by their bytes."""
    if isinstance(one, Image):
        return isinstance(two, Image) and one.png == two.png
    if isinstance(one, list):
        return isinstance(two, list) and len(one) == len(two) and all(map(same, one, two))
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(two) and all(same(getattr(one, n), getattr(two, n)) for n in one.__dataclass_fields__)
    return bool(one == two)


def pictures(events: list[Event]) -> list[Image]:
    seen = [event.observation for event in events if isinstance(event, Observed)]
    seen += [event.step.observation for event in events if isinstance(event, Stepped)]
    return [image for content in seen for image in images(content)]


@given(episodes())
def test_events_come_back_from_json_as_they_were(events: list[Event]) -> None:
    blobs = {picture.hash: picture.png for picture in pictures(events)}
    stored = orjson.loads(orjson.dumps([to_json(seq, event) for seq, event in enumerate(events)]))
    assert [(body["v"], body["seq"], body["kind"]) for body in stored] == [
        (SCHEMA_VERSION, seq, event.kind) for seq, event in enumerate(events)
    ]
    back = [from_json(body, blobs) for body in stored]
    assert all(map(same, events, back))
    assert same(fold(events), fold(back))
    assert fold(events).digest() == fold(back).digest()
    assert fold(events).observation_digest() == fold(back).observation_digest()


@given(episodes())
def test_without_their_blobs_pictures_stay_out_and_the_digest_stays(events: list[Event]) -> None:
    back = [from_json(to_json(seq, event)) for seq, event in enumerate(events)]
    assert not pictures(back)
    assert fold(back).digest() == fold(events).digest()


@given(episodes())
def test_a_trajectory_is_the_fold_of_its_events(events: list[Event]) -> None:
    trajectory = fold(events)
    first, ended = events[0], next(event for event in events if isinstance(event, EpisodeEnded))
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
    with pytest.raises(ValueError, match="'started'.*'observed'"):
        fold([Observed("x", [])])
    with pytest.raises(ValueError, match="'started'.*None"):
        fold([])
    assert fold([Started("e", "1", "s", 0, {}, "p")]).status == "running"


@pytest.mark.parametrize("body", [{}, {"v": 1, "kind": "danced"}, {"v": 99, "kind": "called", "turn": 0}])
def test_an_unknown_event_is_refused_by_name(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"schema 1\b"):
        from_json(body)


def test_a_dict_that_looks_like_a_picture_stays_a_dict() -> None:
    step = PlayedStep(0, "t", {}, {"image": "x", "width": 1, "height": 1})
    back = from_json(to_json(0, Stepped(step)))
    assert isinstance(back, Stepped)
    assert back.step == step
    assert content_from_json(content_to_json({"image": 1}), {}) == {"image": 1}


def test_an_answer_stores_only_what_it_has() -> None:
    assert to_json(0, Answered(0, Decision(output="", token_ids=[])))["answer"] == {"output": "", "token_ids": []}
    assert to_json(0, Answered(0, Decision()))["answer"] == {}


# -- laws that streams, workers and stores rely on ---------------------------------------------------------------------


def without_end_state(events: list[Event]) -> list[Event]:
    return [replace(event, final_state=None) if isinstance(event, EpisodeEnded) else event for event in events]


@given(episodes())
def test_events_that_were_read_are_encoded_again_byte_for_byte(events: list[Event]) -> None:
    blobs = {image.hash: image.png for image in pictures(events)}
    encoded = encode(events)
    back = [from_json(body, blobs) for body in encoded]
    assert same(back, without_end_state(events))
    assert [(event["seq"], event["kind"], event["v"]) for event in encoded] == [
        (seq, event.kind, SCHEMA_VERSION) for seq, event in enumerate(events)
    ]
    assert encode(back).text == encoded.text
    assert [encode_one(seq, event) for seq, event in enumerate(back)] == [
        encode_one(seq, event) for seq, event in enumerate(events)
    ]


@given(episodes(), st.data())
def test_what_was_encoded_folds_to_the_same_trajectory_in_whatever_pieces_it_came(
    events: list[Event], data: st.DataObject
) -> None:
    blobs = {image.hash: image.png for image in pictures(events)}
    ones = [encode_one(seq, event) for seq, event in enumerate(events)]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ones) - 1), max_size=4)))
    pieces = [b",".join(ones[start:end]) for start, end in zip([0, *cuts], [*cuts, len(ones)], strict=True)]
    assert joined(pieces).text == encode(events).text
    back = fold(from_json(body, blobs) for body in joined(pieces))
    told = fold(without_end_state(events))
    assert same(back, told)
    assert back.digest() == told.digest()
    assert replace(back, final_state=fold(events).final_state).digest() == fold(events).digest()


@given(episodes(), st.data())
def test_the_events_until_any_moment_fold_to_the_beginning_of_the_whole(
    events: list[Event], data: st.DataObject
) -> None:
    whole = fold(events)
    part = fold(events[: data.draw(st.integers(1, len(events)))])
    assert part.steps == whole.steps[: part.length]
    assert [turn.answer for turn in part.turns] == [turn.answer for turn in whole.turns[: len(part.turns)]]
    assert [step for turn in part.turns for step in turn.steps] == part.steps


# -- the digest: what happened, and nothing else -----------------------------------------------------------------------


def reordered(value: Any, order: Callable[[list[Any]], list[Any]]) -> Any:
    """The value with the keys of every object in another order."""
    if isinstance(value, dict):
        return {key: reordered(value[key], order) for key in order(list(value))}
    return [reordered(item, order) for item in value] if isinstance(value, list) else value


def otherwise(event: Event, data: st.DataObject) -> Event:
    """The event as another run tells it: other ids, times, counts of tokens and keys in another order."""

    def order(keys: list[Any]) -> list[Any]:
        return data.draw(st.permutations(keys))

    seconds = data.draw(st.floats(0, 1e6))
    if isinstance(event, Started):
        return replace(event, config={"image": True}, policy="somebody")
    if isinstance(event, Observed):
        return replace(event, observation=reordered(event.observation, order), seconds=seconds)
    if isinstance(event, Answered):
        calls = [ToolCall(call.tool, call.args, "another id") for call in event.answer.tool_calls]
        answer = replace(event.answer, tool_calls=calls, usage={}, token_ids=[7], logprobs=None, policy_version="v9")
        return replace(event, answer=answer, seconds=seconds)
    if isinstance(event, Stepped):
        step = event.step
        changes = {name: reordered(getattr(step, name), order) for name in ("args", "observation", "info", "metrics")}
        return Stepped(replace(step, **changes, seconds=seconds, coerced=step.coerced + 1))
    if isinstance(event, EpisodeEnded):
        return replace(event, final_state=reordered(event.final_state, order), metrics={"seconds": seconds})
    return event


@given(episodes(), st.data())
def test_ids_times_tokens_config_and_the_order_of_keys_leave_the_digest(
    events: list[Event], data: st.DataObject
) -> None:
    assert fold([otherwise(event, data) for event in events]).digest() == fold(events).digest()


READER = """
import sys, orjson
from taskapp_kit.records.events import fold, from_json
for line in sys.stdin.buffer:
    sys.stdout.write(fold(from_json(body) for body in orjson.loads(line)).digest() + "\\n")
    sys.stdout.flush()
"""


@pytest.fixture(scope="module")
def another_process() -> Iterator[Callable[[bytes], str]]:
    """Gives the digest that a process with another hash seed finds for events in JSON."""
    with subprocess.Popen(
        [sys.executable, "-c", READER],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        there, back = process.stdin, process.stdout

        def ask(events: bytes) -> str:
            there.write(events + b"\n")
            there.flush()
            return back.readline().decode().strip()

        yield ask
        there.close()


@pytest.mark.process
@given(episodes())
def test_another_process_finds_the_same_digest(another_process: Callable[[bytes], str], events: list[Event]) -> None:
    told = without_end_state(events)
    assert another_process(encode(told).text) == fold(told).digest()
