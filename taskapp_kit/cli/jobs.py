"""`taskapp jobs`: the jobs of a backend, listed, followed and cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.job_options import job_settings
from taskapp_kit.cli.options import BACKEND, ENV_FILES, POLLING, json_option, options
from taskapp_kit.cli.terminal import clean, console, example, number, one_line, print_json, table
from taskapp_kit.errors import JobError

if TYPE_CHECKING:
    from taskapp_kit.cli.job_options import JobSettings
    from taskapp_kit.client import RLJob

LIST_EXAMPLES = ("taskapp jobs list", "taskapp jobs list --status running --json")
FOLLOW_EXAMPLES = ("taskapp jobs follow rl_0123456789abcdef", "taskapp jobs follow rl_0123456789abcdef --json")
CANCEL_EXAMPLES = ("taskapp jobs cancel rl_0123456789abcdef",)
STATUSES = ("queued", "running", "succeeded", "failed", "cancelled")
MAX_LISTED = 1000

_at_a_backend = options(ENV_FILES, BACKEND, json_option("Print JSON, and nothing else on stdout."))


@click.group(epilog=example(LIST_EXAMPLES[0], FOLLOW_EXAMPLES[0], *CANCEL_EXAMPLES))
def command() -> None:
    """List, follow and cancel the jobs of a backend.

    The backend is BACKEND_BASE_URL or --backend-url, its key SYNTH_API_KEY; a key sees the jobs that were submitted
    with it. `taskapp train` submits one.
    """


@command.command("list", epilog=example(*LIST_EXAMPLES))
@click.option("--status", type=click.Choice(STATUSES), help="Only jobs with this status.")
@click.option("--limit", type=click.IntRange(1, MAX_LISTED), default=50, metavar="N", help="At most this many.")
@_at_a_backend
def list_(status: str | None, limit: int, env_files: tuple[str, ...], backend_url: str | None, as_json: bool) -> None:
    """List jobs, the newest first."""
    from taskapp_kit.net.redact import without_keys

    settings = job_settings(env_files=env_files, backend_url=backend_url)
    jobs = without_keys(asyncio.run(_listed(settings, limit, status)), settings.keys)
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
    env_files: tuple[str, ...],
    backend_url: str | None,
    as_json: bool,
) -> None:
    """Follow JOB until it ends, from its first event on.

    Exit status 0 is a job that succeeded, 1 one that did not. Ctrl-C stops following; the job goes on.
    """
    from taskapp_kit.cli import job_progress as following
    from taskapp_kit.client.job_status import succeeded
    from taskapp_kit.net.redact import without_keys

    settings = job_settings(env_files=env_files, backend_url=backend_url)
    job = _job(job_id, settings)

    async def to_its_end() -> dict[str, Any]:
        with following.display_for(quiet=as_json) as display:
            return await following.follow(
                job, display, timeout_seconds=poll_timeout, interval_seconds=poll_interval, keys=settings.keys
            )

    with following.leaving_says_so(ctx, job, settings.needed_backend()):
        last = asyncio.run(to_its_end())
    shown = without_keys(last, settings.keys)
    if as_json:
        print_json(shown)
    else:
        following.report(shown)
    if not succeeded(last):
        raise JobError(following.cause_of(shown))


@command.command(epilog=example(*CANCEL_EXAMPLES))
@click.argument("job_id", metavar="JOB")
@_at_a_backend
def cancel(job_id: str, env_files: tuple[str, ...], backend_url: str | None, as_json: bool) -> None:
    """End JOB and its rollouts.

    Exit status 0 is a job that is cancelled or about to be, 1 one that had ended otherwise before.
    """
    from taskapp_kit.client.job_status import CANCELLED, over, read_status
    from taskapp_kit.net.redact import without_keys

    settings = job_settings(env_files=env_files, backend_url=backend_url)
    job = without_keys(read_status(_job(job_id, settings).cancel(), job_id), settings.keys)
    name = clean(str(job["job_id"]))
    if as_json:
        print_json(job)
    elif job["status"] in CANCELLED:
        click.echo(f"Job {name} is cancelled.")
    elif not over(job):
        click.echo(f"Job {name} is {job['status']}; the backend was asked to cancel it.")
    if over(job) and job["status"] not in CANCELLED:
        raise JobError(f"Job {name} had ended before, as {job['status']}, and stays so.")


def _job(job_id: str, settings: JobSettings) -> RLJob:
    from taskapp_kit.client import RLJob

    return RLJob.from_job_id(job_id, settings.needed_backend(), settings.needed_backend_key())


async def _listed(settings: JobSettings, limit: int, status: str | None) -> list[dict[str, Any]]:
    from taskapp_kit.client import BackendClient
    from taskapp_kit.client.job_status import read_status

    async with BackendClient(settings.needed_backend(), settings.needed_backend_key()) as client:
        return [read_status(row, "-") for row in await client.list_jobs(limit, status)]


def _show(jobs: list[dict[str, Any]]) -> None:
    from taskapp_kit.cli.job_progress import progress_of
    from taskapp_kit.client.job_status import weights_note

    if not jobs:
        click.echo("There are no such jobs; `taskapp train` submits one.", err=True)
        return
    rows = table("job", "status", "created", "progress", "final reward", "model", right=("progress", "final reward"))
    for job in jobs:
        completed, total = progress_of(job)
        cells = (str(job["job_id"]), job["status"], _moment(job), f"{completed:g}/{total:g}" if total else "-")
        model = one_line(str(job.get("model") or "-"), 60)
        rows.add_row(*(one_line(cell, 80) for cell in cells), number(job.get("final_reward")), model)
    out = console()
    out.print(rows)
    rewarded = (job for job in jobs if job.get("final_reward") is not None)
    for note in sorted({weights_note(job) for job in rewarded} - {""}):
        out.print(note)


def _moment(job: Mapping[str, Any]) -> str:
    """When it was submitted, to the second; the backend says it in ISO 8601."""
    return str(job.get("created_at") or "-").partition(".")[0].replace("T", " ")
