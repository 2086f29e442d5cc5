"""`taskapp backend serve`: a job server on this machine, whose engine trains a model or only plays rollouts."""

from __future__ import annotations

import click

from taskapp_kit.cli.options import ENV_FILES, LOG_LEVEL, listen_options
from taskapp_kit.cli.terminal import complain, echo, example
from taskapp_kit.config import load
from taskapp_kit.errors import StoreError

DEFAULT_STORE = "sqlite:///.taskapp/backend.db"


@click.group(epilog=example("taskapp backend serve"))
def command() -> None:
    """Serve training jobs: submit, follow, cancel.

    The engine `local` trains a model on this machine with the rollouts of the task app. The engine `rollouts` plays them
    and reports their rewards; it updates no weights.
    """


@command.command(
    epilog=example(
        "taskapp backend serve",
        "taskapp backend serve --engine local",
        "taskapp backend serve --port 8510 --store none",
        "taskapp backend serve --host 0.0.0.0 --env-file backend.env --allow-task-app 10.0.0.0/8",
    )
)
@listen_options(8500)
@click.option(
    "--engine",
    type=click.Choice(["rollouts", "local"]),
    default="rollouts",
    help="rollouts plays and scores; local trains, one job at a time (extra: train).",
)
@click.option(
    "--store",
    default=DEFAULT_STORE,
    metavar="URL",
    help="Where jobs are stored; none forgets them when the backend stops.",
)
@ENV_FILES
@click.option(
    "--max-jobs",
    type=click.IntRange(1, 256),
    default=4,
    metavar="N",
    help="Jobs that run at once; with the engine local it is one.",
)
@click.option(
    "--models",
    metavar="DIR",
    help="Where the engine local has models and saves checkpoints; TASKAPP_MODELS, else .taskapp/models.",
)
@click.option(
    "--gateway-url",
    metavar="URL",
    help="The address of the engine local's gateway for task apps, if they cannot use this machine's loopback address.",
)
@click.option(
    "--gateway-listen",
    metavar="HOST:PORT",
    help="Where that gateway listens; a free port of 127.0.0.1 if it is left out.",
)
@click.option("--gateway-tunnel", is_flag=True, help="Open a tunnel to it, for task apps elsewhere (https).")
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
    engine: str,
    store: str,
    env_files: tuple[str, ...],
    max_jobs: int,
    models: str | None,
    gateway_url: str | None,
    gateway_listen: str | None,
    gateway_tunnel: bool,
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
    from taskapp_kit.train.gateway.options import GatewayOptions

    try:
        backend_run.serve(
            load({} if models is None else {"models": models}, env_files=env_files),
            host=host,
            port=port,
            engine_name=engine,
            store=store,
            gateway=GatewayOptions.of(url=gateway_url, listen=gateway_listen, tunnel=gateway_tunnel),
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
    echo("\nStopped.", err=True)
