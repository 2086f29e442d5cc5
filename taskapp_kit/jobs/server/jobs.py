"""The lifecycle of jobs: they are queued, run and end. They can be cancelled, and are resumed after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Unpack

from taskapp_kit.errors import (
    ConfigError,
    IdempotencyKeyReused,
    JobConfigError,
    JobError,
    KitError,
    Saturated,
    StoreError,
    TaskAppError,
)
from taskapp_kit.jobs.server.engine import Engine, Event, JobDocument, JobOutcome, JobReport, Phase, RolloutOutcome
from taskapp_kit.jobs.server.notifier import Notifiers
from taskapp_kit.jobs.server.schema import CANCELLED, FAILED, QUEUED, RUNNING, SUCCEEDED, JobRow
from taskapp_kit.jobs.server.store import JobStore
from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp, TaskAppAccess, is_starting

log = logging.getLogger("taskapp_kit.jobs.server")

MAX_WAITING = 1000
"""How many jobs of one organization may wait."""
CANCEL_SECONDS = 10.0
"""How long to wait for the engine to stop a cancelled job."""
STORE_SECONDS = 10.0
"""How long a job waits before it is resumed after its store failed."""
CHECK_SECONDS = 10.0
"""How long a submission waits for the task app's description."""
START_SECONDS = 30.0
"""How long a resumed job waits for its task app."""


def new_job_id() -> str:
    """Return a new job id: `rl_` and 16 hexadecimal digits."""
    return "rl_" + secrets.token_hex(8)


class Jobs:
    """All jobs of a backend. Call all methods on one event loop: first `start`, and `drain` at the end.

    The next job to run is the oldest job of the organization with the fewest running jobs.

    Args:
        at_once: How many jobs run at the same time.
        max_waiting: How many unfinished jobs an organization may have.
        resumes: A function that returns whether an unfinished job of an earlier process is resumed. Other jobs stay
            unchanged in the store.
    """

    def __init__(
        self,
        records: JobStore,
        access: TaskAppAccess,
        engine: Engine,
        *,
        at_once: int = 4,
        max_waiting: int = MAX_WAITING,
        resumes: Callable[[JobRow], bool] = lambda job: True,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.records = records
        self.engine = engine
        self._access = access
        self._at_once = at_once
        self.max_waiting = max_waiting
        self._resumes = resumes
        self.check_seconds = CHECK_SECONDS
        self._now = now
        self._queue: list[tuple[str, str]] = []
        """(organization, job id) of waiting jobs."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._busy: Counter[str] = Counter()
        """The number of running jobs of each organization."""
        self.notifiers = Notifiers()
        self._cancelling: set[str] = set()
        self.stopping = False

    async def start(self) -> None:
        """Resume the unfinished jobs of an earlier process, and end the jobs whose cancellation was requested."""
        for job in await self.records.unfinished():
            if job.cancelling:
                await self._end(job.job_id, CANCELLED, _cancelled())
                continue
            if not self._resumes(job):
                continue
            if job.status == RUNNING:
                event = self._resumed("The backend was started again", job)
                await self.records.write(job.job_id, event)
                log.info("job taken up again job_id=%s completed=%d total=%d", job.job_id, job.completed, job.total)
            self._queue.append((job.org, job.job_id))
        self._fill()

    async def submit(self, org: str, document: JobDocument, *, fingerprint: str, idempotency_key: str | None) -> JobRow:
        """Store a job and queue it. If an earlier request had the same idempotency key, return its job.

        Only a hash of the idempotency key is stored, because callers may send secrets in it.

        Raises:
            IdempotencyKeyReused: The key was used with a different body.
            Saturated: The organization has too many unfinished jobs, or the backend is stopping.
            JobConfigError, RequestError: The task app does not meet the job's requirements, or cannot be used.
            StoreError: The store failed.
        """
        if idempotency_key is not None:
            idempotency_key = stored_key(org, idempotency_key)
        known = None if idempotency_key is None else await self.records.submitted(org, idempotency_key)
        if known is None:
            await self._check(org, document)
        if self.stopping:
            raise _stopping()
        now = self._now()
        job = JobRow(
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
            tags=document.tags,
        )
        facts = {"engine": self.engine.name, "updates_weights": self.engine.updates_weights}
        note = "" if self.engine.updates_weights else " This engine updates no weights."
        created = Event("rl.job.created", f"The job is queued for the engine `{self.engine.name}`.{note}", data=facts)
        known = await self.records.add(job, asdict(document), created, most=self.max_waiting)
        if known is None:
            log.info("job created job_id=%s", job.job_id)
            self._queue.append((org, job.job_id))
            self._fill()
            return job
        if known.fingerprint != fingerprint:
            raise IdempotencyKeyReused(
                "This Idempotency-Key was used with another job.",
                hint="To get the same job again, send an identical body. For another job, use a new key.",
            )
        return known

    async def submitted(self, org: str, idempotency_key: str) -> JobRow | None:
        """Return the job that was submitted with this idempotency key, or None if it does not exist."""
        return await self.records.submitted(org, stored_key(org, idempotency_key))

    async def _check(self, org: str, document: JobDocument) -> None:
        """Raise JobConfigError or RequestError if the task app does not meet the job's requirements.

        A task app that does not respond within `check_seconds` may be starting, so it is checked when the job begins.
        """
        missing: list[str] = []
        with contextlib.suppress(TaskAppError, ConfigError, TimeoutError):
            async with (
                asyncio.timeout(self.check_seconds),
                contextlib.aclosing(await self._access.client(org, document.task_app_url, retries=0)) as client,
            ):
                missing = await self.engine.missing(document, client)
        _refuse(missing)

    def _resumed(self, why: str, job: JobRow) -> Event:
        """Return the event that reports that a job is resumed."""
        played = f"after {job.completed} of {job.total} rollouts"
        return Event(
            "rl.job.resumed",
            f"{why}; the job continues {'from its last checkpoint' if self.engine.restarts else played}.",
            data={"completed": job.completed, "total": job.total},
        )

    async def restart(self, job: JobRow) -> None:
        """Queue a failed or cancelled job again, if the engine can restart it. Other jobs are not changed.

        Raises Saturated if the organization has too many unfinished jobs, or the backend is stopping.
        """
        if job.status not in (FAILED, CANCELLED) or not self.engine.restarts or job.engine != self.engine.name:
            return
        if self.stopping:
            raise _stopping()
        event = self._resumed("The job was started again", job)
        if await self.records.restart(job.job_id, event, most=self.max_waiting):
            log.info("job restarted job_id=%s", job.job_id)
            self.notifiers.notify(job.job_id)
            self._queue.append((job.org, job.job_id))
            self._fill()

    async def cancel(self, job: JobRow) -> None:
        """Cancel a job and its rollouts, and wait until the engine has stopped. A job that has ended is not changed."""
        if job.ended:
            return
        await self.records.write(job.job_id, cancelling=True)
        self._cancelling.add(job.job_id)
        task = self._running.get(job.job_id)
        if task is None:
            self._queue = [waiting for waiting in self._queue if waiting[1] != job.job_id]
            await self._end(job.job_id, CANCELLED, _cancelled())
            self._cancelling.discard(job.job_id)
            return
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_SECONDS)
        if task.done() and (task.cancelled() or task.exception() is not None):
            # the job's task was cancelled before its first step, or its store failed, so it could not store its end
            await self._end(job.job_id, CANCELLED, _cancelled())
            self._cancelling.discard(job.job_id)

    async def drain(self) -> None:
        """Stop the running jobs.

        Their status in the store stays `running`, so they are resumed when the backend starts again.
        """
        self.stopping = True
        self._queue.clear()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            log.info("stopping; %d running jobs continue when the backend starts again", len(tasks))
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        self.notifiers.notify_all()

    @property
    def counts(self) -> Mapping[str, int]:
        """Return how many jobs are running and how many are waiting in this process."""
        return {"running": len(self._running), "queued": len(self._queue)}

    def _fill(self) -> None:
        while self._queue and len(self._running) < self._at_once and not self.stopping:
            first = min(range(len(self._queue)), key=lambda index: (self._busy[self._queue[index][0]], index))
            org, job_id = self._queue.pop(first)
            task = asyncio.create_task(self._run(job_id), name=f"taskapp-job-{job_id}")
            self._running[job_id] = task
            self._busy[org] += 1

            def over(done: asyncio.Task[None], org: str = org, job_id: str = job_id) -> None:
                if self._running.get(job_id) is done:  # otherwise the job is already running again
                    self._running.pop(job_id)
                self._busy[org] -= 1
                self._busy += Counter()  # removes organizations without running jobs
                if not done.cancelled() and (fault := done.exception()) is not None:
                    log.error("job left as it is job_id=%s", job_id, exc_info=fault)
                self._fill()

            task.add_done_callback(over)

    async def _run(self, job_id: str) -> None:
        """Run one job until it ends or this asyncio task is cancelled."""
        try:
            while True:
                try:
                    return await self._to_its_end(job_id)
                except StoreError as error:  # without the store, the job's end cannot be recorded either
                    log.error("job is waiting for the store job_id=%s seconds=%g: %s", job_id, STORE_SECONDS, error)
                await asyncio.sleep(STORE_SECONDS)
        except asyncio.CancelledError:
            if job_id not in self._cancelling:
                raise
            await self._end(job_id, CANCELLED, _cancelled())
        finally:
            self._cancelling.discard(job_id)

    async def _to_its_end(self, job_id: str) -> None:
        """Run the job and store its end.

        If this raises StoreError, the job can be resumed from its last stored state.
        """
        try:
            outcome = await self._play(job_id)
        except StoreError:
            raise
        except KitError as error:
            await self._fail(job_id, str(error), error.code if isinstance(error, JobError) else "")
        except Exception as fault:
            error_id = "err_" + secrets.token_hex(6)
            log.error("engine broke job_id=%s error_id=%s", job_id, error_id, exc_info=fault)
            await self._fail(job_id, f"The engine failed. The backend's log contains the cause under {error_id}.")
        else:
            if outcome is not None:
                await self._succeed(job_id, outcome)

    async def _play(self, job_id: str) -> JobOutcome | None:
        job = await self.records.job(job_id)
        if job is None or job.ended:
            return None
        if job.status == QUEUED:
            await self.records.write(job_id, status=RUNNING)
            self.notifiers.notify(job_id)
        request, state = await self.records.work(job_id)
        document = JobDocument(**request)
        client = await self._client(job, document)
        try:
            if not state:
                with contextlib.suppress(TaskAppError):
                    _refuse(await self.engine.missing(document, client))
            return await self.engine.run(document, client, _JobLedger(self, job_id), state)
        except TaskAppError as error:
            raise client.cleaned_error(error) from None
        finally:
            await client.aclose()

    async def _client(self, job: JobRow, document: JobDocument) -> OpenedTaskApp:
        """Return a client of the job's task app.

        If a job is resumed, its task app may also be starting, so wait for it.
        """
        until = time.monotonic() + (START_SECONDS if job.status == RUNNING else 0.0)
        while True:
            try:
                return await self._access.client(job.org, document.task_app_url)
            except TaskAppError as error:
                if not is_starting(error) or time.monotonic() >= until:
                    raise
            await asyncio.sleep(1.0)

    async def _succeed(self, job_id: str, outcome: JobOutcome) -> None:
        reward = "undefined" if outcome.final_reward is None else f"{outcome.final_reward:.4g}"
        note = "" if self.engine.updates_weights else " No weights were updated."
        data = {"final_reward": outcome.final_reward, "metrics": dict(outcome.metrics)}
        event = Event("rl.job.completed", f"The job has ended; final reward {reward}.{note}", data=self._facts(data))
        await self._end(
            job_id,
            SUCCEEDED,
            event,
            final_reward=outcome.final_reward,
            metrics=outcome.metrics,
            results=self._facts(outcome.results),
        )

    async def _fail(self, job_id: str, error: str, code: str = "") -> None:
        facts = self._facts({"error": error, **({"code": code} if code else {})})
        await self._end(job_id, FAILED, Event("rl.job.failed", error, "error", facts), error=error)

    def _facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return {**facts, "engine": self.engine.name, "updates_weights": self.engine.updates_weights}

    async def _end(self, job_id: str, status: str, event: Event, **columns: Any) -> None:
        """End a job, unless it has ended already."""
        if await self.records.write(job_id, event, status=status, **columns):
            log.info("job ended job_id=%s status=%s", job_id, status)
        self.notifiers.notify(job_id)


class _JobLedger:
    """The `engine.Ledger` of one job."""

    def __init__(self, jobs: Jobs, job_id: str) -> None:
        self._jobs = jobs
        self._job_id = job_id

    async def report(self, *events: Event, **progress: Unpack[JobReport]) -> None:
        await self._jobs.records.write(self._job_id, *events, **_changed(progress))
        self._jobs.notifiers.notify(self._job_id)

    async def last_data(self, *types: str, last: int) -> list[Mapping[str, Any]]:
        return [row.event.data for row in await self._jobs.records.last_events(self._job_id, types, last)]

    async def store(self, rollout: RolloutOutcome) -> RolloutOutcome:
        return await self._jobs.records.store(self._job_id, rollout)

    async def stored(self, phase: Phase, iteration: int) -> list[RolloutOutcome]:
        return await self._jobs.records.stored(self._job_id, phase, iteration)

    async def position(self) -> int:
        return await self._jobs.records.position(self._job_id)

    async def supersede(self, after: int, *events: Event, **progress: Unpack[JobReport]) -> None:
        await self._jobs.records.supersede(self._job_id, after, *events, **_changed(progress))
        self._jobs.notifiers.notify(self._job_id)


def _changed(progress: JobReport) -> dict[str, Any]:
    return {name: value for name, value in progress.items() if value is not None}


def stored_key(org: str, idempotency_key: str) -> str:
    """Return the hash that is stored instead of an idempotency key."""
    return hashlib.sha256(f"{org} {idempotency_key}".encode()).hexdigest()


def _refuse(missing: Sequence[str]) -> None:
    """Raise JobConfigError with these sentences, one for each missing requirement, unless there are none."""
    if missing:
        raise JobConfigError("The task app does not meet the job's requirements:", problems=tuple(missing))


def _stopping() -> Saturated:
    return Saturated("The backend is stopping.", code="draining", retry_after_seconds=5)


def _cancelled() -> Event:
    return Event("rl.job.cancelled", "The job was cancelled.", "warning")
