"""What `taskapp train` does: checks the task app and the backend, submits the job, and follows it."""

from __future__ import annotations

import asyncio
from typing import Any

from taskapp_kit.cli.doctor_output import failed, show
from taskapp_kit.cli.job_options import JobSettings
from taskapp_kit.cli.job_progress import display_for, follow
from taskapp_kit.cli.terminal import clean, console, echo
from taskapp_kit.client.checks import check_backend, check_task_app
from taskapp_kit.client.rl_job import RLJob
from taskapp_kit.errors import BackendError, JobError
from taskapp_kit.testing.doctor.finding import of_server


def submit_and_follow(
    job: RLJob,
    settings: JobSettings,
    app_url: str,
    poll: bool,
    timeout_seconds: float,
    interval_seconds: float,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """The job's last status. poll: whether the job is followed to its end. quiet: shows findings only if something is wrong.

    Raises JobError: the task app or the backend cannot be used; JobTimeout, BackendError.
    """
    return asyncio.run(_submitted(job, settings, app_url, poll, timeout_seconds, interval_seconds, quiet))


async def _submitted(
    job: RLJob,
    settings: JobSettings,
    app_url: str,
    poll: bool,
    timeout_seconds: float,
    interval_seconds: float,
    quiet: bool,
) -> dict[str, Any]:
    checked = [
        *await check_task_app(app_url, settings.needed_task_app_key()),
        *await check_backend(settings.needed_backend(), settings.needed_backend_key(), app_url),
    ]
    findings = [of_server(finding) for finding in checked]
    if not quiet or failed(findings):
        show(findings, console(stderr=True), settings.keys)
    if failed(findings):
        parts = list(dict.fromkeys(finding.part for finding in findings if not finding.ok))
        raise JobError(f"No job was submitted: see {' and '.join(parts)} above.")
    job_id = await job.submit_async()
    echo(f"Job {clean(job_id)} is submitted.", err=True)
    if not poll:
        return await _status(job, job_id)
    with display_for(quiet=quiet) as display:
        return await follow(
            job, display, timeout_seconds=timeout_seconds, interval_seconds=interval_seconds, keys=settings.keys
        )


async def _status(job: RLJob, job_id: str) -> dict[str, Any]:
    """The job that was taken, also where the backend cannot be asked for it just now."""
    try:
        return await job.get_status_async()
    except BackendError as error:
        echo(f"Warning: the job is taken, and its status is not known. {clean(error.message)}", err=True)
        return {"job_id": job_id, "status": "unknown"}
