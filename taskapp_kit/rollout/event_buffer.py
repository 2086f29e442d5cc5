"""The events of one rollout while it is played: written by whoever plays, read by any number of followers.

Writing is cheap, for mostly nobody reads: events are encoded when somebody does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

import orjson

from taskapp_kit.contract.content import images
from taskapp_kit.contract.events import Event, Observed, Stepped, encode_one, joined


class EventBuffer:
    """Make it on the event loop. show: is given pictures (PNG bytes by hash) before the events that name them are read."""

    def __init__(self, show: Callable[[dict[str, bytes]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._show = show
        self._unread: deque[Event | bytes] = deque()
        self._lines: list[bytes] = []
        self._pictures: deque[dict[str, bytes]] = deque()
        self._followers = 0
        self._more = asyncio.Event()
        self._closed = False

    # -- for who plays --------------------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """One event, from whichever thread plays; one thread at a time."""
        observation = (
            event.observation
            if isinstance(event, Observed)
            else event.step.observation
            if isinstance(event, Stepped)
            else None
        )
        if type(observation) is list:  # a picture is encoded in this thread, never on the event loop
            self._pictures.append({picture.hash: picture.png for picture in images(observation)})
        self._unread.append(event)
        if self._followers:
            with suppress(RuntimeError):  # the loop is closed: nobody follows any more
                self._loop.call_soon_threadsafe(self._more.set)

    def take(self, piece: bytes, pictures: dict[str, bytes]) -> None:
        """Encoded events with commas between, and pictures, as a worker process sends them; on the event loop."""
        if pictures:
            self._pictures.append(pictures)
        self._unread.append(piece)
        self._more.set()

    def load(self, lines: list[bytes]) -> None:
        """The whole of a rollout that is over, in place of all that was told."""
        self._unread.clear()
        self._lines = lines

    def close(self) -> None:
        """Nothing more comes."""
        self._closed = True
        self._more.set()

    # -- for who reads, on the event loop -------------------------------------------------------------------------

    @property
    def lines(self) -> list[bytes]:
        """The events so far, each as JSON."""
        while self._unread:
            told = self._unread.popleft()
            while self._pictures:  # those of this event are there by now; a thread may add more at any time
                self._show(self._pictures.popleft())
            if isinstance(told, bytes):
                self._lines.extend(orjson.dumps(line) for line in orjson.loads(b"[%s]" % told))
            else:
                self._lines.append(encode_one(len(self._lines), told))
        return self._lines

    def text(self) -> bytes:
        """The events so far as a JSON array."""
        return joined(self.lines).text

    async def follow(self, first: int = 0) -> AsyncGenerator[list[bytes], None]:
        """The events from number `first` on, as they happen, in lists of those that are there; ends after the last."""
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
