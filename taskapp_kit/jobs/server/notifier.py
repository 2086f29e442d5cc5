"""Wakes the followers of a job when an event is stored. Followers at the same position share one read of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

Page = tuple[bool, list[bytes]]
"""Whether the job has ended, and the frames of a page of its events."""
MAX_SHARED_FRAMES = 50
"""The largest page, in frames, that followers share. A follower with a longer page is far behind the others."""


class Notifier:
    """A notification that is sent once.

    Keep a reference while you wait, because Notifiers only has a weak reference.
    """

    def __init__(self) -> None:
        self._notified = asyncio.Event()
        self._reads: dict[int, asyncio.Task[Page]] = {}

    async def wait(self) -> None:
        """Wait for the notification."""
        await self._notified.wait()

    def notify(self) -> None:
        """Wake every waiting follower."""
        self._notified.set()

    async def read_shared(self, since_seq: int, read: Callable[[int], Awaitable[Page]]) -> Page:
        """Return the result of `read(since_seq)`. Calls with the same number share one read, because the job has no new
        events until this notification is sent.
        """
        reading = self._reads.get(since_seq)
        if reading is None:
            reading = self._reads[since_seq] = asyncio.ensure_future(_done(read(since_seq)))

            def forget_if_unshared(done: asyncio.Task[Page]) -> None:
                if done.cancelled() or done.exception() is not None or len(done.result()[1]) > MAX_SHARED_FRAMES:
                    self._reads.pop(since_seq, None)

            reading.add_done_callback(forget_if_unshared)
        return await asyncio.shield(reading)  # a follower that disconnects must not cancel the read for the others


async def _done(reading: Awaitable[Page]) -> Page:
    return await reading


class Notifiers:
    """The notifier of each job."""

    def __init__(self) -> None:
        self._notifiers: WeakValueDictionary[str, Notifier] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._notifiers)

    def of(self, job_id: str) -> Notifier:
        """Return the notifier of the job's next event. Call this before reading the store, then wait."""
        return self._notifiers.setdefault(job_id, Notifier())

    def notify(self, job_id: str) -> None:
        """Wake the job's followers. Call this after an event was stored."""
        notifier = self._notifiers.pop(job_id, None)
        if notifier is not None:
            notifier.notify()

    def notify_all(self) -> None:
        """Wake the followers of all jobs."""
        for job_id in list(self._notifiers):
            self.notify(job_id)
