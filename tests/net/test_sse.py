"""Server-sent events, however their bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.net.sse import Frame, FrameTooLarge, SseReader

SENT = (
    b": a comment\n\nevent: rl.train.step\nid: 7\ndata: {\"seq\": 7}\n\n"
    b"data: one\r\ndata: two\r\n\r\nretry: 5\nnothing\n\ndata:no space\rid: 9\r\revent: empty\n\ndata: caf\xc3\xa9\n\ndata: cut"
)  # fmt: skip
FRAMES = [
    Frame("rl.train.step", '{"seq": 7}', "7"),
    Frame("message", "one\ntwo", "7"),
    Frame("message", "no space", "9"),
    Frame("message", "café", "9"),
]


@given(st.lists(st.integers(0, len(SENT)), max_size=30))
def test_frames_do_not_depend_on_how_the_bytes_are_cut(cuts: list[int]) -> None:
    reader = SseReader()
    places = [0, *sorted(cuts), len(SENT)]
    got = [frame for start, end in pairwise(places) for frame in reader.feed(SENT[start:end])]
    assert got == FRAMES


@pytest.mark.parametrize("flood", [b"x" * 200, b"data: " + b"x" * 99 + b"\n", b"data: xxxxxxxxxx\n" * 10])
def test_a_frame_without_end_is_refused(flood: bytes) -> None:
    reader = SseReader(max_bytes=64)
    with pytest.raises(FrameTooLarge):
        reader.feed(flood)
