"""Rows of the backend's tables as plain objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from taskapp_kit.backend.engine import Event, Point

QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED = "queued", "running", "succeeded", "failed", "cancelled"
ENDED = (SUCCEEDED, FAILED, CANCELLED)


@dataclass(frozen=True, slots=True)
class Job:
    """A row of `backend_jobs`, its JSON read. document: as `JobDocument` has it. completed: rollouts that are over.

    cancelling: somebody asked for its end. Times are unix seconds.
    """

    job_id: str
    org: str
    created_at: float
    updated_at: float
    status: str
    engine: str
    trainer_id: str
    model: str
    idempotency_key: str | None
    fingerprint: str
    document: Mapping[str, Any]
    state: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    results: Mapping[str, Any]
    total: int
    cancelling: bool
    final_reward: float | None
    error: str | None
    completed: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class Told:
    """An event as it was kept."""

    seq: int
    created_at: float
    event: Event


@dataclass(frozen=True, slots=True)
class Drawn:
    """A point as it was kept."""

    created_at: float
    point: Point


def read_job(row: Row[Any]) -> Job:
    """A row of `backend_jobs` with the column `completed`."""
    values = dict(row._mapping)
    for name in ("document", "state", "metrics", "results"):
        values[name] = json.loads(values[name])
    return Job(**values)


def read_told(row: Row[Any]) -> Told:
    """A row of `backend_events`."""
    return Told(row.seq, row.created_at, Event(row.type, row.message, row.level, json.loads(row.data)))


def read_drawn(row: Row[Any]) -> Drawn:
    """A row of `backend_points`."""
    return Drawn(row.created_at, Point(row.name, row.value, row.step, row.phase, row.epoch))


def written(value: Mapping[str, Any]) -> str:
    """JSON as it is kept. Raises TypeError, ValueError for what is none."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
