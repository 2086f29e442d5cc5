"""`taskapp backend serve`: a job server on this machine, whose first engine plays rollouts and trains nothing."""

from __future__ import annotations

import click

from taskapp_kit.cli.options import ENV_FILES, LOG_LEVEL, listen_options
from taskapp_kit.cli.terminal import complain, example
from taskapp_kit.config import load
from taskapp_kit.errors import StoreError

DEFAULT_STORE = "sqlite:///.taskapp/backend.db"


@click.group(epilog=example("taskapp backend serve"))
def command() -> None:
    """Serve training jobs: submit, follow, cancel.

    Its engine `rollouts` plays a job's rollouts through the task app and reports their rewards. It updates no weights.
    """


@command.command(
    epilog=example(
        "taskapp backend serve",
        "taskapp backend serve --port 8510 --store none",
        "taskapp backend serve --host 0.0.0.0 --env-file backend.env --allow-task-app 10.0.0.0/8",
    )
)
@listen_options(8500)
@click.option(
    "--store",
    default=DEFAULT_STORE,
    metavar="URL",
    help="Where jobs are stored; none forgets them when the backend stops.",
)
@ENV_FILES
@click.option("--max-jobs", type=click.IntRange(1, 256), default=4, metavar="N", help="Jobs that run at once.")
@click.option(
    "--allow-task-app",
    "allow",
    multiple=True,
    metavar="HOST",
    help="Call task apps at this private host or network, though others can reach the backend.",
)
@LOG_LEVEL
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="How it is written.")
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    host: str,
    port: int,
    store: str,
    env_files: tuple[str, ...],
    max_jobs: int,
    allow: tuple[str, ...],
    log_level: str,
    log_format: str,
) -> None:
    """Serve jobs over HTTP, behind a key.

    SYNTH_API_KEY (a comma list) opens it, from the process environment, --env-file or .env; on the loopback address a
    missing one is made and shown once, elsewhere nothing is served without it. ENVIRONMENT_API_KEY is the key of task
    apps for which none was uploaded. Ctrl-C stops it; jobs that run go on when it starts again.
    """
    from taskapp_kit.cli import backend_run

    try:
        backend_run.serve(
            load({}, env_files=env_files),
            host=host,
            port=port,
            store=store,
            max_jobs=max_jobs,
            allow=allow,
            log_level=log_level,
            log_format=log_format,
        )
    except KeyboardInterrupt:
        pass
    except StoreError as error:
        complain(error)
        ctx.exit(1)
    click.echo("\nStopped.", err=True)
