"""The response formats of jobs, events and points, and the stream of a job's events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from taskapp_kit.jobs.server.jobs import Jobs
from taskapp_kit.jobs.server.notifier import Page
from taskapp_kit.jobs.server.schema import CurvePointRow, JobEventRow, JobRow
from taskapp_kit.net.sse import ALIVE, encode_frame

PAGE = 500
"""How many events a stream reads at a time."""
PHASES = {
    "rl.job.created": "queued",
    "rl.train.started": "running",
    "rl.job.resumed": "resumed",
    "rl.eval.started": "evaluating",
    "rl.eval.summary": "evaluated",
    "rl.job.completed": "succeeded",
    "rl.job.failed": "failed",
    "rl.job.cancelled": "cancelled",
}
"""The phase that each event of the timeline begins."""


def moment(seconds: float) -> str:
    """Format a Unix time as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def job_view(job: JobRow, *, updates_weights: bool = False) -> dict[str, Any]:
    """Return a job's status for a response."""
    return {
        "job_id": job.job_id,
        "id": job.job_id,
        "status": job.status,
        "job_type": "rl",
        "model": job.model or None,
        "trainer_id": job.trainer_id or None,
        "tags": dict(job.tags),
        "engine": job.engine,
        "updates_weights": updates_weights,
        "created_at": moment(job.created_at),
        "updated_at": moment(job.updated_at),
        "progress": {"completed": job.completed, "total": job.total, "unit": "rollouts"},
        "metrics": dict(job.metrics),
        "final_reward": job.final_reward,
        "error": job.error,
        "results": dict(job.results),
    }


def event_view(job_id: str, row: JobEventRow) -> dict[str, Any]:
    """Return an event for a response.

    `seq` starts at 1 within each job and has no gaps. If the job later went back to a checkpoint before this event,
    `superseded_by` is the `seq` of the event that reports the return. The job then repeats this part.
    """
    event = row.event
    return {
        "seq": row.seq,
        "type": event.type,
        "message": event.message,
        "level": event.level,
        "data": dict(event.data),
        "superseded_by": row.superseded_by or None,
        "job_id": job_id,
        "created_at": moment(row.created_at),
    }


def events_view(job_id: str, events: Sequence[JobEventRow], since_seq: int) -> dict[str, Any]:
    """Return a page of events for a response. Its `last_seq` is the `since_seq` of the next request."""
    # There must not be a `next_seq`: the SDK's poller would continue from it before reading these events, and skip them.
    return {
        "events": [event_view(job_id, row) for row in events],
        "last_seq": events[-1].seq if events else since_seq,
    }


def point_view(job_id: str, row: CurvePointRow) -> dict[str, Any]:
    """Return a metric's point for a response."""
    point = row.point
    return {
        "name": point.name,
        "value": point.value,
        "step": point.step,
        "phase": point.phase,
        "epoch": point.epoch,
        "job_id": job_id,
        "created_at": moment(row.created_at),
    }


def timeline_view(job_id: str, events: Sequence[JobEventRow]) -> dict[str, Any]:
    """Return the phases that the job has reached."""
    return {
        "events": [
            {"phase": PHASES[row.event.type], "created_at": moment(row.created_at), "job_id": job_id} for row in events
        ]
    }


async def frames(jobs: Jobs, job_id: str, since_seq: int) -> AsyncGenerator[list[bytes], None]:
    """Yield pages of server-sent events after event `since_seq`, until the job ends or the backend stops.

    Stored events come first, then new events as they occur. An event looks like this:

        id: 3
        event: rl.train.step
        data: {"seq":3,"type":"rl.train.step",…}

    A client whose stream was cut resumes it with `Last-Event-ID` or `since_seq`.
    """

    async def read(since: int) -> Page:
        over, page = await jobs.records.followed(job_id, since_seq=since, limit=PAGE)
        return over, [_frame(job_id, event) for event in page]

    last = max(since_seq, 0)
    yield [ALIVE]  # a proxy may hold back the headers until the first bytes of the body
    while True:
        notifier = jobs.notifiers.of(job_id)
        stopping = jobs.stopping
        over, page = await notifier.read_shared(last, read)
        last += len(page)  # this is exact, because event numbers have no gaps
        if page:
            yield page
        if len(page) == PAGE:
            continue
        if over or stopping:
            return
        await notifier.wait()


def _frame(job_id: str, event: JobEventRow) -> bytes:
    return b"".join(encode_frame(event.seq, event.event.type.encode(), orjson.dumps(event_view(job_id, event))))
