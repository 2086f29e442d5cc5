"""Whole episodes as hypothesis draws them: events in an order that an episode can have."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from taskapp_kit.records.content import Image
from taskapp_kit.records.events import (
    Acted,
    Answered,
    Called,
    EpisodeEnded,
    Event,
    Failed,
    Limited,
    Observed,
    Scored,
    Started,
    Stepped,
)
from taskapp_kit.records.trajectory import Decision, PlayedStep, ToolCall

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBER = st.floats(-1e6, 1e6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
PICTURE = st.integers(0, 255).map(lambda shade: Image(np.full((2, 2, 3), shade, np.uint8)))
CONTENT = st.none() | TEXT | OBJECT | st.lists(TEXT | PICTURE, min_size=1, max_size=3)
ANSWER = st.builds(
    Decision,
    tool_calls=st.lists(st.builds(ToolCall, TEXT, OBJECT, TEXT), max_size=2),
    output=st.none() | TEXT,
    messages=st.lists(OBJECT, max_size=2),
    usage=st.dictionaries(TEXT, NUMBER, max_size=2),
    token_ids=st.none() | st.lists(st.integers(0, 9), max_size=3),
    logprobs=st.none() | st.lists(NUMBER, max_size=3),
    policy_version=st.none() | TEXT,
)


@st.composite
def episodes(draw: st.DrawFn) -> list[Event]:
    """The events of one episode, `started` to `scored`."""
    split = draw(TEXT)
    events: list[Event] = [
        Started(draw(TEXT), draw(TEXT), split, draw(st.integers(0, 2**63 - 1)), draw(OBJECT), draw(TEXT))
    ]
    events.append(Observed(draw(CONTENT), draw(st.lists(TEXT, max_size=2)), draw(NUMBER)))
    count = 0
    for turn in range(draw(st.integers(0, 3))):
        events.append(Called(turn))
        events.append(Answered(turn, draw(ANSWER), draw(NUMBER), draw(st.booleans())))
        for _ in range(draw(st.integers(0, 2))):
            tool, args = draw(TEXT), draw(OBJECT)
            events.append(Acted(count, tool, args))
            step = PlayedStep(
                count,
                tool,
                args,
                draw(CONTENT),
                draw(st.none() | NUMBER),
                draw(st.booleans()),
                draw(st.booleans()),
                draw(OBJECT),
                draw(st.dictionaries(TEXT, NUMBER, max_size=2)),
                draw(NUMBER),
                draw(st.none() | TEXT),
                draw(st.integers(0, 3)),
            )
            events.append(Stepped(step))
            count += 1
    if draw(st.booleans()):
        events.append(Limited("max_steps", float(count)))
    failed = draw(st.booleans())
    if failed:
        events.append(Failed("environment", "code", draw(TEXT), "id", draw(TEXT)))
    metrics: dict[str, Any] = draw(st.dictionaries(TEXT, NUMBER, max_size=2))
    events.append(EpisodeEnded("failed" if failed else "terminated", draw(TEXT), draw(JSON), metrics))
    events.append(Scored(draw(OBJECT)))
    return events
