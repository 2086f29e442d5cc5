"""Notifiers: who follows a job waits for its next one, and all who followed it from the same event on look once, together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

Page = tuple[bool, list[bytes]]
"""Whether the job is over, and the frames of a page of its events."""
KEPT = 50
"""A longer page is read anew by each who asks: it belongs to one who comes late."""


class Notifier:
    """Notifies once. Hold a reference while you wait: only a weak one is stored here."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self._looks: dict[int, asyncio.Task[Page]] = {}

    async def wait(self) -> None:
        """Until it rings."""
        await self._rung.wait()

    def ring(self) -> None:
        """Ends every wait."""
        self._rung.set()

    async def look(self, since_seq: int, read: Callable[[int], Awaitable[Page]]) -> Page:
        """What `read(since_seq)` gives. Nothing changes until a notification, so one reading does for all."""
        known = self._looks.get(since_seq)
        if known is None:
            known = self._looks[since_seq] = asyncio.ensure_future(_done(read(since_seq)))

            def over(done: asyncio.Task[Page]) -> None:
                if done.cancelled() or done.exception() is not None or len(done.result()[1]) > KEPT:
                    self._looks.pop(since_seq, None)

            known.add_done_callback(over)
        return await asyncio.shield(known)  # one who leaves does not take it away from the others


async def _done(reading: Awaitable[Page]) -> Page:
    return await reading


class Notifiers:
    """The notifier of each job."""

    def __init__(self) -> None:
        self._notifiers: WeakValueDictionary[str, Notifier] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._notifiers)

    def of(self, job_id: str) -> Notifier:
        """Rings at the next thing that happens to the job. Take it before you look, then wait."""
        return self._notifiers.setdefault(job_id, Notifier())

    def ring(self, job_id: str) -> None:
        """Something happened to the job, and is on disk."""
        notifier = self._notifiers.pop(job_id, None)
        if notifier is not None:
            notifier.ring()

    def ring_all(self) -> None:
        """Whoever waits looks again."""
        for job_id in list(self._notifiers):
            self.ring(job_id)
