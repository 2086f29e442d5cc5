"""`taskapp jobs`: the jobs of a backend, listed, followed, cancelled and started again."""

from __future__ import annotations

import click

from taskapp_kit.cli.job_options import job_settings
from taskapp_kit.cli.options import BACKEND, ENV_FILES, POLLING, json_option, options
from taskapp_kit.cli.terminal import clean, echo, example, print_json
from taskapp_kit.client.job_status import CANCELLED, over, read_status, succeeded
from taskapp_kit.errors import JobError
from taskapp_kit.net.redact import without_keys

LIST_EXAMPLES = ("taskapp jobs list", "taskapp jobs list --status running --tag example=rl_from_ft --json")
FOLLOW_EXAMPLES = ("taskapp jobs follow rl_0123456789abcdef", "taskapp jobs follow rl_0123456789abcdef --json")
START_EXAMPLES = ("taskapp jobs start rl_0123456789abcdef",)
CANCEL_EXAMPLES = ("taskapp jobs cancel rl_0123456789abcdef",)
STATUSES = ("queued", "running", "succeeded", "failed", "cancelled")
MAX_LISTED = 1000

_at_a_backend = options(ENV_FILES, BACKEND, json_option("Print JSON, and nothing else on stdout."))


@click.group(epilog=example(LIST_EXAMPLES[0], FOLLOW_EXAMPLES[0], *CANCEL_EXAMPLES))
def command() -> None:
    """List, follow, cancel and restart the jobs of a backend.

    The backend is BACKEND_BASE_URL or --backend-url, its key SYNTH_API_KEY; a key sees the jobs that were submitted
    with it. `taskapp train` submits one.
    """


@command.command("list", epilog=example(*LIST_EXAMPLES))
@click.option("--status", type=click.Choice(STATUSES), help="Only jobs with this status.")
@click.option(
    "--tag", "tags", multiple=True, metavar="T", help="Only jobs with this tag, NAME or NAME=VALUE; repeatable."
)
@click.option("--limit", type=click.IntRange(1, MAX_LISTED), default=50, metavar="N", help="At most this many.")
@_at_a_backend
def list_(
    status: str | None,
    tags: tuple[str, ...],
    limit: int,
    env_files: tuple[str, ...],
    backend_url: str | None,
    as_json: bool,
) -> None:
    """List jobs, the newest first."""
    from taskapp_kit.cli import jobs_run

    settings = job_settings(env_files=env_files, backend_url=backend_url)
    jobs = without_keys(jobs_run.listed(settings, limit, status, tags), settings.keys)
    if as_json:
        print_json({"jobs": jobs})
    else:
        jobs_run.show(jobs)


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
    from taskapp_kit.cli import job_progress, jobs_run

    settings = job_settings(env_files=env_files, backend_url=backend_url)
    job = jobs_run.job_of(job_id, settings)
    with job_progress.leaving_says_so(ctx, job, settings.needed_backend()):
        last = jobs_run.follow(job, settings, poll_timeout, poll_interval, quiet=as_json)
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
def cancel(job_id: str, env_files: tuple[str, ...], backend_url: str | None, as_json: bool) -> None:
    """End JOB and its rollouts.

    Exit status 0 is a job that is cancelled or about to be, 1 one that had ended otherwise before.
    """
    from taskapp_kit.cli import jobs_run

    settings = job_settings(env_files=env_files, backend_url=backend_url)
    job = without_keys(read_status(jobs_run.job_of(job_id, settings).cancel(), job_id), settings.keys)
    name = clean(str(job["job_id"]))
    if as_json:
        print_json(job)
    elif job["status"] in CANCELLED:
        echo(f"Job {name} is cancelled.")
    elif not over(job):
        echo(f"Job {name} is {job['status']}; the backend was asked to cancel it.")
    if over(job) and job["status"] not in CANCELLED:
        raise JobError(f"Job {name} had ended before, as {job['status']}, and stays so.")


@command.command(epilog=example(*START_EXAMPLES))
@click.argument("job_id", metavar="JOB")
@_at_a_backend
def start(job_id: str, env_files: tuple[str, ...], backend_url: str | None, as_json: bool) -> None:
    """Let JOB, which failed or was cancelled, go on from its last checkpoint.

    Exit status 0 is a job that is queued or running, 1 one that cannot go on.
    """
    from taskapp_kit.cli import jobs_run

    settings = job_settings(env_files=env_files, backend_url=backend_url)
    job = without_keys(read_status(jobs_run.job_of(job_id, settings).start(), job_id), settings.keys)
    name = clean(str(job["job_id"]))
    if as_json:
        print_json(job)
    elif not over(job):
        echo(f"Job {name} is {job['status']}; taskapp jobs follow {name} follows it.")
    if over(job):
        raise JobError(
            f"Job {name} is {job['status']} and does not go on: it succeeded, or its engine cannot resume it."
        )
