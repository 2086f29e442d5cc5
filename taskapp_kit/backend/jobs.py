"""The life of jobs: queued, running, over; taken up again after a restart, cancelled, left resumable at a stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from taskapp_kit.backend.access import Access
from taskapp_kit.backend.engine import Engine, Event, JobDocument, Outcome, Phase, Played, Point
from taskapp_kit.backend.records import Records
from taskapp_kit.backend.rows import CANCELLED, FAILED, QUEUED, RUNNING, SUCCEEDED, Job
from taskapp_kit.backend.submissions import from_kept, kept
from taskapp_kit.client.task_app import TaskAppClient
from taskapp_kit.errors import IdempotencyKeyReused, Saturated, StoreError, TaskappError, TaskAppUnreachable

log = logging.getLogger("taskapp_kit.backend")

MAX_WAITING = 1000
"""Jobs of one organisation that are not over."""
LETTING_GO_SECONDS = 10.0
"""How long an engine may take to let go of a job."""
STORE_SECONDS = 10.0
"""After so long a job whose store failed is taken up again."""
STARTING_SECONDS = 30.0
"""How long the task app of a job that is taken up again is waited for."""


def new_job_id() -> str:
    """`rl_` and 16 hexadecimal digits."""
    return "rl_" + secrets.token_hex(8)


class Jobs:
    """All jobs of a backend. Use it on one event loop: `start`, then `drain` or `close`.

    at_once: jobs that run at the same time; the others wait their turn.
    """

    def __init__(
        self,
        records: Records,
        access: Access,
        engine: Engine,
        *,
        at_once: int = 4,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.records = records
        self.engine = engine
        self._access = access
        self._at_once = at_once
        self._now = now
        self._queue: list[str] = []
        self._running: dict[str, asyncio.Task[None]] = {}
        self._bells: dict[str, asyncio.Event] = {}
        self._cancelling: set[str] = set()
        self.stopping = False

    async def start(self) -> None:
        """Takes up what an earlier process left: its running jobs go on, those that were to be cancelled end."""
        for job in await self.records.unfinished():
            if job.cancelling:
                await self._end(job.job_id, CANCELLED, _cancelled())
                continue
            if job.status == RUNNING:
                event = Event(
                    "rl.job.resumed",
                    f"The backend was started again; the job goes on after {job.completed} of {job.total} rollouts.",
                    data={"completed": job.completed, "total": job.total},
                )
                await self.records.write(job.job_id, event)
                log.info("job taken up again job_id=%s completed=%d total=%d", job.job_id, job.completed, job.total)
            self._queue.append(job.job_id)
        self._fill()

    async def submit(self, org: str, document: JobDocument, *, fingerprint: str, idempotency_key: str | None) -> Job:
        """Keeps a job and puts it into the queue; the job of an earlier request with the same key and body.

        Raises IdempotencyKeyReused, Saturated, StoreError.
        """
        if self.stopping:
            raise Saturated("The backend is stopping.", code="draining", retry_after_seconds=5)
        if await self.records.waiting(org) >= MAX_WAITING:
            raise Saturated(f"{MAX_WAITING} jobs of this key are not over yet.", retry_after_seconds=60)
        now = self._now()
        job = Job(
            job_id=document.job_id,
            org=org,
            created_at=now,
            updated_at=now,
            status=QUEUED,
            engine=self.engine.name,
            trainer_id=document.trainer_id,
            model=document.model,
            idempotency_key=idempotency_key,
            fingerprint=fingerprint,
            document=kept(document),
            state={},
            metrics={},
            results={},
            total=0,
            cancelling=False,
            final_reward=None,
            error=None,
        )
        facts = {"engine": self.engine.name, "updates_weights": self.engine.updates_weights}
        note = "" if self.engine.updates_weights else " It updates no weights."
        created = Event("rl.job.created", f"The job is queued for the engine `{self.engine.name}`.{note}", data=facts)
        known = await self.records.add(job, created)
        if known is not None:
            return self.same(known, fingerprint)
        log.info("job created job_id=%s", job.job_id)
        self._queue.append(job.job_id)
        self._fill()
        return job

    @staticmethod
    def same(known: Job, fingerprint: str) -> Job:
        """The job of an earlier request. Raises IdempotencyKeyReused when that had another body."""
        if known.fingerprint != fingerprint:
            raise IdempotencyKeyReused(
                "This Idempotency-Key was used with another job.",
                hint="Send the very same body to have the same job again, or give each job a key of its own.",
            )
        return known

    async def cancel(self, job: Job) -> None:
        """Ends the job, and its rollouts; one that is over stays as it is. Waits until the engine has let go."""
        if job.ended:
            return
        await self.records.write(job.job_id, cancelling=True)
        self._cancelling.add(job.job_id)
        task = self._running.get(job.job_id)
        if task is None:
            with suppress(ValueError):
                self._queue.remove(job.job_id)
            await self._end(job.job_id, CANCELLED, _cancelled())
            self._cancelling.discard(job.job_id)
            return
        task.cancel()
        await asyncio.wait([task], timeout=LETTING_GO_SECONDS)
        if task.done():  # cancelled before its first step, it could not say so itself
            await self._end(job.job_id, CANCELLED, _cancelled())
            self._cancelling.discard(job.job_id)

    async def drain(self) -> None:
        """Lets go of running jobs: they stay `running` in the store, and go on when the backend starts again."""
        self.stopping = True
        self._queue.clear()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            log.info("stopping; %d running jobs go on when the backend starts again", len(tasks))
            await asyncio.wait(tasks, timeout=LETTING_GO_SECONDS)
        for bell in self._bells.values():
            bell.set()

    def bell(self, job_id: str) -> asyncio.Event:
        """Rings once at the next thing that happens to the job. Take it before you look, then wait."""
        return self._bells.setdefault(job_id, asyncio.Event())

    @property
    def counts(self) -> Mapping[str, int]:
        """How many jobs run and wait in this process."""
        return {"running": len(self._running), "queued": len(self._queue)}

    def _ring(self, job_id: str) -> None:
        bell = self._bells.pop(job_id, None)
        if bell is not None:
            bell.set()

    def _fill(self) -> None:
        while self._queue and len(self._running) < self._at_once and not self.stopping:
            job_id = self._queue.pop(0)
            task = asyncio.create_task(self._run(job_id), name=f"taskapp-job-{job_id}")
            self._running[job_id] = task

            def over(done: asyncio.Task[None], job_id: str = job_id) -> None:
                self._running.pop(job_id, None)
                if not done.cancelled() and (fault := done.exception()) is not None:
                    log.error("job left as it is job_id=%s", job_id, exc_info=fault)
                self._fill()

            task.add_done_callback(over)

    async def _run(self, job_id: str) -> None:
        """One job, to its end or until somebody cancels this task."""
        try:
            while True:
                try:
                    return await self._to_its_end(job_id)
                except StoreError as error:  # what cannot be kept cannot be said either
                    log.error("job stands still job_id=%s seconds=%g: %s", job_id, STORE_SECONDS, error)
                await asyncio.sleep(STORE_SECONDS)
        except asyncio.CancelledError:
            if job_id not in self._cancelling:
                raise
            await self._end(job_id, CANCELLED, _cancelled())
        finally:
            self._cancelling.discard(job_id)

    async def _to_its_end(self, job_id: str) -> None:
        """Raises StoreError: the job stands as it was kept last, and may be taken up again from there."""
        try:
            outcome = await self._play(job_id)
        except StoreError:
            raise
        except TaskappError as error:
            await self._fail(job_id, str(error))
        except Exception as fault:
            error_id = "err_" + secrets.token_hex(6)
            log.error("engine broke job_id=%s error_id=%s", job_id, error_id, exc_info=fault)
            await self._fail(job_id, f"The engine broke; the backend's log has the cause under {error_id}.")
        else:
            if outcome is not None:
                await self._succeed(job_id, outcome)

    async def _play(self, job_id: str) -> Outcome | None:
        job = await self.records.job(job_id)
        if job is None or job.ended:
            return None
        if job.status == QUEUED:
            await self.records.write(job_id, status=RUNNING)
            self._ring(job_id)
        document = from_kept(job.document)
        client = await self._client(job, document)
        try:
            return await self.engine.run(document, client, _JobLedger(self, job_id), job.state)
        finally:
            await client.aclose()

    async def _client(self, job: Job, document: JobDocument) -> TaskAppClient:
        """Where a job is taken up again, its task app may be starting, too: it gets some time."""
        until = time.monotonic() + (STARTING_SECONDS if job.status == RUNNING else 0.0)
        while True:
            try:
                return await self._access.client(job.org, document.task_app_url)
            except TaskAppUnreachable:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(1.0)

    async def _succeed(self, job_id: str, outcome: Outcome) -> None:
        reward = "undefined" if outcome.final_reward is None else f"{outcome.final_reward:.4g}"
        note = "" if self.engine.updates_weights else " No weights were updated."
        data = {"final_reward": outcome.final_reward, "metrics": dict(outcome.metrics)}
        event = Event("rl.job.completed", f"The job is over; final reward {reward}.{note}", data=self._facts(data))
        await self._end(
            job_id,
            SUCCEEDED,
            event,
            final_reward=outcome.final_reward,
            metrics=outcome.metrics,
            results=self._facts(outcome.results),
        )

    async def _fail(self, job_id: str, error: str) -> None:
        await self._end(
            job_id, FAILED, Event("rl.job.failed", error, "error", self._facts({"error": error})), error=error
        )

    def _facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return {**facts, "engine": self.engine.name, "updates_weights": self.engine.updates_weights}

    async def _end(self, job_id: str, status: str, event: Event, **columns: Any) -> None:
        """Once only: what is over stays as it is."""
        if await self.records.write(job_id, event, status=status, **columns):
            log.info("job over job_id=%s status=%s", job_id, status)
        self._ring(job_id)


class _JobLedger:
    """`engine.Ledger` of one job."""

    def __init__(self, jobs: Jobs, job_id: str) -> None:
        self._jobs = jobs
        self._job_id = job_id

    async def tell(
        self,
        *events: Event,
        points: Sequence[Point] = (),
        state: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float | None] | None = None,
        total: int | None = None,
    ) -> None:
        more: dict[str, Any] = {} if total is None else {"total": total}
        await self._jobs.records.write(self._job_id, *events, points=points, state=state, metrics=metrics, **more)
        self._jobs._ring(self._job_id)

    async def told(self, *types: str) -> list[Mapping[str, Any]]:
        return [told.event.data for told in await self._jobs.records.events_of(self._job_id, types)]

    async def keep(self, rollout: Played) -> None:
        await self._jobs.records.keep(self._job_id, rollout)

    async def played(self, phase: Phase, iteration: int) -> list[Played]:
        return await self._jobs.records.played(self._job_id, phase, iteration)


def _cancelled() -> Event:
    return Event("rl.job.cancelled", "The job was cancelled.", "warning")
