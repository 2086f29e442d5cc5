"""Polls a job until it ends, reports changes, and tolerates a backend that is temporarily unreachable."""

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
"""The time limit of one poll."""
OnStatus = Callable[[dict[str, Any]], None] | Callable[[dict[str, Any]], Awaitable[None]]


async def watch(
    client: BackendClient,
    job_id: str,
    *,
    timeout_seconds: float,
    interval_seconds: float,
    on_status: OnStatus | None = None,
) -> dict[str, Any]:
    """Wait until the job has ended, and return its last status.

    `on_status` is called after the first poll, and whenever a watched field has changed. Raises JobTimeout if the job
    does not end in time, and BackendError for an error that is permanent.
    """
    if not timeout_seconds > 0 or not interval_seconds >= 0:
        raise JobConfigError("timeout must be above 0 and interval at least 0, both in seconds.")
    end = time.monotonic() + timeout_seconds
    reported: str | None = None
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
                log.warning("the backend does not respond for job %s; retrying: %s", job_id, error.message)
            away = error
        else:
            if away is not None:
                log.warning("the backend responds again for job %s", job_id)
                away = None
            status, before, reported = job["status"], reported, seen(job)
            if on_status is not None and reported != before:
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
    last = f" Its last known status is {status}." if status else ""
    silent = f" The backend does not respond: {away.message}" if away is not None else ""
    return JobTimeout(
        f"Job {job_id} did not end within {timeout_seconds:g} s.{last}{silent}",
        hint="The job continues. Follow it with RLJob.from_job_id, or end it with cancel().",
    )
