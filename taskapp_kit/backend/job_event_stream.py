"""A job's events as server-sent events: those that were, then each as it happens, to the end of the job.

    id: 3
    event: rl.train.step
    data: {"seq":3,"type":"rl.train.step",…}

A stream that was cut goes on with `Last-Event-ID`, or with `since_seq`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import orjson

from taskapp_kit.backend.job_views import event_view
from taskapp_kit.backend.jobs import Jobs
from taskapp_kit.backend.notifier import Page
from taskapp_kit.backend.schema import JobEventRow

ALIVE_SECONDS = 15.0
"""After so much silence a comment is sent, so that nothing between us and the caller takes the stream for dead."""
ALIVE = b": alive\n\n"
PAGE = 500
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}


async def frames(
    jobs: Jobs, job_id: str, since_seq: int, *, alive_seconds: float = ALIVE_SECONDS
) -> AsyncIterator[bytes]:
    """The frames after event `since_seq`. Ends with the job, or when the backend stops."""

    async def read(since: int) -> Page:
        over, page = await jobs.records.followed(job_id, since_seq=since, limit=PAGE)
        return over, [_frame(job_id, told) for told in page]

    last = max(since_seq, 0)
    yield ALIVE  # the head goes out at once, so that a caller knows that it is heard
    while True:
        notifier = jobs.notifiers.of(job_id)
        stopping = jobs.stopping
        over, page = await notifier.look(last, read)
        for frame in page:
            last += 1  # they have no gaps
            yield frame
        if len(page) == PAGE:
            continue
        if over or stopping:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(notifier.wait(), alive_seconds)
            continue
        yield ALIVE


def _frame(job_id: str, told: JobEventRow) -> bytes:
    data = orjson.dumps(event_view(job_id, told))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (told.seq, told.event.type.encode(), data)
