"""Jobs and all that belongs to them, written and read: one thread, one transaction for each call.

What a call wrote is on disk when it returns. The text of a failure never holds what was being written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, func, select, update

from taskapp_kit.backend import tables
from taskapp_kit.backend.engine import Event, Phase, Played, Point
from taskapp_kit.backend.files import Place
from taskapp_kit.backend.rows import ENDED, Drawn, Job, Told, read_drawn, read_job, read_told, written
from taskapp_kit.backend.tables import ENV_KEYS, EVENTS, JOBS, POINTS, ROLLOUTS
from taskapp_kit.errors import StoreError
from taskapp_kit.store.sqlite_file import explain

T = TypeVar("T")


class Records:
    """The tables in `place`, which it closes in the end. Every method raises StoreError."""

    def __init__(self, place: Place, now: Callable[[], float] = time.time) -> None:
        self._place = place
        self._now = now
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="taskapp-backend-records")
        self._closed = False
        try:
            with place.database.writer.begin() as connection:
                tables.migrate(connection, place.database.place)
        except StoreError:
            raise
        except Exception as fault:
            raise explain(fault, place.database.place, "open") from fault

    async def close(self) -> None:
        """Writes what waits, then closes the file. A second call does nothing."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._thread.shutdown)
            self._place.close()

    async def _do(self, work: Callable[[Connection], T], *, writes: bool = True) -> T:
        """`work` in a transaction. It is done even when the caller is cancelled meanwhile."""
        if self._closed:
            raise StoreError("The backend's store is closed.", hint="Start the backend again.")
        return await asyncio.shield(
            asyncio.get_running_loop().run_in_executor(self._thread, self._transact, work, writes)
        )

    def _transact(self, work: Callable[[Connection], T], writes: bool) -> T:
        database = self._place.database
        try:
            database.same_file()
            if not writes:
                with database.readers.begin() as connection:
                    return work(connection)
            with database.writing, database.writer.begin() as connection:
                return work(connection)
        except StoreError:
            raise
        except Exception as fault:
            raise explain(fault, database.place, "write" if writes else "read") from fault

    # Jobs

    async def add(self, job: Job, *events: Event) -> Job | None:
        """Keeps a new job and its first events. Answers the job that its org has under the same idempotency key."""

        def work(connection: Connection) -> Job | None:
            if job.idempotency_key is not None:
                known = connection.execute(
                    _jobs().where(JOBS.c.org == job.org, JOBS.c.idempotency_key == job.idempotency_key)
                ).first()
                if known is not None:
                    return read_job(known)
            values = {column.name: getattr(job, column.name) for column in JOBS.columns}
            for name in ("document", "state", "metrics", "results"):
                values[name] = written(values[name])
            connection.execute(JOBS.insert().values(values))
            self._tell(connection, job.job_id, events)
            return None

        return await self._do(work)

    async def job(self, job_id: str, org: str | None = None) -> Job | None:
        """The job; None when there is none, or it is another org's."""

        def work(connection: Connection) -> Job | None:
            asked = _jobs().where(JOBS.c.job_id == job_id)
            row = connection.execute(asked if org is None else asked.where(JOBS.c.org == org)).first()
            return None if row is None else read_job(row)

        return await self._do(work, writes=False)

    async def jobs(
        self, org: str, *, limit: int, status: str | None = None, model: str | None = None, after: str | None = None
    ) -> list[Job]:
        """Those of this org, the newest first. after: only older ones than the job of this id."""

        def work(connection: Connection) -> list[Job]:
            asked = _jobs().where(JOBS.c.org == org)
            if status is not None:
                asked = asked.where(JOBS.c.status == status)
            if model is not None:
                asked = asked.where(JOBS.c.model == model)
            if after is not None:
                mark = select(JOBS.c.created_at).where(JOBS.c.job_id == after, JOBS.c.org == org).scalar_subquery()
                asked = asked.where(
                    (JOBS.c.created_at < mark) | ((JOBS.c.created_at == mark) & (JOBS.c.job_id < after))
                )
            rows = connection.execute(asked.order_by(JOBS.c.created_at.desc(), JOBS.c.job_id.desc()).limit(limit))
            return [read_job(row) for row in rows]

        return await self._do(work, writes=False)

    async def unfinished(self) -> list[Job]:
        """Every job that is queued or was running, of any org, the oldest first."""

        def work(connection: Connection) -> list[Job]:
            asked = _jobs().where(JOBS.c.status.not_in(ENDED)).order_by(JOBS.c.created_at, JOBS.c.job_id)
            return [read_job(row) for row in connection.execute(asked)]

        return await self._do(work, writes=False)

    async def waiting(self, org: str) -> int:
        """How many jobs of this org are not over."""

        def work(connection: Connection) -> int:
            asked = select(func.count()).select_from(JOBS).where(JOBS.c.org == org, JOBS.c.status.not_in(ENDED))
            return int(connection.execute(asked).scalar_one())

        return await self._do(work, writes=False)

    async def write(
        self,
        job_id: str,
        *events: Event,
        points: Sequence[Point] = (),
        state: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float | None] | None = None,
        unless_ended: bool = True,
        **columns: Any,
    ) -> bool:
        """Events, points and what changes of the job's row, in one transaction.

        Writes nothing, and answers False, for a job that is over: it ends once.
        """

        def work(connection: Connection) -> bool:
            status = connection.execute(select(JOBS.c.status).where(JOBS.c.job_id == job_id)).scalar_one_or_none()
            if status is None or (unless_ended and status in ENDED):
                return False
            self._tell(connection, job_id, events)
            now = self._now()
            for point in points:
                key = (POINTS.c.job_id == job_id, POINTS.c.step == point.step, POINTS.c.name == point.name)
                if connection.execute(select(POINTS.c.step).where(*key)).first() is None:
                    connection.execute(
                        POINTS.insert().values(
                            job_id=job_id, created_at=now, **{name: getattr(point, name) for name in point.__slots__}
                        )
                    )
            values = dict(columns)
            if state is not None:
                values["state"] = written(state)
            if metrics is not None:
                values["metrics"] = written(metrics)
            if "results" in values:
                values["results"] = written(values["results"])
            connection.execute(update(JOBS).where(JOBS.c.job_id == job_id).values(updated_at=now, **values))
            return True

        return await self._do(work)

    def _tell(self, connection: Connection, job_id: str, events: Sequence[Event]) -> None:
        last = connection.execute(select(func.max(EVENTS.c.seq)).where(EVENTS.c.job_id == job_id)).scalar_one() or 0
        for seq, event in enumerate(events, last + 1):
            connection.execute(
                EVENTS.insert().values(
                    job_id=job_id,
                    seq=seq,
                    created_at=self._now(),
                    type=event.type,
                    level=event.level,
                    message=event.message,
                    data=written(event.data),
                )
            )

    # What belongs to a job

    async def events(self, job_id: str, *, since_seq: int, limit: int) -> list[Told]:
        """Those after number `since_seq`, in order."""

        def work(connection: Connection) -> list[Told]:
            asked = select(EVENTS).where(EVENTS.c.job_id == job_id, EVENTS.c.seq > since_seq)
            return [read_told(row) for row in connection.execute(asked.order_by(EVENTS.c.seq).limit(limit))]

        return await self._do(work, writes=False)

    async def events_of(self, job_id: str, types: Sequence[str]) -> list[Told]:
        """All of these types, in order."""

        def work(connection: Connection) -> list[Told]:
            asked = select(EVENTS).where(EVENTS.c.job_id == job_id, EVENTS.c.type.in_(types))
            return [read_told(row) for row in connection.execute(asked.order_by(EVENTS.c.seq))]

        return await self._do(work, writes=False)

    async def points(self, job_id: str, *, after_step: int | None, limit: int) -> list[Drawn]:
        """Points by step: the first ones after `after_step`, or the last ones when it is None.

        A step is given whole or not at all, unless it alone has more than `limit` points: a caller goes on after the
        last step that it saw.
        """

        def work(connection: Connection) -> list[Drawn]:
            steps = (
                select(POINTS.c.step, func.count().label("size"))
                .where(POINTS.c.job_id == job_id)
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
            asked = select(POINTS).where(POINTS.c.job_id == job_id, POINTS.c.step.in_(fitting))
            rows = connection.execute(asked.order_by(POINTS.c.step, POINTS.c.phase.desc(), POINTS.c.name))
            return [read_drawn(row) for row in rows]

        return await self._do(work, writes=False)

    async def keep(self, job_id: str, rollout: Played) -> None:
        """One rollout; nothing when its place is taken or the job is over."""

        def work(connection: Connection) -> None:
            values = {name: getattr(rollout, name) for name in rollout.__slots__}
            key = [
                ROLLOUTS.c[name] == value
                for name, value in values.items()
                if name in ("phase", "iteration", "place", "sample")
            ]
            known = select(ROLLOUTS.c.sample).where(ROLLOUTS.c.job_id == job_id, *key)
            if connection.execute(known).first() is not None:
                return
            now = self._now()
            connection.execute(ROLLOUTS.insert().values(job_id=job_id, created_at=now, **values))
            connection.execute(update(JOBS).where(JOBS.c.job_id == job_id).values(updated_at=now))

        await self._do(work)

    async def played(self, job_id: str, phase: Phase, iteration: int) -> list[Played]:
        """The rollouts of one phase of one iteration, by place and sample."""

        def work(connection: Connection) -> list[Played]:
            asked = (
                select(ROLLOUTS)
                .where(ROLLOUTS.c.job_id == job_id, ROLLOUTS.c.phase == phase, ROLLOUTS.c.iteration == iteration)
                .order_by(ROLLOUTS.c.place, ROLLOUTS.c.sample)
            )
            return [
                Played(**{name: getattr(row, name) for name in Played.__slots__}) for row in connection.execute(asked)
            ]

        return await self._do(work, writes=False)

    # Keys of task apps, sealed

    async def put_key(self, org: str, name: str, key_id: str, ciphertext: str) -> float:
        """Keeps the sealed key under its name, in place of an earlier one; answers when."""

        def work(connection: Connection) -> float:
            now = self._now()
            connection.execute(ENV_KEYS.delete().where(ENV_KEYS.c.org == org, ENV_KEYS.c.name == name))
            values = {"org": org, "name": name, "key_id": key_id, "ciphertext": ciphertext, "updated_at": now}
            connection.execute(ENV_KEYS.insert().values(values))
            return now

        return await self._do(work)

    async def keys(self, org: str) -> list[tuple[str, str]]:
        """(name, ciphertext) of every key of this org, by name."""

        def work(connection: Connection) -> list[tuple[str, str]]:
            asked = select(ENV_KEYS.c.name, ENV_KEYS.c.ciphertext).where(ENV_KEYS.c.org == org)
            return [(row.name, row.ciphertext) for row in connection.execute(asked.order_by(ENV_KEYS.c.name))]

        return await self._do(work, writes=False)


def _jobs() -> Select[Any]:
    over = select(func.count()).where(ROLLOUTS.c.job_id == JOBS.c.job_id).correlate(JOBS).scalar_subquery()
    return select(JOBS, over.label("completed"))
