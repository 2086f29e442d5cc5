"""What `taskapp view` does: opens the source, and serves its pages on loopback."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taskapp_kit.cli.local_app import open_app
from taskapp_kit.cli.terminal import clean, console
from taskapp_kit.config import load
from taskapp_kit.evaluate.source import open_source
from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.rollout.source import RolloutSource
from taskapp_kit.serve.keys import Keys
from taskapp_kit.serve.uvicorn_server import run
from taskapp_kit.serve.viewer.source import Scale, UiSource, scales_of
from taskapp_kit.serve.viewer.viewer import UI, UiMount, Viewer

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

HOST = "127.0.0.1"
LABEL = "local"
"""The key label behind the link: the annotator of annotations that are made here."""
REPORT = "report.html"


def ui_source(source: RolloutSource, scales: Sequence[Scale] = ()) -> UiSource:
    """What the pages of an evaluation's directory or of a store show."""
    interval = source.config.get("options", {}).get("interval", "bootstrap")
    return UiSource(source.place, source, scales, annotates=source.annotates, interval=interval)


def view(reference: str, app: str | None, port: int) -> None:
    """Serve the pages of a source until Ctrl-C. Raises ConfigError, StoreError, DiscoveryError, DeclarationError."""
    settings = load()
    scales = [] if app is None else scales_of(open_app(app, settings).freeze())
    source = open_source(reference)
    directory = Path(reference)
    shown = ui_source(source, scales)
    if directory.is_dir():
        report = directory / REPORT
        shown.report = report if report.is_file() else None
    elif app is not None:
        shown.replay_arguments = (app,)
    keys = Keys([(LABEL, secrets.token_urlsafe(32))])
    title = directory.resolve().name if directory.exists() else "rollouts"
    viewer = Viewer(shown, keys, title=title)

    def announce(url: str) -> None:
        out = console()
        out.print(f"{clean(shown.place)} at", style="bold", soft_wrap=True)
        out.print(viewer.login_link(url), soft_wrap=True)
        out.print("\nThe link logs a browser in, once. Ctrl-C stops it.", style="dim")

    run(UiMount(viewer, _Elsewhere(source)), host=HOST, port=port, log_level="warning", announce=announce)


class _Elsewhere:
    """Everything but `/ui`: the way there, and the end of the server."""

    def __init__(self, source: RolloutSource) -> None:
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            at_root = scope["path"] == "/"
            headers = [(b"location", f"{UI}/".encode())] if at_root else []
            await EncodedResponse(303 if at_root else 404, b"", headers)(scope, receive, send)
        elif scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await self._source.close()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})
