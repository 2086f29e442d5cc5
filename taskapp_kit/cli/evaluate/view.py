"""`taskapp view`: serve the viewer for an evaluation's directory or a store, on this machine."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskapp_kit.cli import local_app
from taskapp_kit.cli.options import is_url
from taskapp_kit.cli.output.terminal import clean, console, example, until_stopped
from taskapp_kit.config import load
from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate import source as sources
from taskapp_kit.net import response as net_response
from taskapp_kit.records.score_ranges import ScoreRanges
from taskapp_kit.rollout import source as rollout_source
from taskapp_kit.serve import auth, uvicorn_server
from taskapp_kit.viewer import source as viewer_source
from taskapp_kit.viewer import viewer as viewers

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from taskapp_kit.declare.specs import AppSpec

DEFAULT_SOURCE = ".taskapp/rollouts.db"
DEFAULT_PORT = 8002
HOST = "127.0.0.1"
LABEL = "local"
"""The key label of the login link. Scores entered in this viewer are stored with it as the annotator."""
REPORT = "report.html"


@click.command(
    epilog=example(
        "taskapp view",
        "taskapp view .taskapp/evals/adder-gold-20260301-110000",
        "taskapp view postgresql://… --app adder.py --port 0",
    )
)
@click.argument("source", metavar="[DIR|STORE]", default=DEFAULT_SOURCE, required=False)
@click.option("--app", metavar="APP", help="The app whose rubrics and judges people can score.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=DEFAULT_PORT,
    metavar="P",
    help="The port on 127.0.0.1; 0 picks a free one.",
)
@click.pass_context
def command(ctx: click.Context, /, source: str, app: str | None, port: int) -> None:
    """Show stored rollouts as web pages, on this machine only.

    DIR is an evaluation's directory, STORE a path or an address (sqlite:///PATH, postgresql://…). The default is the store of
    `taskapp serve` in the working directory. Open the printed link, which logs a browser in and works once. A running server
    serves the same pages at /ui. Ctrl-C stops the viewer.
    """
    if is_url(source):
        raise click.UsageError(f"A server has its own viewer. Open {source.rstrip('/')}/ui.")
    with until_stopped(ctx, ConfigError):
        _serve(source, app, port)


def _serve(reference: str, app: str | None, port: int) -> None:
    """Serve the pages of a source until Ctrl-C.

    Raises ConfigError or StoreError if the source cannot be opened, and DiscoveryError or DeclarationError if the app
    cannot be loaded.
    """
    settings = load()
    spec = None if app is None else local_app.open_app(app, settings).freeze()
    rollouts, directory = sources.open_source(reference), Path(reference)
    shown = ui_source(rollouts, spec)
    if directory.is_dir():
        report = directory / REPORT
        shown.report = report if report.is_file() else None
    elif app is not None:
        shown.replay_arguments = (app,)
    keys = auth.Keys([(LABEL, secrets.token_urlsafe(32))])
    title = directory.resolve().name if directory.exists() else "rollouts"
    viewer = viewers.Viewer(shown, keys, title=title)

    def announce(url: str) -> None:
        out = console()
        out.print(f"{clean(shown.place)} at", style="bold", soft_wrap=True)
        out.print(viewer.login_link(url), soft_wrap=True)
        out.print("\nThe link works once. Ctrl-C stops the viewer.", style="dim")

    served = viewers.UiMount(viewer, _Elsewhere(rollouts))
    uvicorn_server.run(served, host=HOST, port=port, log_level="warning", announce=announce)


def ui_source(source: rollout_source.RolloutSource, spec: AppSpec | None = None) -> viewer_source.UiSource:
    """Return the viewer's source for an evaluation's directory or a store. spec: The app's declarations, if available."""
    ranges = {} if spec is None else viewer_source.reward_ranges(spec)
    if "ranges" in source.config:
        ranges[source.config["asked"]["environment"]] = ScoreRanges.from_json(source.config["ranges"]).reward
    return viewer_source.UiSource(
        source.place,
        source,
        [] if spec is None else viewer_source.scales_of(spec),
        annotates=source.annotates,
        interval=source.config.get("options", {}).get("interval", "bootstrap"),
        reward_ranges=ranges,
    )


class _Elsewhere:
    """The application for all paths outside `/ui`. It redirects `/` to `/ui/` and closes the source at shutdown."""

    def __init__(self, source: rollout_source.RolloutSource) -> None:
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Websockets are closed."""
        if scope["type"] == "http":
            at_root = scope["path"] == "/"
            headers = [(b"location", f"{viewers.UI}/".encode())] if at_root else []
            await net_response.EncodedResponse(303 if at_root else 404, b"", headers)(scope, receive, send)
        elif scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await self._source.close()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})
