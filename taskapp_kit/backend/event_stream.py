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

from taskapp_kit.backend.jobs import Jobs
from taskapp_kit.backend.views import event_view

ALIVE_SECONDS = 15.0
"""After so much silence a comment is sent, so that nothing between us and the caller takes the stream for dead."""
ALIVE = b": alive\n\n"
PAGE = 500
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}


async def frames(
    jobs: Jobs, job_id: str, since_seq: int, *, alive_seconds: float = ALIVE_SECONDS
) -> AsyncIterator[bytes]:
    """The frames after event `since_seq`. Ends with the job, or when the backend stops."""
    last = since_seq
    yield ALIVE  # the head goes out at once, so that a caller knows that it is heard
    while True:
        bell = jobs.bell(job_id)
        job = await jobs.records.job(job_id)  # before the events: what it ended with is among them then
        page = await jobs.records.events(job_id, since_seq=last, limit=PAGE)
        for told in page:
            last = told.seq
            data = orjson.dumps(event_view(job_id, told))
            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (told.seq, told.event.type.encode(), data)
        if page:
            continue
        if job is None or job.ended or jobs.stopping:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(bell.wait(), alive_seconds)
            continue
        yield ALIVE
