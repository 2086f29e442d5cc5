"""What `taskapp jobs` does: asks a backend for its jobs, and follows one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from taskapp_kit.cli import job_progress
from taskapp_kit.cli.job_options import JobSettings
from taskapp_kit.cli.terminal import console, echo, number, one_line, table
from taskapp_kit.client.backend import BackendClient
from taskapp_kit.client.job_status import read_status, tag_texts, weights_note
from taskapp_kit.client.rl_job import RLJob


def job_of(job_id: str, settings: JobSettings) -> RLJob:
    """The job at the backend. Raises ConfigError: no backend or key is named."""
    return RLJob.from_job_id(job_id, settings.needed_backend(), settings.needed_backend_key())


def listed(settings: JobSettings, limit: int, status: str | None, tags: Sequence[str]) -> list[dict[str, Any]]:
    """The statuses of up to `limit` jobs with these tags, the newest first. Raises ConfigError, BackendError."""

    async def rows() -> list[dict[str, Any]]:
        async with BackendClient(settings.needed_backend(), settings.needed_backend_key()) as backend:
            return [read_status(row, "-") for row in await backend.list_jobs(limit, status, tags)]

    return asyncio.run(rows())


def follow(
    job: RLJob, settings: JobSettings, timeout_seconds: float, interval_seconds: float, *, quiet: bool
) -> dict[str, Any]:
    """The job's last status, once it has ended. Raises JobTimeout, BackendError."""

    async def to_its_end() -> dict[str, Any]:
        with job_progress.display_for(quiet=quiet) as display:
            return await job_progress.follow(
                job, display, timeout_seconds=timeout_seconds, interval_seconds=interval_seconds, keys=settings.keys
            )

    return asyncio.run(to_its_end())


def show(jobs: list[dict[str, Any]]) -> None:
    """Print one row for each job."""
    if not jobs:
        echo("There are no such jobs; `taskapp train` submits one.", err=True)
        return
    headers = ("job", "status", "created", "progress", "final reward", "model", "tags")
    rows = table(*headers, right=("progress", "final reward"))
    for job in jobs:
        completed, total = job_progress.progress_of(job)
        cells = (str(job["job_id"]), job["status"], _moment(job), f"{completed:g}/{total:g}" if total else "-")
        model = one_line(str(job.get("model") or "-"), 60)
        tags = one_line(" ".join(tag_texts(job)), 120)
        rows.add_row(*(one_line(cell, 80) for cell in cells), number(job.get("final_reward")), model, tags)
    out = console()
    out.print(rows)
    rewarded = (job for job in jobs if job.get("final_reward") is not None)
    for note in sorted({weights_note(job) for job in rewarded} - {""}):
        out.print(note)


def _moment(job: Mapping[str, Any]) -> str:
    """When it was submitted, to the second; the backend says it in ISO 8601."""
    return str(job.get("created_at") or "-").partition(".")[0].replace("T", " ")
