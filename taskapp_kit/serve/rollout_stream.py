"""Streams the events of a rollout as server-sent events, followed by the result.

    id: 0
    event: started
    data: {"v":1,"seq":0,"kind":"started",…}
    …
    id: 9
    event: result            the body that `POST /rollout` returns; or `failure` and the error's envelope
    data: {…}

A client can resume an interrupted stream with the header `Last-Event-ID`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from starlette.types import Receive, Scope, Send

from taskapp_kit.errors import RolloutFailed
from taskapp_kit.net.response import EncodedResponse, Headers, Peer, peer_of
from taskapp_kit.net.sse import ALIVE_SECONDS, EncodedFrame, EventStreamResponse, encode_frame
from taskapp_kit.rollout.subscribers import SharedRollout, Subscriber
from taskapp_kit.serve.errors import error_answer


class EventStream(EventStreamResponse):
    """Streams events until the rollout ends or the client disconnects, and then unsubscribes from the rollout.

    Args:
        first: Number of the first event to send.
        headers: Additional headers.
        alive_seconds: After this many seconds without an event, a keep-alive comment is sent.
    """

    def __init__(
        self,
        shared: SharedRollout,
        subscriber: Subscriber,
        *,
        first: int = 0,
        headers: Headers | None = None,
        alive_seconds: float = ALIVE_SECONDS,
    ) -> None:
        super().__init__(self._frames(), headers=headers, alive_seconds=alive_seconds)
        self._shared = shared
        self._subscriber = subscriber
        self._first = first
        self._peer = Peer()

    @property
    def rollout_id(self) -> str:
        """Return the id of the rollout."""
        return self._shared.rollout_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the headers and the events."""
        self._peer = peer_of(scope)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._peer.holds(None, 0)
            # also after an error, because a rollout is cancelled when its last subscriber leaves
            self._subscriber.leave()

    async def _frames(self) -> AsyncGenerator[Iterable[bytes], None]:
        shared, number = self._shared, self._first
        async with aclosing(shared.event_buffer.follow(number)) as events:
            async for lines in events:
                # counts as memory of this client until the bytes are sent
                self._peer.holds(shared.event_buffer.lines, sum(map(len, lines)) + shared.answer_bytes)
                frames = (encode_frame(number + offset, _kind(line), line) for offset, line in enumerate(lines))
                # a generator, so that frames are encoded only when the client is ready for them
                yield (piece for frame in frames for piece in frame)
                number += len(lines)
                self._peer.holds(None, 0)
        # a client that has received more events than exist has also received the result
        if self._first <= len(shared.event_buffer.lines):
            frame = await self._last(number)
            self._peer.holds(frame[1], len(frame[1]))
            yield frame

    async def _last(self, number: int) -> EncodedFrame:
        try:
            settled = await self._shared.result()
            assert settled is not None, "result() without a time limit waits for the end"
            if settled.answer is not None:
                return encode_frame(number, b"result", settled.answer)
            assert settled.failure is not None, "a result contains either an answer or a failure"
            answer = error_answer(RolloutFailed(settled.failure, rollout_id=settled.rollout_id))
        # the server cancels this stream; a cancelled rollout is reported as a failure
        except asyncio.CancelledError:
            raise
        except Exception as error:
            answer = error_answer(error, where="/rollout")
        return encode_frame(number, b"failure", answer.body)


def nothing_more() -> EncodedResponse:
    """Return a 204 response, after which a browser's EventSource does not reconnect."""
    return EncodedResponse(204, b"", [(b"cache-control", b"no-store")])


def _kind(line: bytes) -> bytes:
    """Return the `kind` of an encoded event such as `{"v":1,"seq":0,"kind":"started",…}`."""
    # parsing each event would take longer than sending it
    begin = line.index(b'"kind":"') + 8
    return line[begin : line.index(b'"', begin)]
