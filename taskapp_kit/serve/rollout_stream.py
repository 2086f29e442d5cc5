"""The events of a rollout as server-sent events, followed by its result.

    id: 0
    event: started
    data: {"v":1,"seq":0,"kind":"started",…}
    …
    id: 9
    event: result            the body of `POST /rollout`'s response; or `failure`: the error's envelope
    data: {…}

A client whose stream was cut continues it with `Last-Event-ID`.
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
    """Streams events until the rollout ends or the client disconnects, then detaches the subscriber.

    first: the number of the first event to send. headers: additional headers. alive_seconds: after how many seconds without
    an event a keep-alive comment is sent.
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
        """Send the stream."""
        self._peer = peer_of(scope)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._peer.holds(None, 0)
            # even if sending failed, because the last subscriber that leaves cancels the rollout
            self._subscriber.leave()

    async def _frames(self) -> AsyncGenerator[Iterable[bytes], None]:
        shared, number = self._shared, self._first
        async with aclosing(shared.event_buffer.follow(number)) as events:
            async for lines in events:
                # counted as this reader's memory until the bytes are sent
                self._peer.holds(shared.event_buffer.lines, sum(map(len, lines)) + shared.answer_bytes)
                frames = (encode_frame(number + offset, _kind(line), line) for offset, line in enumerate(lines))
                # a generator, so that the frames of a slow reader are made when they are sent
                yield (piece for frame in frames for piece in frame)
                number += len(lines)
                self._peer.holds(None, 0)
        # a client that claims more events than exist has received the result as well
        if self._first <= len(shared.event_buffer.lines):
            frame = await self._last(number)
            self._peer.holds(frame[1], len(frame[1]))
            yield frame

    async def _last(self, number: int) -> EncodedFrame:
        try:
            settled = await self._shared.result()
            assert settled is not None, "the rollout has ended"
            if settled.answer is not None:
                return encode_frame(number, b"result", settled.answer)
            assert settled.failure is not None, "a result is an answer or a failure"
            answer = error_answer(RolloutFailed(settled.failure, rollout_id=settled.rollout_id))
        # only the server's cancellation of this stream; a cancelled rollout arrives as a failure
        except asyncio.CancelledError:
            raise
        except Exception as error:
            answer = error_answer(error, where="/rollout")
        return encode_frame(number, b"failure", answer.body)


def nothing_more() -> EncodedResponse:
    """Return a 204, which stops a browser's EventSource from reconnecting."""
    return EncodedResponse(204, b"", [(b"cache-control", b"no-store")])


def _kind(line: bytes) -> bytes:
    """Return the kind of an encoded event, which begins with `{"v":1,"seq":0,"kind":"started"`."""
    # parsing each event again would cost more than sending it
    begin = line.index(b'"kind":"') + 8
    return line[begin : line.index(b'"', begin)]
