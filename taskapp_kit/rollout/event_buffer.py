"""Buffers the events of one running rollout, for any number of readers.

Most rollouts have no reader, so events are only encoded when they are read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

import orjson

from taskapp_kit.records.content import images
from taskapp_kit.records.events import Event, Observed, Stepped, encode_one, joined


class EventBuffer:
    """The events of one rollout. Create it on the event loop.

    show: a function that receives images (PNG bytes by hash) before the events that contain their hashes are read.
    """

    def __init__(self, show: Callable[[dict[str, bytes]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._show = show
        self._unread: deque[Event | bytes] = deque()
        self._lines: list[bytes] = []
        self._pictures: deque[dict[str, bytes]] = deque()
        self._followers = 0
        self._more = asyncio.Event()
        self._closed = False

    # -- for the writer -------------------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """Add an event. Any thread may call this, but only one at a time."""
        observation = (
            event.observation
            if isinstance(event, Observed)
            else event.step.observation
            if isinstance(event, Stepped)
            else None
        )
        if type(observation) is list:  # encodes an image in this thread, not on the event loop
            self._pictures.append({picture.hash: picture.png for picture in images(observation)})
        # Wake the loop only for followers. Most rollouts have none, and an episode has hundreds of events.
        self._unread.append(event)
        if self._followers:
            with suppress(RuntimeError):  # a closed loop has no readers
                self._loop.call_soon_threadsafe(self._more.set)

    def take(self, piece: bytes, pictures: dict[str, bytes]) -> None:
        """Add encoded events, separated by commas, and images from a worker process. Call it on the event loop."""
        if pictures:
            self._pictures.append(pictures)
        self._unread.append(piece)
        self._more.set()

    def load(self, lines: list[bytes]) -> None:
        """Replace all events with the events of an ended rollout."""
        self._unread.clear()
        self._lines = lines

    def close(self) -> None:
        """Mark the end of the events."""
        self._closed = True
        self._more.set()

    # -- for readers, on the event loop ---------------------------------------------------------------------------

    @property
    def lines(self) -> list[bytes]:
        """The events so far, each as JSON."""
        while self._unread:
            piece = self._unread.popleft()
            # the images of these events were added before them, and a thread may add more at any time
            while self._pictures:
                self._show(self._pictures.popleft())
            if isinstance(piece, bytes):
                self._lines.extend(orjson.dumps(line) for line in orjson.loads(b"[%s]" % piece))
            else:
                self._lines.append(encode_one(len(self._lines), piece))
        return self._lines

    def text(self) -> bytes:
        """Return the events so far as a JSON array."""
        # the same bytes as in the store, so that readers see no difference between running and stored rollouts
        return joined(self.lines).text

    async def follow(self, first: int = 0) -> AsyncGenerator[list[bytes], None]:
        """Yield lists of encoded events, from index `first` on, as events are added. Ends after the last event."""
        self._followers += 1
        try:
            while True:
                self._more.clear()
                done = self._closed
                lines = self.lines[first:]
                if lines:
                    first += len(lines)
                    yield lines
                elif done:
                    return
                else:
                    await self._more.wait()
        finally:
            self._followers -= 1
