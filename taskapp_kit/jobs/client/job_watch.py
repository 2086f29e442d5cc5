"""Poll a job until it ends, report what changed, and survive a backend that is unreachable for a while."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from taskapp_kit.errors import BackendError, JobConfigError, JobTimeout
from taskapp_kit.jobs.client.stream import is_temporary
from taskapp_kit.records.job_status import over, read_status, seen

if TYPE_CHECKING:
    from taskapp_kit.jobs.client.backend import BackendClient

log = logging.getLogger("taskapp_kit.client")

POLL_TIMEOUT_SECONDS = 30.0
"""Time limit of one poll."""
OnStatus = Callable[[dict[str, Any]], None] | Callable[[dict[str, Any]], Awaitable[None]]


async def watch(
    client: BackendClient,
    job_id: str,
    *,
    timeout_seconds: float,
    interval_seconds: float,
    on_status: OnStatus | None = None,
) -> dict[str, Any]:
    """Return the job's last status, however it ended.

    on_status: called at the first poll, and whenever a watched member has changed since the last poll. Raises
    JobTimeout; BackendError for a refusal that waiting does not fix.
    """
    if not timeout_seconds > 0 or not interval_seconds >= 0:
        raise JobConfigError("timeout should be above 0 and interval at least 0, both in seconds.")
    end = time.monotonic() + timeout_seconds
    shown: str | None = None
    status = ""
    away: BackendError | None = None
    while True:
        began = time.monotonic()
        try:
            seconds = min(POLL_TIMEOUT_SECONDS, max(0.05, end - began))
            job = read_status(await client.get_job(job_id, seconds=seconds), job_id)
        except BackendError as error:
            if not is_temporary(error):
                raise
            if away is None:
                log.warning("the backend cannot be asked for job %s now, and will be again: %s", job_id, error.message)
            away = error
        else:
            if away is not None:
                log.warning("the backend answers again for job %s", job_id)
                away = None
            status, before, shown = job["status"], shown, seen(job)
            if on_status is not None and shown != before:
                answer = on_status(dict(job))
                if inspect.isawaitable(answer):
                    await answer
            if over(job):
                return job
        left = end - time.monotonic()
        if left <= 0:
            raise _too_long(job_id, timeout_seconds, status, away) from away
        await asyncio.sleep(min(max(0.0, began + interval_seconds - time.monotonic()), left))


def _too_long(job_id: str, timeout_seconds: float, status: str, away: BackendError | None) -> JobTimeout:
    stood = f" It was {status} when the backend last answered." if status else ""
    silent = f" The backend does not answer: {away.message}" if away is not None else ""
    return JobTimeout(
        f"Job {job_id} was not over within {timeout_seconds:g} s.{stood}{silent}",
        hint="It goes on: RLJob.from_job_id follows it again, cancel() ends it.",
    )
