"""`taskapp jobs`: list, follow, cancel and restart the jobs of a backend."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from taskapp_kit.cli.job_options import JobSettings, job_settings
from taskapp_kit.cli.options import BACKEND, ENV_FILES, POLLING, json_option, options
from taskapp_kit.cli.output import job_progress
from taskapp_kit.cli.output.terminal import clean, console, echo, example, number, one_line, print_json, table
from taskapp_kit.errors import JobError
from taskapp_kit.jobs.client import backend as backends
from taskapp_kit.jobs.client import rl_job
from taskapp_kit.net.redact import without_keys
from taskapp_kit.records.job_status import CANCELLED, over, read_status, succeeded, tag_texts, weights_note

LIST_EXAMPLES = ("taskapp jobs list", "taskapp jobs list --status running --tag example=rl_from_ft --json")
FOLLOW_EXAMPLES = ("taskapp jobs follow rl_0123456789abcdef", "taskapp jobs follow rl_0123456789abcdef --json")
START_EXAMPLES = ("taskapp jobs start rl_0123456789abcdef",)
CANCEL_EXAMPLES = ("taskapp jobs cancel rl_0123456789abcdef",)
STATUSES = ("queued", "running", "succeeded", "failed", "cancelled")
MAX_LISTED = 1000


def _at_a_backend(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options --env-file, --backend-url and --json. The first two set the command's argument `settings`."""

    @functools.wraps(command)
    def with_settings(
        *args: Any, env_files: Sequence[str], backend_url: str | None, as_json: bool, **options: Any
    ) -> None:
        settings = job_settings(env_files=env_files, backend_url=backend_url)
        command(*args, settings=settings, as_json=as_json, **options)

    return options(ENV_FILES, BACKEND, json_option("Print only JSON on stdout."))(with_settings)


@click.group(epilog=example(LIST_EXAMPLES[0], FOLLOW_EXAMPLES[0], *CANCEL_EXAMPLES))
def command() -> None:
    """List, follow, cancel and restart the jobs of a backend.

    The backend's address is read from --backend-url or BACKEND_BASE_URL, and its key from SYNTH_API_KEY. You see only the
    jobs that were submitted with this key. `taskapp train` submits a job.
    """


@command.command("list", epilog=example(*LIST_EXAMPLES))
@click.option("--status", type=click.Choice(STATUSES), help="Only jobs with this status.")
@click.option(
    "--tag", "tags", multiple=True, metavar="T", help="Only jobs with this tag, NAME or NAME=VALUE; may be repeated."
)
@click.option("--limit", type=click.IntRange(1, MAX_LISTED), default=50, metavar="N", help="List at most N jobs.")
@_at_a_backend
def list_(status: str | None, tags: tuple[str, ...], limit: int, settings: JobSettings, as_json: bool) -> None:
    """List jobs, newest first."""

    async def listed() -> list[dict[str, Any]]:
        async with backends.BackendClient(settings.needed_backend(), settings.needed_backend_key()) as backend:
            return [read_status(row, "-") for row in await backend.list_jobs(limit, status, tags)]

    jobs = without_keys(asyncio.run(listed()), settings.keys)
    if as_json:
        print_json({"jobs": jobs})
    else:
        _show(jobs)


@command.command(epilog=example(*FOLLOW_EXAMPLES))
@click.argument("job_id", metavar="JOB")
@POLLING
@_at_a_backend
@click.pass_context
def follow(
    ctx: click.Context,
    job_id: str,
    poll_timeout: float,
    poll_interval: float,
    settings: JobSettings,
    as_json: bool,
) -> None:
    """Follow JOB from its first event until it ends.

    The exit status is 0 if the job succeeded and 1 otherwise. Ctrl-C stops following, but the job continues.
    """

    async def to_its_end() -> dict[str, Any]:
        with job_progress.display_for(quiet=as_json) as display:
            return await job_progress.follow(
                job, display, timeout_seconds=poll_timeout, interval_seconds=poll_interval, keys=settings.keys
            )

    job = _job_of(job_id, settings)
    last = job_progress.run_following(ctx, job, settings.needed_backend(), to_its_end())
    shown = without_keys(last, settings.keys)
    if as_json:
        print_json(shown)
    else:
        job_progress.report(shown)
    if not succeeded(last):
        raise JobError(job_progress.cause_of(shown))


@command.command(epilog=example(*CANCEL_EXAMPLES))
@click.argument("job_id", metavar="JOB")
@_at_a_backend
def cancel(job_id: str, settings: JobSettings, as_json: bool) -> None:
    """Cancel JOB and its rollouts.

    The exit status is 0 if the job is cancelled or being cancelled, and 1 if the job had already ended.
    """
    job = without_keys(read_status(_job_of(job_id, settings).cancel(), job_id), settings.keys)
    name = clean(str(job["job_id"]))
    if as_json:
        print_json(job)
    elif job["status"] in CANCELLED:
        echo(f"Job {name} is cancelled.")
    elif not over(job):
        echo(f"Job {name} is {job['status']} and is being cancelled.")
    if over(job) and job["status"] not in CANCELLED:
        raise JobError(f"Job {name} was not cancelled, because it had already ended with status {job['status']}.")


@command.command(epilog=example(*START_EXAMPLES))
@click.argument("job_id", metavar="JOB")
@_at_a_backend
def start(job_id: str, settings: JobSettings, as_json: bool) -> None:
    """Restart JOB from its last checkpoint. The job must have failed or been cancelled.

    The exit status is 0 if the job is queued or running, and 1 if the job cannot be restarted.
    """
    job = without_keys(read_status(_job_of(job_id, settings).start(), job_id), settings.keys)
    name = clean(str(job["job_id"]))
    if as_json:
        print_json(job)
    elif not over(job):
        echo(f"Job {name} is {job['status']}. Follow it with: taskapp jobs follow {name}")
    if over(job):
        raise JobError(
            f"Job {name} has status {job['status']} and cannot be restarted. Only a failed or cancelled job can be restarted, "
            "and only if its engine can resume jobs."
        )


def _job_of(job_id: str, settings: JobSettings) -> rl_job.RLJob:
    """Return a client for the job. Raises ConfigError if the backend's address or key is not set."""
    return rl_job.RLJob.from_job_id(job_id, settings.needed_backend(), settings.needed_backend_key())


def _show(jobs: list[dict[str, Any]]) -> None:
    """Print one row for each job."""
    if not jobs:
        echo("No jobs found. `taskapp train` submits a job.", err=True)
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
    """Return the time at which the job was submitted, without fractions of a second, or `-` if it is unknown."""
    return str(job.get("created_at") or "-").partition(".")[0].replace("T", " ")
