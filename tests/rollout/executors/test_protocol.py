"""Frames survive any cut, and what no frame can hold is refused."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.rollout.executors.protocol import FRAME_BYTES, BadFrame, PipeReader, encode

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
messages = st.dictionaries(st.text(), values, max_size=4)


@given(frames=st.lists(st.tuples(messages, st.binary(max_size=300)), max_size=6), data=st.data())
def test_frames_survive_any_chunking(frames: list[tuple[dict[str, Any], bytes]], data: st.DataObject) -> None:
    wire = b"".join(piece for message, blob in frames for piece in encode(message, blob))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=12)))
    reader = PipeReader()
    seen = []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        seen += reader.feed(wire[start:end])
    assert [(message, blob) for message, blob, _ in seen] == frames
    assert sum(size for _, _, size in seen) == len(wire)


def test_one_byte_at_a_time() -> None:
    wire = b"".join([*encode({"a": 1}, b"blob"), *encode({"b": [2, None]})])
    reader = PipeReader()
    seen = [frame for index in range(len(wire)) for frame in reader.feed(wire[index : index + 1])]
    assert [(message, blob) for message, blob, _ in seen] == [({"a": 1}, b"blob"), ({"b": [2, None]}, b"")]


def test_large_integers_lone_surrogates_and_depth_come_back_equal() -> None:
    deep: object = 1
    for _ in range(400):
        deep = [deep]
    message = {"large": 2**200, "negative": -(2**63) - 1, "surrogate": "\ud800", "deep": deep}
    ((back, _, _),) = PipeReader().feed(b"".join(encode(message)))
    assert back == message


def test_a_frame_that_is_too_large_is_refused_where_it_is_made_and_where_it_arrives() -> None:
    with pytest.raises(BadFrame, match="exceeds the limit"):
        encode({}, bytes(FRAME_BYTES + 1))
    with pytest.raises(BadFrame, match="announced"):
        PipeReader().feed(struct.pack(">II", 2, FRAME_BYTES))


@pytest.mark.parametrize("text", [b"[1]", b"{", b"null", b"\xff\xfe", b""])
def test_frame_that_is_not_a_json_object_is_rejected(text: bytes) -> None:
    with pytest.raises(BadFrame):
        PipeReader().feed(struct.pack(">II", len(text), 0) + text)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", {"large": 2**70, "nan": float("nan")}])
def test_frame_that_json_cannot_represent_is_rejected(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode({"value": value})


def test_a_large_frame_is_read_in_large_pieces_and_nothing_is_kept_of_it() -> None:
    blob = bytes(range(256)) * 40_000
    wire = b"".join(encode({"n": 1}, blob)) + encode({"n": 2})[0][:3]
    reader = PipeReader()
    assert reader.feed(wire[:1000]) == []
    assert reader.wants == 1024 * 1024
    ((message, back, size),) = reader.feed(wire[1000:])
    assert (message, back) == ({"n": 1}, blob)
    assert size > len(blob)
    assert reader.wants == 64 * 1024
    ((message, _, _),) = reader.feed(encode({"n": 2})[0][3:])
    assert message == {"n": 2}


def test_wire_format_matches_its_documentation() -> None:
    (head, blob) = encode({"job": 1}, b"\x00\xff")
    text_bytes, blob_bytes = struct.unpack(">II", head[:8])
    assert json.loads(head[8 : 8 + text_bytes]) == {"job": 1}
    assert (text_bytes, blob_bytes, blob) == (len(head) - 8, 2, b"\x00\xff")
