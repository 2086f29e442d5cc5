"""`taskapp view`: the viewer for an evaluation's directory or a store, on this machine."""

from __future__ import annotations

import click

from taskapp_kit.cli.options import is_url
from taskapp_kit.cli.terminal import complain, echo, example
from taskapp_kit.errors import ConfigError

DEFAULT_SOURCE = ".taskapp/rollouts.db"
DEFAULT_PORT = 8002


@click.command(
    epilog=example(
        "taskapp view",
        "taskapp view .taskapp/evals/adder-gold-20260301-110000",
        "taskapp view postgresql://… --app adder.py --port 0",
    )
)
@click.argument("source", metavar="[DIR|STORE]", default=DEFAULT_SOURCE, required=False)
@click.option("--app", metavar="APP", help="The app, for the scales in which people score rollouts.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=DEFAULT_PORT,
    metavar="P",
    help="On 127.0.0.1; 0 takes a free one.",
)
@click.pass_context
def command(ctx: click.Context, /, source: str, app: str | None, port: int) -> None:
    """Show stored rollouts as web pages, on this machine alone.

    DIR is an evaluation's directory, STORE a path or an address (sqlite:///PATH, postgresql://…); without either the
    store of `taskapp serve` here. A link is printed that logs a browser in, once. A running server has the same pages at
    /ui. Ctrl-C ends it.
    """
    if is_url(source):
        raise click.UsageError(f"A server has the viewer itself: open {source.rstrip('/')}/ui.")
    from taskapp_kit.cli import view_run

    try:
        view_run.view(source, app, port)
    except KeyboardInterrupt:
        pass
    except ConfigError as error:  # the command line was right: the port is taken, nothing is stored there
        complain(error)
        ctx.exit(1)
    echo("\nStopped.", err=True)
