"""The events of a rollout as server-sent events, then its result.

    id: 0
    event: started
    data: {"v":1,"seq":0,"kind":"started",…}
    …
    id: 9
    event: result            the answer of `POST /rollout`; or `failure`: the error's envelope
    data: {…}

A stream that was cut goes on with `Last-Event-ID`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from taskapp_kit.errors import RolloutFailed
from taskapp_kit.net.peer import Peer, peer_of
from taskapp_kit.rollout.tracked_rollout import Subscriber, TrackedRollout
from taskapp_kit.serve.errors import error_answer
from taskapp_kit.serve.response import SLICE_BYTES, EncodedResponse, Headers

log = logging.getLogger("taskapp_kit.serve")

ALIVE_SECONDS = 15.0
"""After so much silence a comment is sent, so that nothing between us and the caller takes the stream for dead."""
ALIVE = b": alive\n\n"
Frame = tuple[bytes, bytes, bytes]

STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


class EventStream:
    """An answer that goes on until the rollout is over or the caller gone; then gives up its seat.

    first: the number of the first event that is sent. headers: further ones. alive_seconds: the longest silence.
    """

    status = 200

    def __init__(
        self,
        live: TrackedRollout,
        seat: Subscriber,
        *,
        first: int = 0,
        headers: Headers | None = None,
        alive_seconds: float = ALIVE_SECONDS,
    ) -> None:
        self._live = live
        self._seat = seat
        self._first = first
        self._headers = headers or []
        self._alive_seconds = alive_seconds

    @property
    def rollout_id(self) -> str:
        """Of the rollout that it tells."""
        return self._live.rollout_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream."""
        gone = asyncio.create_task(_until_gone(receive))
        peer = peer_of(scope)
        telling = asyncio.create_task(self._send_events(send, peer))
        try:
            await asyncio.wait((gone, telling), return_when=asyncio.FIRST_COMPLETED)
            if telling.done():
                telling.result()
        finally:
            for task in (gone, telling):
                task.cancel()
            with suppress(asyncio.CancelledError, Exception):  # what broke was raised above
                await telling
            peer.holds(None, 0)
            self._seat.leave()

    async def _send_events(self, send: Send, peer: Peer) -> None:
        headers = [*STREAM_HEADERS, *self._headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        number = self._first
        events = self._live.journal.follow(number)
        following = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                done, _ = await asyncio.wait((following,), timeout=self._alive_seconds)
                if not done:
                    await send({"type": "http.response.body", "body": ALIVE, "more_body": True})
                    continue
                lines = following.result()
                if lines is None:
                    break
                peer.holds(self._live.journal.lines, sum(map(len, lines)) + self._live.answer_bytes)
                frames = (_frame(number + place, _kind(line), line) for place, line in enumerate(lines))
                for body in _slices(piece for frame in frames for piece in frame):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                number += len(lines)
                peer.holds(None, 0)
                following = asyncio.ensure_future(anext(events, None))
        finally:
            following.cancel()
            await asyncio.wait((following,))
            await events.aclose()
        # who has more than there is had the result too
        if self._first <= len(self._live.journal.lines):
            frame = await self._last(number)
            peer.holds(frame[1], len(frame[1]))
            for body in _slices(frame):
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _last(self, number: int) -> Frame:
        try:
            settled = await self._live.result()
            assert settled is not None, "it is over"
            if settled.answer is not None:
                return _frame(number, b"result", settled.answer)
            assert settled.failure is not None, "an answer or a failure"
            answer = error_answer(RolloutFailed(settled.failure, rollout_id=settled.rollout_id))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            answer = error_answer(error, where="/rollout")
        return _frame(number, b"failure", answer.body)


def nothing_more() -> EncodedResponse:
    """204, which tells a browser's EventSource not to come back."""
    return EncodedResponse(204, b"", [(b"cache-control", b"no-store")])


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _kind(line: bytes) -> bytes:
    """The kind of an encoded event, which begins `{"v":1,"seq":0,"kind":"started"`."""
    begin = line.index(b'"kind":"') + 8
    return line[begin : line.index(b'"', begin)]


def _frame(number: int, kind: bytes, data: bytes) -> Frame:
    """One event. JSON as we write it holds no line break; it is not copied, for others may read the same."""
    return b"id: %d\nevent: %s\ndata: " % (number, kind), data, b"\n\n"


def _slices(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces in a row, in parts of at most SLICE_BYTES."""
    waiting: list[bytes] = []
    length = 0
    for piece in pieces:
        for start in range(0, len(piece), SLICE_BYTES):
            part = piece[start : start + SLICE_BYTES]
            if length + len(part) > SLICE_BYTES:
                yield b"".join(waiting)
                waiting.clear()
                length = 0
            waiting.append(part)
            length += len(part)
    if waiting:
        yield b"".join(waiting)
