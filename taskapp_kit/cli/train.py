"""`taskapp train`: a training job from a config: RL, submitted and followed or run here; fine-tuning, run here."""

from __future__ import annotations

import uuid
from pathlib import Path

import click
from click.core import ParameterSource

from taskapp_kit import client
from taskapp_kit.cli.job_options import TASK_APP_VARIABLES, job_settings_or_ask
from taskapp_kit.cli.options import BACKEND, ENV_FILES, POLLING, json_option
from taskapp_kit.cli.terminal import clean, echo, example, print_json
from taskapp_kit.client.job_status import succeeded
from taskapp_kit.config import load
from taskapp_kit.errors import ConfigError, JobError
from taskapp_kit.net.redact import without_keys


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
    help="The task app.  [default: TASK_APP_URL, else services.task_url of the config]",
)
@click.option(
    "--model", metavar="M", help="Train this model instead of the config's (ft:… starts from a finetuned one)."
)
@click.option("--trainer-id", metavar="ID", help="The backend's trainer that shall do it.")
@click.option("--idempotency", metavar="K", help="Idempotency-Key: the same one again gives the same job.")
@click.option("--allow-experimental", is_flag=True, default=None, help="Ask for what the backend calls experimental.")
@click.option("--local", is_flag=True, help="Train on this machine: starts a backend and the task app, and stops them.")
@click.option(
    "--task-app",
    "task_app",
    metavar="FILE",
    help="With --local: the task app.  [default: services.task_app of the config]",
)
@click.option(
    "--fresh", is_flag=True, help="With --local or --type sft: begin anew, although a job of this config was left."
)
@click.option("--poll/--no-poll", default=True, help="Follow the job until it ends.")
@POLLING
@json_option("Print the job's last status as JSON, and nothing else on stdout.")
@click.pass_context
def command(
    ctx: click.Context,
    kind: str,
    config_path: Path,
    env_files: tuple[str, ...],
    backend_url: str | None,
    task_url: str | None,
    model: str | None,
    trainer_id: str | None,
    idempotency: str | None,
    allow_experimental: bool | None,
    local: bool,
    task_app: str | None,
    fresh: bool,
    poll: bool,
    poll_timeout: float,
    poll_interval: float,
    as_json: bool,
) -> None:
    """Submit an RL job and follow it until it ends, or fine-tune a model on this machine.

    The task app is checked first: its address, its key, its contract. Exit status 0 is a job that succeeded (with
    --no-poll, which prints the job's id: one that was taken), 1 one that did not, 2 a config or a setting that is
    wrong. Ctrl-C stops following; the job goes on.

    With --local, no backend and no account are needed: the engine `local` trains here (extra: train), and ends with a
    picture of the curves and episodes before and after. Ctrl-C stops everything; the same command again goes on with the
    job where it stopped.

    With --type sft, the model learns the answers in a file of `taskapp export --format sft`, on this machine (--local is
    implied), and becomes ft:MODEL:JOB:CHECKPOINT, from which an RL job can start.
    """
    if kind == "sft":
        _fine_tune(ctx, config_path, env_files, model, task_app, fresh=fresh, as_json=as_json)
        return
    config = _config(config_path)
    if local:
        _train_here(ctx, config, task_app, env_files, model, fresh=fresh, as_json=as_json)
        return
    if task_app is not None or fresh:
        raise click.UsageError("--fresh is for --local and --type sft." if fresh else "--task-app is for --local.")
    from taskapp_kit.cli import job_progress, train_run

    named = config.document.get("services", {}).get("task_url")
    settings = job_settings_or_ask(
        env_files=env_files, backend_url=backend_url, task_app_url=task_url, task_app_needed=not named
    )
    for warning in config.warnings:
        echo(f"Warning: {clean(warning)}", err=True)
    app_url = settings.task_app_url or named
    if not app_url:
        raise ConfigError(
            "No task app is named.",
            hint=f"Give --task-url, set {TASK_APP_VARIABLES[0]}, or write task_url into [services] of {config_path}.",
        )
    backend, backend_key = settings.needed_backend(), settings.needed_backend_key()
    job = client.RLJob.from_config(
        config_path,
        backend_url=backend,
        api_key=backend_key,
        task_app_url=app_url,
        task_app_api_key=settings.needed_task_app_key(),
        allow_experimental=allow_experimental,
        idempotency_key=idempotency or uuid.uuid4().hex,
        trainer_id=trainer_id,
        model=model,
    )
    with job_progress.leaving_says_so(ctx, job, backend):
        last = train_run.submit_and_follow(job, settings, app_url, poll, poll_timeout, poll_interval, quiet=as_json)
    shown = without_keys(last, settings.keys)
    if as_json:
        print_json(shown)
    elif poll:
        job_progress.report(shown)
    else:
        echo(str(job.job_id))
    if poll and not succeeded(last):
        raise JobError(
            job_progress.cause_of(shown), hint=f"`taskapp train` again makes a new job; the events stand at {backend}."
        )


REMOTE = (
    "backend_url",
    "task_url",
    "trainer_id",
    "idempotency",
    "allow_experimental",
    "poll",
    "poll_timeout",
    "poll_interval",
)
"""Options that have no meaning on this machine alone."""


def _train_here(
    ctx: click.Context,
    config: client.RlConfig,
    task_app: str | None,
    env_files: tuple[str, ...],
    model: str | None,
    *,
    fresh: bool,
    as_json: bool,
) -> None:
    _refuse_remote(ctx, "--local, which starts its own backend and task app")
    found = task_app or config.document.get("services", {}).get("task_app")
    if not found:
        raise ConfigError(
            "No task app is named.",
            hint=f'Give --task-app FILE, or write task_app = "FILE" into [services] of {config.path}.',
        )
    from taskapp_kit.cli import job_progress, train_local, train_local_output

    wanted = train_local.LocalTraining(config, found, load(env_files=env_files), model, fresh=fresh, quiet=as_json)
    for warning in config.warnings:
        echo(f"Warning: {clean(warning)}", err=True)
    result = train_local.train(wanted, ctx)
    if as_json:
        print_json(result.to_json())
    else:
        train_local_output.show(result, wanted)
    if not succeeded(result.status):
        raise JobError(
            job_progress.cause_of(result.status),
            hint="The same command again goes on from its last checkpoint; with --fresh it begins anew.",
        )


def _fine_tune(
    ctx: click.Context,
    config_path: Path,
    env_files: tuple[str, ...],
    model: str | None,
    task_app: str | None,
    *,
    fresh: bool,
    as_json: bool,
) -> None:
    _refuse_remote(ctx, "--type sft, which trains on this machine")
    if task_app is not None:
        raise click.UsageError("--task-app is not for --type sft, which plays no episodes.")
    from taskapp_kit.cli import train_sft

    config = train_sft.config_of(config_path, model)
    for warning in config.warnings:
        echo(f"Warning: {clean(warning)}", err=True)
    result, files = train_sft.train(config, load(env_files=env_files), ctx, fresh=fresh, quiet=as_json)
    if as_json:
        print_json(train_sft.to_json(result, files))
    else:
        train_sft.show(result, files)


def _refuse_remote(ctx: click.Context, way: str) -> None:
    for param in ctx.command.params:
        if param.name in REMOTE and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{param.opts[0]} is not for {way}.")


def _config(path: Path) -> client.RlConfig:
    try:
        return client.load_rl_config(path)
    except FileNotFoundError as error:
        raise ConfigError(str(error) or f"There is no file {path}.") from None
