"""What `taskapp mcp` does: serves one connection over stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import Mapping

from taskapp_kit.cli.local_app import local_service, open_app, show_traceback
from taskapp_kit.cli.terminal import clean, echo, number
from taskapp_kit.config import Settings
from taskapp_kit.contract.content import Json
from taskapp_kit.contract.result import Rollout
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.episode_selection import find_environment
from taskapp_kit.errors import RolloutFailed, Unavailable
from taskapp_kit.rollout.service import EPISODE_SECONDS

CONCURRENCY = 4
"""Rollouts at once: the one that is played, and those that a reset left and that are still being stored."""


def serve_stdio(
    reference: str,
    settings: Settings,
    *,
    environment: str | None,
    seed: int | None,
    split: str | None,
    config: Mapping[str, Json],
    control: bool,
    skip_judges: bool,
) -> None:
    """Serve until the client disconnects. Raises DiscoveryError, DeclarationError, RequestError, StoreError, Unavailable."""
    if importlib.util.find_spec("mcp") is None:
        raise Unavailable(
            "`taskapp mcp` needs the MCP SDK, which is not installed.", hint="pip install 'taskapp-kit[mcp]'"
        )
    with contextlib.redirect_stdout(sys.stderr):  # what the author's file prints is not for the client
        app = open_app(reference, settings)
    asyncio.run(_serve(app, settings, environment, seed, split, config, control=control, skip_judges=skip_judges))


async def _serve(
    app: TaskApp,
    settings: Settings,
    environment: str | None,
    seed: int | None,
    split: str | None,
    config: Mapping[str, Json],
    *,
    control: bool,
    skip_judges: bool,
) -> None:
    from mcp.server.stdio import stdio_server

    from taskapp_kit.serve.protocols.mcp.connection import EpisodeChoice, McpConnection
    from taskapp_kit.serve.protocols.mcp.server import mcp_server

    async with local_service(
        app,
        settings,
        store=settings.store,
        skip_judges=skip_judges,
        concurrency=CONCURRENCY,
        max_calls=settings.max_calls_per_answer,
        session_idle_seconds=EPISODE_SECONDS,
    ) as service:
        spec = find_environment(service.spec, environment)
        choice = EpisodeChoice(seed, split, config)
        connection = McpConnection(service.sessions, spec, choice, control=control, ended=_say)
        server = mcp_server(connection, service.spec.name)
        # The SDK sends what is written to descriptor 1 elsewhere, but text that sys.stdout still buffers would follow later.
        async with stdio_server() as (read, write):
            with contextlib.redirect_stdout(sys.stderr):
                try:
                    await server.run(read, write, server.create_initialization_options())
                finally:
                    await connection.close()


def _say(end: Rollout | RolloutFailed) -> None:
    """Say on stderr how an episode ended."""
    if isinstance(end, RolloutFailed):
        show_traceback(end.__cause__)
        failure = end.failure
        line = f"{end.rollout_id or 'The episode'} failed at boundary {failure.boundary} ({failure.code}): {failure.message}"
    else:
        reward = "undefined" if end.reward is None else number(end.reward)
        line = f"{end.rollout_id} {end.status} ({end.stop_reason}), steps {end.length}, reward {reward}"
    echo(clean(line), err=True)
