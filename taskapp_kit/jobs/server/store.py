"""Reads and writes jobs, events, points, rollouts and keys. Each call is one transaction.

Writes are durable when a call returns. Error messages never contain the data that was being written.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, String, Table, case, cast, func, or_, select, update

from taskapp_kit.errors import RequestError, Saturated
from taskapp_kit.jobs.server import schema
from taskapp_kit.jobs.server.data_files import JobDatabase
from taskapp_kit.jobs.server.engine import PROGRESS, CurvePoint, Event, Phase, RolloutOutcome, repeated
from taskapp_kit.jobs.server.schema import (
    CANCELLED,
    ENDED,
    ENV_KEYS,
    EVENTS,
    FAILED,
    JOBS,
    MINTED,
    POINTS,
    QUEUED,
    ROLLOUTS,
    CurvePointRow,
    IterationRow,
    JobEventRow,
    JobRow,
    event_values,
    read_event,
    read_job,
    read_point,
    written,
)

T = TypeVar("T")
P = ParamSpec("P")

MAX_KEYS = 64
"""How many sealed keys an organization may store."""


def _write(
    method: Callable[Concatenate[JobStore, Connection, P], T], *, writes: bool = True
) -> Callable[Concatenate[JobStore, P], Coroutine[Any, Any, T]]:
    """Decorate a method so that it is asynchronous and runs in one transaction. Callers do not pass the connection."""

    @wraps(method)
    async def run(store: JobStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store._place.transact(lambda connection: method(store, connection, *args, **kwargs), writes=writes)

    return run


def _read(
    method: Callable[Concatenate[JobStore, Connection, P], T],
) -> Callable[Concatenate[JobStore, P], Coroutine[Any, Any, T]]:
    """Decorate a method that only reads, as `_write` does for other methods."""
    return _write(method, writes=False)


class JobStore:
    """The tables in the database `place`, which `close` closes. Every method raises StoreError if the store fails."""

    def __init__(self, place: JobDatabase, now: Callable[[], float] = time.time) -> None:
        self._place = place
        self._now = now
        place.transact_now(lambda connection: schema.migrate(connection, place.database.place), writes=True)

    async def close(self) -> None:
        """Finish waiting writes, then close the file. A second call does nothing."""
        await asyncio.to_thread(self._place.close)

    # Jobs

    async def add(
        self, job: JobRow, document: Mapping[str, Any], *events: Event, most: int | None = None
    ) -> JobRow | None:
        """Store a new job and its first events. If its org has a job with the same idempotency key, only return that job.

        document: The request. most: How many unfinished jobs the org may have. If it has that many, raise Saturated.
        """
        values: dict[str, Any] = {name: getattr(job, name) for name in JobRow.__slots__}
        values |= {"document": written(document), "state": "{}"}
        values |= {name: written(getattr(job, name)) for name in ("metrics", "results", "tags")}
        rows = [event_values(event) for event in events]

        def work(connection: Connection) -> JobRow | None:
            if job.idempotency_key is not None:
                known = _submitted(connection, job.org, job.idempotency_key)
                if known is not None:
                    return known
            if most is not None:
                _check_unfinished(connection, job.org, most)
            connection.execute(JOBS.insert().values(values))
            self._insert_events(connection, job.job_id, rows)
            return None

        return await self._place.transact(work, writes=True)

    @_read
    def job(self, connection: Connection, job_id: str, org: str | None = None) -> JobRow | None:
        """Return the job, or None if it does not exist or belongs to another org."""
        asked = _jobs().where(JOBS.c.job_id == job_id)
        row = connection.execute(asked if org is None else asked.where(JOBS.c.org == org)).first()
        return None if row is None else read_job(row)

    @_read
    def submitted(self, connection: Connection, org: str, idempotency_key: str) -> JobRow | None:
        """Return the org's job with this idempotency key, or None if it does not exist."""
        return _submitted(connection, org, idempotency_key)

    @_read
    def work(self, connection: Connection, job_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the request and the engine's state of an existing job."""
        row = connection.execute(select(JOBS.c.document, JOBS.c.state).where(JOBS.c.job_id == job_id)).one()
        return json.loads(row.document), json.loads(row.state)

    @_write
    def move(
        self, connection: Connection, job_id: str, task_app_url: str, urls: Mapping[str, str] | None = None
    ) -> None:
        """Change a job's task app addresses. urls: The address for each `task_app` in `[rollout] environments`."""
        document = connection.execute(select(JOBS.c.document).where(JOBS.c.job_id == job_id)).scalar_one()
        moved = {**json.loads(document), "task_app_url": task_app_url}
        for each in (moved["config"].get("rollout") or {}).get("environments") or ():
            if urls is not None and each.get("task_app") in urls:
                each["task_url"] = urls[each["task_app"]]
        connection.execute(update(JOBS).where(JOBS.c.job_id == job_id).values(document=written(moved)))

    @_read
    def jobs(
        self,
        connection: Connection,
        org: str,
        *,
        limit: int,
        status: str | None = None,
        model: str | None = None,
        tags: Sequence[tuple[str, str | None]] = (),
        after: str | None = None,
    ) -> list[JobRow]:
        """Return the org's jobs without results, newest first.

        tags: Return only jobs with all of these tags. A value of None matches any value. after: Return only jobs that
        are older than the job with this id.
        """
        asked = _jobs(results=False).where(JOBS.c.org == org)
        if status is not None:
            asked = asked.where(JOBS.c.status == status)
        if model is not None:
            asked = asked.where(JOBS.c.model == model)
        for name, value in tags:
            asked = asked.where(_has_tag(name, value))
        if after is not None:
            mark = select(JOBS.c.created_at).where(JOBS.c.job_id == after, JOBS.c.org == org).scalar_subquery()
            asked = asked.where((JOBS.c.created_at < mark) | ((JOBS.c.created_at == mark) & (JOBS.c.job_id < after)))
        rows = connection.execute(asked.order_by(JOBS.c.created_at.desc(), JOBS.c.job_id.desc()).limit(limit))
        return [read_job(row) for row in rows]

    @_read
    def unfinished(self, connection: Connection) -> list[JobRow]:
        """Return all jobs whose status is queued or running, of all orgs, oldest first."""
        asked = _jobs(results=False).where(JOBS.c.status.not_in(ENDED)).order_by(JOBS.c.created_at, JOBS.c.job_id)
        return [read_job(row) for row in connection.execute(asked)]

    async def write(
        self,
        job_id: str,
        *events: Event,
        points: Sequence[CurvePoint] = (),
        state: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float | None] | None = None,
        **columns: Any,
    ) -> bool:
        """Write events, points and changes of the job's row in one transaction.

        If the job has ended, write nothing and return False. Raises TypeError or ValueError for values that cannot be
        encoded as JSON. Don't retry after these errors, because the store is not the cause.
        """
        rows = [event_values(event) for event in events]
        values = dict(columns)
        for name, value in (("state", state), ("metrics", metrics), ("results", columns.get("results"))):
            if value is not None:
                values[name] = written(value)

        def work(connection: Connection) -> bool:
            if _is_over(connection, job_id):
                return False
            last = self._insert_events(connection, job_id, rows)
            now = self._now()
            for point in points:
                key = (POINTS.c.job_id == job_id, POINTS.c.step == point.step, POINTS.c.name == point.name)
                if connection.execute(select(POINTS.c.step).where(*key, _counts(POINTS))).first() is None:
                    found = {name: getattr(point, name) for name in point.__slots__}
                    more = {"created_at": now, "after_seq": last, "superseded_by": 0}
                    connection.execute(POINTS.insert().values(job_id=job_id, **more, **found))
            connection.execute(update(JOBS).where(JOBS.c.job_id == job_id).values(updated_at=now, **values))
            return True

        return await self._place.transact(work, writes=True)

    def _insert_events(self, connection: Connection, job_id: str, rows: Sequence[Mapping[str, Any]]) -> int:
        """Store the events and return the number of the last one."""
        last = _position(connection, job_id)
        for seq, row in enumerate(rows, last + 1):
            connection.execute(EVENTS.insert().values(job_id=job_id, seq=seq, created_at=self._now(), **row))
        return last + len(rows)

    async def restart(self, job_id: str, event: Event, *, most: int) -> bool:
        """Queue a failed or cancelled job again. Return False if the job has another status.

        most: How many unfinished jobs the org may have. If it has that many, raise Saturated.
        """
        row = event_values(event)

        def work(connection: Connection) -> bool:
            job = connection.execute(select(JOBS.c.org, JOBS.c.status).where(JOBS.c.job_id == job_id)).first()
            if job is None or job.status not in (FAILED, CANCELLED):
                return False
            _check_unfinished(connection, job.org, most)
            self._insert_events(connection, job_id, [row])
            values = {"status": QUEUED, "cancelling": False, "error": None, "updated_at": self._now()}
            connection.execute(update(JOBS).where(JOBS.c.job_id == job_id).values(values))
            return True

        return await self._place.transact(work, writes=True)

    @_read
    def position(self, connection: Connection, job_id: str) -> int:
        """Return the number of the job's last event, or 0 before the first event."""
        return _position(connection, job_id)

    async def supersede(
        self,
        job_id: str,
        after: int,
        *events: Event,
        state: Mapping[str, Any],
        metrics: Mapping[str, float | None],
        **columns: Any,
    ) -> bool:
        """See `Ledger.supersede`.

        If the job has ended, write nothing and return False. Raises the same errors as `write`.
        """
        rows = [event_values(event) for event in events]
        values = {**columns, "state": written(state), "metrics": written(metrics)}

        def work(connection: Connection) -> bool:
            if _is_over(connection, job_id):
                return False
            mark = {"superseded_by": _position(connection, job_id) + 1}
            conditions = {
                EVENTS: (EVENTS.c.seq > after, or_(*(EVENTS.c.type.startswith(each) for each in PROGRESS))),
                POINTS: (POINTS.c.after_seq > after,),  # including the events of the same report
                ROLLOUTS: (ROLLOUTS.c.after_seq >= after,),  # a rollout is stored before the report that includes it
            }
            for table, later in conditions.items():
                connection.execute(update(table).where(table.c.job_id == job_id, _counts(table), *later).values(mark))
            self._insert_events(connection, job_id, rows)
            counted = select(func.count()).select_from(ROLLOUTS).where(ROLLOUTS.c.job_id == job_id, _counts(ROLLOUTS))
            more = {"updated_at": self._now(), "completed": counted.scalar_subquery()}
            connection.execute(update(JOBS).where(JOBS.c.job_id == job_id).values({**values, **more}))
            return True

        return await self._place.transact(work, writes=True)

    # Events, points and rollouts of a job

    async def events(self, job_id: str, *, since_seq: int, limit: int) -> list[JobEventRow]:
        """Return at most `limit` events after number `since_seq`, in order."""
        return (await self.followed(job_id, since_seq=since_seq, limit=limit))[1]

    @_read
    def followed(
        self, connection: Connection, job_id: str, *, since_seq: int, limit: int
    ) -> tuple[bool, list[JobEventRow]]:
        """Return whether the job has ended, and the next events after `since_seq`, from one transaction."""
        asked = select(EVENTS).where(EVENTS.c.job_id == job_id, EVENTS.c.seq > since_seq)
        rows = connection.execute(asked.order_by(EVENTS.c.seq).limit(limit))
        return _is_over(connection, job_id), [read_event(row) for row in rows]

    @_read
    def last_events(self, connection: Connection, job_id: str, types: Sequence[str], limit: int) -> list[JobEventRow]:
        """Return the `limit` latest events of these types, oldest first. Superseded events are ignored."""
        asked = select(EVENTS).where(EVENTS.c.job_id == job_id, EVENTS.c.type.in_(types), _counts(EVENTS))
        rows = connection.execute(asked.order_by(EVENTS.c.seq.desc()).limit(limit)).all()
        return [read_event(row) for row in reversed(rows)]

    @_read
    def points(self, connection: Connection, job_id: str, *, after_step: int | None, limit: int) -> list[CurvePointRow]:
        """Return the points of the first steps after `after_step`, or of the last steps if it is None.

        Steps are never split, because callers continue after the last step that they received. The total is at most
        `limit` points, unless a single step has more.
        """
        steps = (
            select(POINTS.c.step, func.count().label("size"))
            .where(POINTS.c.job_id == job_id, _counts(POINTS))
            .group_by(POINTS.c.step)
            .limit(limit)
        )
        if after_step is None:
            steps = steps.order_by(POINTS.c.step.desc())
        else:
            steps = steps.where(POINTS.c.step > after_step).order_by(POINTS.c.step)
        fitting: list[int] = []
        size = 0
        for step, count in connection.execute(steps):
            size += count
            if fitting and size > limit:
                break
            fitting.append(step)
        asked = select(POINTS).where(POINTS.c.job_id == job_id, POINTS.c.step.in_(fitting), _counts(POINTS))
        rows = connection.execute(asked.order_by(POINTS.c.step, POINTS.c.phase.desc(), POINTS.c.name))
        return [read_point(row) for row in rows]

    @_read
    def curves(self, connection: Connection, job_id: str, *, most: int) -> list[CurvePointRow]:
        """Return the points that are not superseded, by step, for at most `most` evenly spaced steps per phase."""
        steps = select(POINTS.c.phase, POINTS.c.step).where(POINTS.c.job_id == job_id, _counts(POINTS)).distinct()
        by_phase: dict[str, list[int]] = {}
        for phase, step in connection.execute(steps.order_by(POINTS.c.step.desc())):
            by_phase.setdefault(phase, []).append(step)
        chosen = {(phase, step) for phase, found in by_phase.items() for step in found[:: math.ceil(len(found) / most)]}
        wanted = POINTS.c.step.in_({step for _, step in chosen})
        asked = select(POINTS).where(POINTS.c.job_id == job_id, _counts(POINTS), wanted)
        rows = connection.execute(asked.order_by(POINTS.c.step, POINTS.c.name))
        return [read_point(row) for row in rows if (row.phase, row.step) in chosen]

    @_write
    def store(self, connection: Connection, job_id: str, rollout: RolloutOutcome) -> RolloutOutcome:
        """Store one rollout and return it as stored. If its place is taken or the job has ended, nothing is written.

        The rollout is stored as failed if another rollout of the job has the same `rollout_id`, because an episode
        counts only once.
        """
        counts = rollout
        if rollout.rollout_id and not rollout.failed:
            same = select(ROLLOUTS.c.phase, ROLLOUTS.c.iteration, ROLLOUTS.c.place, ROLLOUTS.c.sample).where(
                ROLLOUTS.c.job_id == job_id,
                ROLLOUTS.c.rollout_id == rollout.rollout_id,
                ROLLOUTS.c.status != "failed",
                _counts(ROLLOUTS),
            )
            place = (rollout.phase, rollout.iteration, rollout.place, rollout.sample)
            first = next((tuple(row) for row in connection.execute(same) if tuple(row) != place), None)
            if first is not None:
                counts = repeated(rollout, *first)
        values = {name: getattr(counts, name) for name in counts.__slots__} | {"scores": written(counts.scores)}
        key = [
            ROLLOUTS.c[name] == value
            for name, value in values.items()
            if name in ("phase", "iteration", "place", "sample")
        ]
        known = select(ROLLOUTS.c.sample).where(ROLLOUTS.c.job_id == job_id, _counts(ROLLOUTS), *key)
        if connection.execute(known).first() is not None:
            return counts
        now = self._now()
        if _is_over(connection, job_id):
            return counts
        columns = {"job_id": job_id, "after_seq": _position(connection, job_id), "superseded_by": 0}
        connection.execute(ROLLOUTS.insert().values(created_at=now, **columns, **values))
        more = {"updated_at": now, "completed": JOBS.c.completed + 1}
        connection.execute(update(JOBS).where(JOBS.c.job_id == job_id).values(more))
        return counts

    @_read
    def stored(self, connection: Connection, job_id: str, phase: Phase, iteration: int) -> list[RolloutOutcome]:
        """Return the rollouts of one phase of one iteration, ordered by place and sample."""
        asked = (
            select(ROLLOUTS)
            .where(ROLLOUTS.c.job_id == job_id, ROLLOUTS.c.phase == phase, ROLLOUTS.c.iteration == iteration)
            .where(_counts(ROLLOUTS))
            .order_by(ROLLOUTS.c.place, ROLLOUTS.c.sample)
        )
        return [
            RolloutOutcome(
                **{name: getattr(row, name) for name in RolloutOutcome.__slots__} | {"scores": json.loads(row.scores)}
            )
            for row in connection.execute(asked)
        ]

    @_read
    def iterations(self, connection: Connection, job_id: str) -> list[IterationRow]:
        """Return the phases of all iterations that have rollouts, in the order in which they began."""
        failed = func.sum(case((ROLLOUTS.c.status == "failed", 1), else_=0))
        asked = (
            select(
                ROLLOUTS.c.phase,
                ROLLOUTS.c.iteration,
                func.count(),
                failed,
                func.count(ROLLOUTS.c.reward),
                func.avg(ROLLOUTS.c.reward),
                func.avg(ROLLOUTS.c.seconds),
            )
            .where(ROLLOUTS.c.job_id == job_id, _counts(ROLLOUTS))
            .group_by(ROLLOUTS.c.phase, ROLLOUTS.c.iteration)
            .order_by(func.min(ROLLOUTS.c.created_at), ROLLOUTS.c.iteration)
        )
        return [
            IterationRow(phase, iteration, count, lost, count - lost - scored, reward, seconds)
            for phase, iteration, count, lost, scored, reward, seconds in connection.execute(asked)
        ]

    # Sealed keys of task apps

    @_write
    def put_key(self, connection: Connection, org: str, name: str, key_id: str, ciphertext: str) -> float:
        """Store the sealed key and return the current Unix time. The key replaces an earlier key with the same name.

        Raises RequestError if the org has too many keys.
        """
        now = self._now()
        connection.execute(ENV_KEYS.delete().where(ENV_KEYS.c.org == org, ENV_KEYS.c.name == name))
        held = select(func.count()).select_from(ENV_KEYS).where(ENV_KEYS.c.org == org)
        if connection.execute(held).scalar_one() >= MAX_KEYS:
            raise RequestError(
                f"The limit of {MAX_KEYS} keys is reached.", code="too_many_keys", hint="Replace one of them."
            )
        values = {"org": org, "name": name, "key_id": key_id, "ciphertext": ciphertext, "updated_at": now}
        connection.execute(ENV_KEYS.insert().values(values))
        return now

    @_read
    def keys(self, connection: Connection, org: str) -> list[tuple[str, str]]:
        """Return the name and the ciphertext of each key of this org, ordered by name."""
        asked = select(ENV_KEYS.c.name, ENV_KEYS.c.ciphertext).where(ENV_KEYS.c.org == org)
        return [(row.name, row.ciphertext) for row in connection.execute(asked.order_by(ENV_KEYS.c.name))]

    # Keys of the backend

    def minted(self, org: str | None) -> set[str]:
        """Record that `org`, unless it is None, has a key, and return all recorded organizations. Blocks the thread."""

        def work(connection: Connection) -> set[str]:
            known = set(connection.execute(select(MINTED.c.org)).scalars())
            if org is not None and org not in known:
                connection.execute(MINTED.insert().values(org=org))
            return known if org is None else known | {org}

        return self._place.transact_now(work, writes=True)


def _counts(table: Table) -> ColumnElement[bool]:
    """Return the SQL condition for rows that are not superseded."""
    return table.c.superseded_by == 0


def _has_tag(name: str, value: str | None) -> ColumnElement[bool]:
    """Return the SQL condition for jobs with a tag. If `value` is not None, the tag must have this value."""
    each = func.json_each(JOBS.c.tags).table_valued("key", "value", "type")
    asked = select(each.c.key).where(each.c.key == name)
    if value is not None:
        # as a string, because a float cannot represent every large integer
        same = each.c.type.in_(("text", "integer")) & (cast(each.c.value, String) == value)
        if value in ("true", "false"):
            same |= each.c.type == value
        with contextlib.suppress(ValueError):
            same |= each.c.type.in_(("integer", "real")) & (each.c.value == float(value))
        asked = asked.where(same)
    return asked.exists()


def _is_over(connection: Connection, job_id: str) -> bool:
    """Return whether the job has ended, or does not exist."""
    status = connection.execute(select(JOBS.c.status).where(JOBS.c.job_id == job_id)).scalar_one_or_none()
    return status is None or status in ENDED


def _position(connection: Connection, job_id: str) -> int:
    asked = select(func.max(EVENTS.c.seq)).where(EVENTS.c.job_id == job_id)
    return connection.execute(asked).scalar_one() or 0


def _check_unfinished(connection: Connection, org: str, most: int) -> None:
    asked = select(func.count()).select_from(JOBS).where(JOBS.c.org == org, JOBS.c.status.not_in(ENDED))
    if connection.execute(asked).scalar_one() >= most:
        raise Saturated(f"This key has {most} unfinished jobs, the maximum. Cancel one.", retry_after_seconds=60)


def _submitted(connection: Connection, org: str, idempotency_key: str) -> JobRow | None:
    row = connection.execute(_jobs().where(JOBS.c.org == org, JOBS.c.idempotency_key == idempotency_key)).first()
    return None if row is None else read_job(row)


def _jobs(*, results: bool = True) -> Select[Any]:
    names = [name for name in JobRow.__slots__ if results or name != "results"]
    return select(*(JOBS.c[name] for name in names))
