"""`taskapp train`: run a job from a config, on a backend or on this machine."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from taskapp_kit import client
from taskapp_kit.cli.job_options import TASK_APP_VARIABLES, JobSettings, job_settings_or_ask
from taskapp_kit.cli.options import BACKEND, ENV_FILES, POLLING, json_option, typed
from taskapp_kit.cli.output import job_progress
from taskapp_kit.cli.output.doctor_output import failed, show
from taskapp_kit.cli.output.terminal import clean, console, echo, example, print_json
from taskapp_kit.client import checks
from taskapp_kit.config import Settings, load
from taskapp_kit.doctor import finding as doctor_finding
from taskapp_kit.errors import BackendError, ConfigError, JobError
from taskapp_kit.jobs.client import backend_check
from taskapp_kit.net.redact import without_keys
from taskapp_kit.records.job_status import succeeded


@click.command(
    epilog=example(
        "taskapp train --type rl --config rl.toml",
        "taskapp train --local --config rl.toml --task-app my_task_app.py",
        "taskapp train --type sft --config sft.toml",
        "taskapp train --type rl --config rl.toml --env-file .env --env-file run.env --task-url http://127.0.0.1:8001",
        "taskapp train --type rl --config rl.toml --backend-url http://127.0.0.1:8500 --no-poll --json",
    )
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(["rl", "sft"]),
    default="rl",
    help="The kind of job: RL, or fine-tuning on conversations.",
)
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    required=True,
    metavar="F",
    help="The job's config (TOML).",
)
@ENV_FILES
@BACKEND
@click.option(
    "--task-url",
    "--task-app-url",
    "task_url",
    metavar="U",
    help="The task app's address.  [default: TASK_APP_URL, else services.task_url of the config]",
)
@click.option("--model", metavar="M", help="Train this model instead of the config's model.")
@click.option("--trainer-id", metavar="ID", help="The trainer that the backend uses for the job.")
@click.option("--idempotency", metavar="K", help="Idempotency-Key. Requests with the same key return the same job.")
@click.option("--allow-experimental", is_flag=True, default=None, help="Allow experimental features of the backend.")
@click.option("--local", is_flag=True, help="Train on this machine. Starts a backend and the task app.")
@click.option(
    "--task-app",
    "task_app",
    metavar="FILE",
    help="With --local, the task app.  [default: services.task_app of the config]",
)
@click.option(
    "--fresh", is_flag=True, help="With --local or --type sft, start over instead of continuing an unfinished job."
)
@click.option("--poll/--no-poll", default=True, help="Follow the job until it ends.")
@POLLING
@json_option("Print only the job's last status on stdout, as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    kind: str,
    config_path: Path,
    env_files: tuple[str, ...],
    model: str | None,
    local: bool,
    task_app: str | None,
    fresh: bool,
    as_json: bool,
    **remote: Any,
) -> None:
    """Submit an RL job and follow it until it ends, or fine-tune a model on this machine.

    Before the job is submitted, the task app's address, key and HTTP contract are checked. The exit status is 0 if the job
    succeeded (or, with --no-poll, was accepted), 1 if it failed or was rejected, and 2 if the config or a setting is wrong.
    Ctrl-C stops following the job, but the job continues.

    With --local, you need neither a backend nor an account. The engine `local` trains on this machine (extra: train). The
    results are a model, an image of the curves, and episodes from before and after training. Ctrl-C stops the job. To
    continue it, run the same command again.

    With --type sft, a model is fine-tuned on this machine with conversations that `taskapp export --format sft` wrote. An
    RL job can start from the resulting model, ft:MODEL:JOB:CHECKPOINT.
    """
    if local or kind == "sft":
        mode = "--type sft, which trains on this machine" if kind == "sft" else LOCAL
        for name, flag in typed(ctx).items():
            if name in remote:
                raise click.UsageError(f"{flag} cannot be used with {mode}.")
    if kind == "sft":
        if task_app is not None:
            raise click.UsageError("--task-app cannot be used with --type sft, because fine-tuning plays no episodes.")
        _fine_tune(ctx, config_path, load(env_files=env_files), model, fresh=fresh, as_json=as_json)
        return
    try:
        config = client.load_rl_config(config_path)
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from None
    if local:
        _train_here(ctx, config, task_app, load(env_files=env_files), model, fresh=fresh, as_json=as_json)
        return
    if task_app is not None or fresh:
        raise click.UsageError("--fresh needs --local or --type sft." if fresh else "--task-app needs --local.")
    _submit(ctx, config, env_files, model, as_json=as_json, **remote)


LOCAL = "--local, which starts a backend and the task app"


def _submit(
    ctx: click.Context,
    config: client.RlConfig,
    env_files: tuple[str, ...],
    model: str | None,
    *,
    backend_url: str | None,
    task_url: str | None,
    poll: bool,
    poll_timeout: float,
    poll_interval: float,
    as_json: bool,
    **submitted: Any,
) -> None:
    """Submit a job. With `poll`, follow the job to its end.

    submitted: Other options of `RLJob.from_config`.
    """
    configured = config.document.get("services", {}).get("task_url")
    settings = job_settings_or_ask(
        env_files=env_files, backend_url=backend_url, task_app_url=task_url, task_app_needed=not configured
    )
    _warn(config.warnings)
    app_url = settings.task_app_url or configured
    if not app_url:
        raise ConfigError(
            "The task app's address is not set.",
            hint=f"Pass --task-url, set {TASK_APP_VARIABLES[0]}, or add task_url to [services] in {config.path}.",
        )
    backend, backend_key = settings.needed_backend(), settings.needed_backend_key()
    job = client.RLJob.from_config(
        config.path,
        backend_url=backend,
        api_key=backend_key,
        task_app_url=app_url,
        task_app_api_key=settings.needed_task_app_key(),
        idempotency_key=submitted.pop("idempotency") or uuid.uuid4().hex,
        model=model,
        **submitted,
    )

    async def to_its_end() -> dict[str, Any]:
        await _check(settings, app_url, quiet=as_json)
        job_id = await job.submit_async()
        echo(f"Submitted job {clean(job_id)}.", err=True)
        if not poll:
            return await _status(job, job_id)
        with job_progress.display_for(quiet=as_json) as display:
            return await job_progress.follow(
                job, display, timeout_seconds=poll_timeout, interval_seconds=poll_interval, keys=settings.keys
            )

    last = job_progress.run_following(ctx, job, backend, to_its_end())
    shown = without_keys(last, settings.keys)
    if as_json:
        print_json(shown)
    elif poll:
        job_progress.report(shown)
    else:
        echo(str(job.job_id))
    if poll and not succeeded(last):
        raise JobError(
            job_progress.cause_of(shown),
            hint=f"The backend at {backend} stores the job's events. To submit a new job, run `taskapp train` again.",
        )


async def _check(settings: JobSettings, app_url: str, *, quiet: bool) -> None:
    """Check the task app and the backend. quiet: whether to print only problems.

    Raises JobError if the task app or the backend cannot be used.
    """
    checked = [
        *await checks.check_task_app(app_url, settings.needed_task_app_key()),
        *await backend_check.check_backend(settings.needed_backend(), settings.needed_backend_key(), app_url),
    ]
    findings = [doctor_finding.of_server(finding) for finding in checked]
    if not quiet or failed(findings):
        show(findings, console(stderr=True), settings.keys)
    if failed(findings):
        parts = list(dict.fromkeys(finding.part for finding in findings if not finding.ok))
        raise JobError(f"The job was not submitted, because of the problems above ({', '.join(parts)}).")


async def _status(job: client.RLJob, job_id: str) -> dict[str, Any]:
    """Return the status object of a submitted job. If the backend cannot be reached, the status is `unknown`."""
    try:
        return await job.get_status_async()
    except BackendError as error:
        echo(f"Warning: the job was submitted, but its status is unknown. {clean(error.message)}", err=True)
        return {"job_id": job_id, "status": "unknown"}


def _train_here(
    ctx: click.Context,
    config: client.RlConfig,
    task_app: str | None,
    settings: Settings,
    model: str | None,
    *,
    fresh: bool,
    as_json: bool,
) -> None:
    task_app = task_app or config.document.get("services", {}).get("task_app")
    if not task_app:
        raise ConfigError(
            "The task app is not set.",
            hint=f'Pass --task-app FILE, or add task_app = "FILE" to [services] in {config.path}.',
        )
    from taskapp_kit.cli.train import train_local

    training = train_local.LocalTraining(config, task_app, settings, model, fresh=fresh, quiet=as_json)
    _warn(config.warnings)
    result = train_local.train(training, ctx)
    if as_json:
        print_json(result.to_json())
    else:
        train_local.show(result, training)
    if not succeeded(result.status):
        raise JobError(
            job_progress.cause_of(result.status),
            hint="Run the same command again to continue from the last checkpoint, or with --fresh to start over.",
        )


def _fine_tune(
    ctx: click.Context, config_path: Path, settings: Settings, model: str | None, *, fresh: bool, as_json: bool
) -> None:
    from taskapp_kit.cli.train import train_sft

    config = train_sft.config_of(config_path, model)
    _warn(config.warnings)
    result, files = train_sft.train(config, settings, ctx, fresh=fresh, quiet=as_json)
    if as_json:
        print_json(train_sft.to_json(result, files))
    else:
        train_sft.show(result, files)


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        echo(f"Warning: {clean(warning)}", err=True)
