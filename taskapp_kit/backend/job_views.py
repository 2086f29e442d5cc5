"""Jobs, events and points as they go over the wire."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from taskapp_kit.backend.schema import CurvePointRow, JobEventRow, JobRow

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
"""The events that a timeline is made of, and what it calls them."""


def moment(seconds: float) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def job_view(job: JobRow, *, updates_weights: bool = False) -> dict[str, Any]:
    """The status of a job."""
    return {
        "job_id": job.job_id,
        "id": job.job_id,
        "status": job.status,
        "job_type": "rl",
        "model": job.model or None,
        "trainer_id": job.trainer_id or None,
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


def event_view(job_id: str, told: JobEventRow) -> dict[str, Any]:
    """An event. seq: from 1 within its job, without gaps."""
    event = told.event
    return {
        "seq": told.seq,
        "type": event.type,
        "message": event.message,
        "level": event.level,
        "data": dict(event.data),
        "job_id": job_id,
        "created_at": moment(told.created_at),
    }


def events_view(job_id: str, events: Sequence[JobEventRow], since_seq: int) -> dict[str, Any]:
    """A page of events. last_seq: what to ask for next, as `since_seq`."""
    return {
        "events": [event_view(job_id, told) for told in events],
        "last_seq": events[-1].seq if events else since_seq,
    }


def point_view(job_id: str, drawn: CurvePointRow) -> dict[str, Any]:
    """A number of a curve."""
    point = drawn.point
    return {
        "name": point.name,
        "value": point.value,
        "step": point.step,
        "phase": point.phase,
        "epoch": point.epoch,
        "job_id": job_id,
        "created_at": moment(drawn.created_at),
    }


def timeline_view(job_id: str, events: Sequence[JobEventRow]) -> dict[str, Any]:
    """The phases that the job went through."""
    return {
        "events": [
            {"phase": PHASES[told.event.type], "created_at": moment(told.created_at), "job_id": job_id}
            for told in events
        ]
    }
