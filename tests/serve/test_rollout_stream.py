"""The stream itself, without a server between: its frames, its silence, its end, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.types import Message

from taskapp_kit.errors import Failure, Saturated, StoreError
from taskapp_kit.net.response import SLICE_BYTES
from taskapp_kit.net.sse import ALIVE
from taskapp_kit.records.events import Called, Event, Failed, Started, encode_one
from taskapp_kit.records.protocols import IdempotencyRecord, StoredResult
from taskapp_kit.rollout.event_buffer import EventBuffer
from taskapp_kit.rollout.subscribers import SharedRollout
from taskapp_kit.serve.rollout_stream import EventStream, nothing_more

pytestmark = pytest.mark.anyio
ROLLOUT_ID = "0123456789abcdef" * 2
EVENTS: list[Event] = [Started("e", "1", "train", 0, {}, "noop"), *(Called(turn) for turn in range(5))]
FAILURE = Failure("environment", "environment_raised", "it broke", "Mend it.", "abcdef012345")
SETTLED = StoredResult(ROLLOUT_ID, answer=b'{"a":1}')


class Wire:
    """The server's side of one connection."""

    def __init__(self, shared: SharedRollout, **options: Any) -> None:
        self.sent: list[Message] = []
        self.gone = asyncio.Event()
        self.held = asyncio.Event()
        self.held.set()
        self.subscriber = shared.subscribe()
        self.task = asyncio.ensure_future(EventStream(shared, self.subscriber, **options)({}, self.receive, self.send))

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.held.wait()
        self.sent.append(message)

    @property
    def text(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def frames(self) -> list[tuple[int, str, Any]]:
        return frames(self.text)


def frames(text: bytes) -> list[tuple[int, str, Any]]:
    """(id, event, data) of each; comments are passed over."""
    found = []
    for block in text.split(b"\n\n"):
        if block and not block.startswith(b":"):
            number, kind, data = block.split(b"\n")
            assert number.startswith(b"id: ") and kind.startswith(b"event: ") and data.startswith(b"data: ")
            found.append((int(number[4:]), kind[7:].decode(), json.loads(data[6:])))
    return found


@pytest.fixture
async def shared() -> AsyncIterator[SharedRollout]:
    """At the end no task is left, and no error that nobody took."""
    complaints: list[Any] = []
    gc.freeze()  # the collection below walks through what this test made, not through all that was ever imported
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    before = len(asyncio.all_tasks())
    made = SharedRollout(EventBuffer(lambda pictures: None))
    made.admit(IdempotencyRecord(ROLLOUT_ID, "f", 0.0))
    yield made
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before, asyncio.all_tasks()
    gc.collect()
    assert not complaints, complaints


async def soon() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_events_are_streamed_live_followed_by_the_result(shared: SharedRollout) -> None:
    shared.event_buffer(EVENTS[0])
    wire = Wire(shared, headers=[(b"location", b"/x")])
    await soon()
    assert [(number, kind) for number, kind, _ in wire.frames] == [(0, "started")]
    shared.event_buffer(EVENTS[1])
    shared.event_buffer(EVENTS[2])
    await soon()
    assert len(wire.frames) == 3
    assert wire.sent[-1]["more_body"] is True
    shared.settle(SETTLED)
    await wire.task
    assert [(number, kind) for number, kind, _ in wire.frames] == [
        (0, "started"), (1, "called"), (2, "called"), (3, "result"),
    ]  # fmt: skip
    assert [data for _, _, data in wire.frames] == [
        *(json.loads(encode_one(number, event)) for number, event in enumerate(EVENTS[:3])), {"a": 1},
    ]  # fmt: skip
    start = wire.sent[0]
    headers = dict(start["headers"])
    assert start["status"] == 200
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert headers[b"cache-control"] == b"no-store"
    assert headers[b"location"] == b"/x"
    assert b"content-length" not in headers
    assert not wire.sent[-1].get("more_body")


@pytest.mark.parametrize("first", range(len(EVENTS) + 3))
@pytest.mark.parametrize("over", [False, True])
async def test_from_any_event_on(shared: SharedRollout, first: int, over: bool) -> None:
    for event in EVENTS:
        shared.event_buffer(event)
    if over:
        shared.settle(SETTLED)
    wire = Wire(shared, first=first)
    await soon()
    shared.settle(SETTLED)
    await wire.task
    whole = [*range(len(EVENTS)), len(EVENTS)]
    assert [number for number, _, _ in wire.frames] == whole[first:], "the result has the number after the last"
    assert not wire.sent[-1].get("more_body")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda shared: shared.settle(StoredResult(ROLLOUT_ID, failure=FAILURE)), "environment_raised"),
        (lambda shared: shared.fail(StoreError("sentinel")), "store_failed"),
        (lambda shared: shared.fail(Saturated("full")), "saturated"),
        (lambda shared: shared.fail(asyncio.CancelledError()), "cancelled"),
        (lambda shared: shared.fail(ZeroDivisionError("sentinel")), "internal_error"),
    ],
)
async def test_a_failure_is_the_last_frame_and_the_same_envelope(
    shared: SharedRollout, end: Callable[[SharedRollout], None], code: str
) -> None:
    shared.event_buffer(EVENTS[0])
    shared.event_buffer(Failed("environment", "environment_raised", "it broke"))
    wire = Wire(shared)
    await soon()
    end(shared)
    await wire.task
    number, kind, data = wire.frames[-1]
    assert (number, kind) == (2, "failure")
    assert data["detail"]["error"]["code"] == code
    assert b"sentinel" not in wire.text
    if code == "environment_raised":
        assert data["detail"]["error"]["rollout_id"] == ROLLOUT_ID
        assert data["detail"]["error"]["error_id"] == FAILURE.error_id


async def test_silent_stream_sends_comments(shared: SharedRollout) -> None:
    wire = Wire(shared, alive_seconds=0.02)
    while wire.text.count(ALIVE) < 3:
        await asyncio.sleep(0.005)
    shared.event_buffer(EVENTS[0])
    shared.settle(SETTLED)
    await wire.task
    assert [kind for _, kind, _ in wire.frames] == ["started", "result"]
    assert ALIVE.startswith(b":") and ALIVE.endswith(b"\n\n")


@pytest.mark.parametrize("when", ["before", "waiting", "sending"])
async def test_disconnected_stream_reader_leaves_nothing_behind(shared: SharedRollout, when: str) -> None:
    shared.task = asyncio.create_task(asyncio.sleep(60))
    wire = Wire(shared)
    if when == "sending":
        wire.held.clear()
    if when != "before":
        await soon()
    shared.event_buffer(EVENTS[0])
    if when != "before":
        await soon()
    wire.gone.set()
    await wire.task
    await asyncio.wait((shared.task,))
    assert shared.cancelled, "nobody is left"
    shared.fail(asyncio.CancelledError())


async def test_a_server_that_stops_ends_the_stream(shared: SharedRollout) -> None:
    wire, other = Wire(shared), Wire(shared)
    await soon()
    wire.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wire.task
    shared.event_buffer(EVENTS[0])
    shared.settle(SETTLED)
    await other.task
    assert [kind for _, kind, _ in other.frames] == ["started", "result"], "another follower does not notice"


async def test_broken_connection_ends_the_stream(shared: SharedRollout) -> None:
    subscriber = shared.subscribe()

    async def receive() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    async def send(message: Message) -> None:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        await EventStream(shared, subscriber)({}, receive, send)
    shared.settle(SETTLED)


def test_complete_stream_returns_204() -> None:
    answer = nothing_more()
    assert (answer.status, answer.body) == (204, b"")


async def test_a_long_event_and_a_long_result_are_sent_in_slices(shared: SharedRollout) -> None:
    answer = json.dumps({"long": "y" * 3 * SLICE_BYTES}).encode()
    for event in EVENTS:
        shared.event_buffer(event)
    shared.event_buffer(Failed("environment", "environment_raised", "x" * 2 * SLICE_BYTES))
    shared.settle(StoredResult(ROLLOUT_ID, answer=answer))
    wire = Wire(shared)
    await wire.task
    assert max(len(message.get("body", b"")) for message in wire.sent) <= SLICE_BYTES
    assert [number for number, _, _ in wire.frames] == list(range(len(EVENTS) + 2))
    assert wire.frames[-1][2] == json.loads(answer)
