"""Yields a job's events as they occur. They come from server-sent events, or from polling if no stream works.

The events have no gaps in `seq`: events that a stream skips are fetched, and duplicates are dropped. The iteration ends
when the backend reports that the job has ended and all events were yielded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from taskapp_kit.errors import BackendError, BackendUnreachable
from taskapp_kit.net.http import NoAnswer, read_json
from taskapp_kit.net.sse import Frame, FrameTooLarge, SseReader
from taskapp_kit.records.job_status import over, read_status

if TYPE_CHECKING:
    import aiohttp


log = logging.getLogger("taskapp_kit.jobs.client.stream")

SSE_FAMILIES = ("rl", "learning")
SILENCE_SECONDS = 45.0
"""A stream that sends no data and no comment for this long is considered broken."""
POLL_SECONDS = 2.0
PATIENCE_SECONDS = 600.0
STATUS_SECONDS = 30.0
"""How often the job itself is fetched, because a stream may stay open after the job ends or delay the last event."""
PAGE = 200
PAGES = 50
"""How many pages are fetched in a row."""
METRICS_PAGE = 1000
MAX_ROWS = 1_000_000
"""The maximum number of events or points in memory."""
LAST_WORDS = frozenset({"completed", "failed", "cancelled", "canceled", "succeeded"})


class JobReader(Protocol):
    """The methods of `BackendClient` that this module uses. They raise BackendError."""

    url: str

    def open_events(
        self, family: str, job_id: str, since_seq: int, *, silence_seconds: float
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Open an event stream and yield its response. Raises NoAnswer if the backend does not respond."""
        ...

    async def get_job(self, job_id: str) -> dict[str, Any]:
        """Return the job's status."""
        ...

    async def events(self, job_id: str, since_seq: int = 0, limit: int = 200) -> list[dict[str, Any]]:
        """Return at most `limit` events whose number is greater than `since_seq`."""
        ...

    async def metrics(self, job_id: str, after_step: int = -1, limit: int = 200) -> list[dict[str, Any]]:
        """Return at most `limit` points `{name, value, step, …}` of the steps after `after_step`."""
        ...


def hints_at_the_end(event: dict[str, Any]) -> bool:
    """Return whether this event may be the job's last. Even `rl.job.completed` may be about only a part of the job."""
    kind = event.get("type")
    return isinstance(kind, str) and kind.rpartition(".")[2] in LAST_WORDS


async def follow_events(
    client: JobReader,
    job_id: str,
    since_seq: int = 0,
    *,
    poll_seconds: float = POLL_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
    silence_seconds: float = SILENCE_SECONDS,
    status_seconds: float = STATUS_SECONDS,
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield every event after `since_seq`.

    A backend that does not respond or responds with 5xx may be restarting. After `patience_seconds`, this raises
    BackendUnreachable. It raises BackendError for any other error.
    """
    tracker = _Tracker(client, job_id, since_seq, patience_seconds)
    async with aclosing(_streamed(tracker, silence_seconds, status_seconds)) as streamed:
        async for event in streamed:
            yield event
    while not tracker.ended:
        for event in await tracker.round():
            yield event
        if not tracker.ended:
            await asyncio.sleep(poll_seconds)


async def _streamed(
    tracker: _Tracker, silence_seconds: float, status_seconds: float
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events of the first stream route that the backend supports, until the stream ends or breaks."""
    for family in SSE_FAMILIES:
        try:
            async with tracker.client.open_events(
                family, tracker.job_id, tracker.last, silence_seconds=silence_seconds
            ) as response:
                if response.status != 200 or "event-stream" not in response.headers.get("Content-Type", ""):
                    continue
                reader = SseReader()
                looked = time.monotonic()
                async for chunk in response.content.iter_any():
                    for frame in reader.feed(chunk):
                        for event in await tracker.take(frame):
                            yield event
                        if tracker.ended or tracker.broken:
                            return
                    if time.monotonic() - looked > status_seconds:
                        for event in await tracker.round(status_first=True):
                            yield event
                        if tracker.ended:
                            return
                        looked = time.monotonic()
                return
        except (NoAnswer, FrameTooLarge) as broken:
            log.info("the event stream of job %s broke (%s); polling instead", tracker.job_id, broken)
            return


class _Tracker:
    """The progress of a stream.

    Attributes:
        last: The number of the last event that was yielded.
        ended: Whether the job has ended and all its events were yielded.
        broken: Whether the stream skipped events that could not be fetched.
    """

    def __init__(self, client: JobReader, job_id: str, since_seq: int, patience_seconds: float) -> None:
        self.client = client
        self.job_id = job_id
        self.last = since_seq
        self.ended = self.broken = False
        self._from_the_start = since_seq == 0
        self._patience_seconds = patience_seconds
        self._silent_since: float | None = None

    async def take(self, frame: Frame) -> list[dict[str, Any]]:
        """Return the events that the stream skipped before a frame, followed by the frame's new events."""
        event = _event_of(frame)
        if event is None:
            return []
        seq = _seq(event)
        found: list[dict[str, Any]] = []
        if seq is None:
            found.append(event)
        elif seq > self.last + 1:
            try:
                if await self.fetch(found, up_to=seq):
                    self.broken = True
            except BackendError:
                self.broken = True
            if self.broken:  # later polls fetch the skipped events
                return found
        if seq is not None and self._is_new(seq):
            self._given(seq)
            found.append(event)
        if any(hints_at_the_end(item) for item in found):
            found += await self.round(status_first=True)
        return found

    async def round(self, *, status_first: bool = False) -> list[dict[str, Any]]:
        """Poll once: return the new events and update `ended`. Raises the same errors as `follow_events`."""
        found: list[dict[str, Any]] = []
        try:
            if not status_first:
                await self.fetch(found)
            if not found or status_first or any(hints_at_the_end(event) for event in found):
                job = read_status(await self.client.get_job(self.job_id), self.job_id)
                if over(job):
                    self.ended = not await self.fetch(found)  # events that occurred between the two requests
        except BackendError as error:
            self._tolerate(error)
        else:
            if self._silent_since is not None:
                log.warning("the backend responds again for job %s", self.job_id)
            self._silent_since = None
        return found

    async def fetch(self, found: list[dict[str, Any]], up_to: int | None = None, pages: int = PAGES) -> bool:
        """Add the next events to `found`, page by page. If a page fails, the earlier pages stay in `found`.

        Return True if there may be more events after the last page.
        """
        for _ in range(pages):
            page = await self.client.events(self.job_id, self.last, PAGE)
            before = len(found)
            for event in sorted((item for item in page if _seq(item) is not None), key=lambda item: _seq(item) or 0):
                seq = _seq(event)
                if seq is not None and self._is_new(seq):
                    self._given(seq)
                    found.append(event)
            if len(found) == before or (up_to is not None and self.last >= up_to):
                return False
        return True

    def _tolerate(self, error: BackendError) -> None:
        """Tolerate an unreachable backend. Raise the error if it is permanent or has lasted too long."""
        now = time.monotonic()
        may_pass = is_temporary(error)
        if self._silent_since is None:
            self._silent_since = now
            if may_pass:
                log.warning("the backend does not respond for job %s; retrying: %s", self.job_id, error.message)
        if not may_pass or now - self._silent_since > self._patience_seconds:
            raise error

    def _is_new(self, seq: int) -> bool:
        return seq > self.last or (self._from_the_start and seq == 0)

    def _given(self, seq: int) -> None:
        self.last = max(self.last, seq)
        self._from_the_start = False


def _seq(event: dict[str, Any]) -> int | None:
    value = event.get("seq")
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _event_of(frame: Frame) -> dict[str, Any] | None:
    """Return the event in a frame. If the event lacks a type or a number, use the frame's name and id."""
    try:
        event = read_json(frame.data)
    except ValueError:
        return None
    if not isinstance(event, dict):
        return None
    if "type" not in event and frame.event != "message":
        event["type"] = frame.event
    if "seq" not in event and frame.id.isdecimal() and len(frame.id) < 18:
        event["seq"] = int(frame.id)
    return event


async def all_events(client: JobReader, job_id: str, since_seq: int = 0) -> list[dict[str, Any]]:
    """Fetch all pages of events after `since_seq` and return the events. Raises BackendError if a request fails."""
    found: list[dict[str, Any]] = []
    tracker = _Tracker(client, job_id, since_seq, 0.0)
    while await tracker.fetch(found):
        _bound(found, client, "events")
    return found


def _bound(found: list[dict[str, Any]], client: JobReader, what: str) -> None:
    """Raise BackendError if a backend returns too many events or points for one job."""
    if len(found) > MAX_ROWS:
        raise BackendError(f"{client.url} returns more than {MAX_ROWS:,} {what} for one job.", status=200)


async def all_metrics(client: JobReader, job_id: str) -> list[dict[str, Any]]:
    """Fetch all pages of points and return the points. Raises BackendError if a request fails.

    A page may end in the middle of a step, so the next page starts with the same step and duplicates are dropped. A
    backend that returns only complete steps may return fewer points than requested, so only a page without new points
    is the last.
    """
    found: list[dict[str, Any]] = []
    known: set[bytes] = set()
    after = -1
    while True:
        page = await client.metrics(job_id, after, METRICS_PAGE)
        new = [point for point in page if orjson.dumps(point, option=orjson.OPT_SORT_KEYS) not in known]
        known.update(orjson.dumps(point, option=orjson.OPT_SORT_KEYS) for point in new)
        found += new
        _bound(found, client, "metrics")
        steps = [step for point in page if type(step := point.get("step")) is int]
        if not new or not steps:
            return found
        last = max(steps)
        after = last - 1 if last - 1 > after else last


def is_temporary(error: BackendError) -> bool:
    """Return whether the error may be temporary: the backend is unreachable, restarting or overloaded."""
    return isinstance(error, BackendUnreachable) or error.status >= 500 or error.status in (408, 429)
