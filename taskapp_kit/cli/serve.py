"""`taskapp serve`: an app over HTTP, on this machine."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from taskapp_kit.cli.options import ENV_FILES, LOG_LEVEL
from taskapp_kit.cli.terminal import clean, complain, console, echo, example, table
from taskapp_kit.config import Settings, load
from taskapp_kit.errors import ConfigError

DEFAULT_STORE = "sqlite:///.taskapp/rollouts.db"


@click.command(
    epilog=example(
        "taskapp serve adder.py",
        "taskapp serve crafter --port 8010 --store none",
        "taskapp serve crafter --workers 2",
        "taskapp serve adder.py --host 0.0.0.0 --env-file production.env",
    )
)
@click.argument("app")
@click.option("--host", metavar="H", help="The address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65_535), metavar="P", help="Its port; 0 takes a free one.  [default: 8001]"
)
@click.option(
    "--max-concurrent", type=click.IntRange(1, 1_000_000), metavar="N", help="Rollouts at once.  [default: 1024]"
)
@click.option(
    "--workers",
    type=click.IntRange(0, 256),
    metavar="N",
    help="Processes that play rollouts; 0 plays them in threads of the server.  [default: 0]",
)
@click.option(
    "--grace-seconds",
    type=click.IntRange(0, 3600),
    metavar="T",
    help="How long rollouts may go on after SIGTERM or Ctrl-C.  [default: 25]",
)
@click.option(
    "--max-time-seconds", type=click.FloatRange(0, 86_400, min_open=True), metavar="T", help="Longest rollout."
)
@click.option(
    "--max-calls-per-answer",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Tool calls of one answer that are done.  [default: 64]",
)
@click.option("--max-body-bytes", type=click.IntRange(1024, 2**30), metavar="N", help="Longest request body.")
@click.option("--cors-origins", metavar="LIST", help="Web pages that may call, with commas between.  [default: none]")
@click.option("--protocols", metavar="LIST", help="Protocols of others, with commas between, or all.  [default: none]")
@click.option(
    "--gold/--no-gold",
    default=None,
    help="Whether callers may ask for the policy gold.  [default: not where it reads private rows and others can call]",
)
@click.option("--debug-env", is_flag=True, default=None, help="Offer /debug/env, which reports whether keys are set.")
@ENV_FILES
@click.option("--keys-file", metavar="F", help="A file with one valid key a line, read again when it changes.")
@click.option(
    "--store",
    metavar="URL",
    help=f"Where rollouts are stored: sqlite:///PATH, postgresql://…, or none.  [default: {DEFAULT_STORE}]",
)
@click.option("--reload", is_flag=True, help="Start again whenever a Python file beside the app's changes.")
@LOG_LEVEL
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="How it is written: json is one object a line.  [default: text]",
)
@click.option("--show-config", is_flag=True, help="Show each setting and where it came from, and do not serve.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    app: str,
    env_files: tuple[str, ...],
    reload: bool,
    log_level: str,
    show_config: bool,
    **flags: Any,
) -> None:
    """Serve an app over HTTP, behind a key.

    A setting is taken from the first of: flag, process environment, --env-file, .env, taskapp.toml, default. On the
    loopback address a missing key is made and shown once; elsewhere serving without a key is refused. Ctrl-C ends it.
    """
    settings = load(flags, env_files=env_files)
    if settings.store is None:
        settings = dataclasses.replace(settings, store=DEFAULT_STORE)
    if show_config:
        _show(settings)
        return
    from taskapp_kit.cli import serve_run

    settings, minted, local = serve_run.with_key(settings)
    try:
        serve_run.serve(app, settings, minted=minted, local=local, reload=reload, log_level=log_level)
    except KeyboardInterrupt:
        pass
    except ConfigError as error:  # the settings were right: the address is taken, the store cannot be used
        complain(error)
        ctx.exit(1)
    echo("\nStopped.", err=True)


def _show(settings: Settings) -> None:
    rows = table("setting", "value", "from")
    for row in settings.shown():
        rows.add_row(*map(clean, row))
    console().print(rows)
