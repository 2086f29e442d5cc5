"""`taskapp backend serve`: a job server on this machine, whose first engine plays rollouts and trains nothing."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.options import ENV_FILES, LOG_LEVEL, listen_options
from taskapp_kit.cli.terminal import clean, complain, console, example, table
from taskapp_kit.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from taskapp_kit.backend.auth import BearerKeys
    from taskapp_kit.config import Settings

DEFAULT_STORE = "sqlite:///.taskapp/backend.db"
KEY = "SYNTH_API_KEY"


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
    from taskapp_kit.backend.app import create_backend
    from taskapp_kit.config import load
    from taskapp_kit.serve.connections import limits_of
    from taskapp_kit.serve.uvicorn_server import bound_to_this_machine, log_to_stderr, run

    form: Any = log_format
    settings = load({}, env_files=env_files)
    local = bound_to_this_machine(host)
    keys, minted = _keys(settings, host, local=local)
    log_to_stderr(log_level, form)
    try:
        app = create_backend(
            keys,
            store=store,
            environment_api_key=settings.environment_api_key,
            local=local,
            allow=allow,
            max_jobs=max_jobs,
        )
        run(
            app,
            host=host,
            port=port,
            log_level=log_level,
            log_format=form,
            grace_seconds=5,
            drain=app.state.drain,
            limits=limits_of(settings),
            announce=lambda url: _banner(url, settings, store, minted, local=local),
        )
    except KeyboardInterrupt:
        pass
    except StoreError as error:
        complain(error)
        ctx.exit(1)
    click.echo("\nStopped.", err=True)


def _keys(settings: Settings, host: str, *, local: bool) -> tuple[BearerKeys, str | None]:
    """The keys that the backend accepts, and the one that was made for it. Raises ConfigError."""
    from taskapp_kit.backend.auth import BearerKeys

    given = [key for key in (settings.variable(KEY) or "").split(",") if key.strip()]
    if given:
        return BearerKeys(given), None
    if not local:
        raise ConfigError(
            f"No key is configured, and {host} can be reached from other machines, so nothing is served.",
            hint=f"Set {KEY} (in the environment or an --env-file), or serve on 127.0.0.1.",
        )
    minted = secrets.token_urlsafe(24)
    return BearerKeys([], minted=minted), minted


def _banner(url: str, settings: Settings, store: str, minted: str | None, *, local: bool) -> None:
    """What is served and what it is not; a minted key, once; the next command."""
    out = console()
    out.print(f"taskapp backend at {url}", style="bold", soft_wrap=True)
    facts = table("", "")
    facts.add_row("engine", "rollouts: plays and scores; no weights are updated")
    facts.add_row("trainer id", "rollouts")
    persistent = store.strip().lower() not in ("none", "memory", ":memory:")
    facts.add_row("store", clean(store) if persistent else "none: jobs are forgotten when it stops")
    facts.add_row("key", f"made for this run and shown here only; {KEY} gives one that stays" if minted else KEY)
    own = "ENVIRONMENT_API_KEY" if settings.environment_api_key else "those that are uploaded (taskapp setup)"
    facts.add_row("task apps", own)
    if not local:
        facts.add_row("warning", "this address can be reached from other machines; put TLS before it")
    out.print(facts)
    out.print()
    if minted is not None:
        out.print(f"export {KEY}={minted}", soft_wrap=True)
    out.print(f"export BACKEND_BASE_URL={url}", soft_wrap=True)
    out.print("taskapp train --config rl.toml --task-url http://127.0.0.1:8001", soft_wrap=True)
    out.print("\nCtrl-C stops it.", style="dim")
