"""A job's events as server-sent events: first the stored ones, then new ones as they occur, until the job ends.

    id: 3
    event: rl.train.step
    data: {"seq":3,"type":"rl.train.step",…}

A client whose stream was cut resumes it with `Last-Event-ID` or `since_seq`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import orjson

from taskapp_kit.jobs.server.job_views import event_view
from taskapp_kit.jobs.server.jobs import Jobs
from taskapp_kit.jobs.server.notifier import Page
from taskapp_kit.jobs.server.schema import JobEventRow
from taskapp_kit.net.sse import ALIVE, encode_frame

PAGE = 500


async def frames(jobs: Jobs, job_id: str, since_seq: int) -> AsyncGenerator[list[bytes], None]:
    """Yield the frames after event `since_seq`, page by page, until the job or the backend ends."""

    async def read(since: int) -> Page:
        over, page = await jobs.records.followed(job_id, since_seq=since, limit=PAGE)
        return over, [_frame(job_id, event) for event in page]

    last = max(since_seq, 0)
    yield [ALIVE]  # a proxy may hold back the headers until the first bytes of the body
    while True:
        notifier = jobs.notifiers.of(job_id)
        stopping = jobs.stopping
        over, page = await notifier.read_shared(last, read)
        last += len(page)  # event numbers have no gaps
        if page:
            yield page
        if len(page) == PAGE:
            continue
        if over or stopping:
            return
        await notifier.wait()


def _frame(job_id: str, event: JobEventRow) -> bytes:
    return b"".join(encode_frame(event.seq, event.event.type.encode(), orjson.dumps(event_view(job_id, event))))
