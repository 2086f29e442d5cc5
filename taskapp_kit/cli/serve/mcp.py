"""`taskapp mcp`: let an MCP client play an episode over stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
from typing import Any

import click

from taskapp_kit.cli import local_app
from taskapp_kit.cli.options import ENV_CONFIG, ENV_FILES, EPISODE, JUDGES
from taskapp_kit.cli.output.terminal import clean, echo, example, number
from taskapp_kit.config import Settings, load
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.episode_selection import find_environment
from taskapp_kit.errors import RolloutFailed, Unavailable
from taskapp_kit.records import rollout as rollout_result
from taskapp_kit.rollout import service as rollout_service

CONCURRENCY = 4
"""The number of concurrent rollouts: the current episode, and earlier episodes that are still being stored."""


@click.command(
    epilog=example("taskapp mcp adder.py --seed 7", "taskapp mcp crafter --control --store sqlite:///rollouts.db")
)
@click.argument("app")
@EPISODE
@ENV_CONFIG
@click.option("--control", is_flag=True, help="Also offer reset, finish, scorecard and rewards. Not for policies.")
@JUDGES
@ENV_FILES
@click.option("--store", metavar="URL", help="Where to store the episodes: sqlite:///PATH.  [default: none]")
def command(
    app: str,
    environment: str | None,
    seed: int | None,
    split: str | None,
    env_config: dict[str, Any] | None,
    control: bool,
    judges: str,
    env_files: tuple[str, ...],
    store: str | None,
) -> None:
    """Serve an episode to an MCP client over stdin and stdout.

    The actions are offered as tools. The first tool call starts the episode. When the environment ends the episode or the
    client disconnects, the episode is scored. Rewards are printed to stderr. The client sees rewards only with --control.
    """
    settings = load({"store": store}, env_files=env_files)
    if importlib.util.find_spec("mcp") is None:
        raise Unavailable(
            "`taskapp mcp` needs the MCP SDK, which is not installed.", hint="Run: pip install 'taskapp-kit[mcp]'"
        )
    with contextlib.redirect_stdout(sys.stderr):  # stdout is reserved for the protocol
        target = local_app.open_app(app, settings)
    choice = {"seed": seed, "split": split, "config": env_config or {}}
    asyncio.run(_serve(target, settings, environment, choice, control=control, skip_judges=judges == "skip"))


async def _serve(
    app: TaskApp,
    settings: Settings,
    environment: str | None,
    choice: dict[str, Any],
    *,
    control: bool,
    skip_judges: bool,
) -> None:
    """Serve until the client disconnects. choice: The fields of EpisodeChoice."""
    from mcp.server.stdio import stdio_server

    from taskapp_kit.interop.mcp.connection import EpisodeChoice, McpConnection
    from taskapp_kit.interop.mcp.server import mcp_server

    async with local_app.local_service(
        app,
        settings,
        store=settings.store,
        skip_judges=skip_judges,
        concurrency=CONCURRENCY,
        max_calls=settings.max_calls_per_answer,
        session_idle_seconds=rollout_service.EPISODE_SECONDS,
    ) as service:
        spec = find_environment(service.spec, environment)
        connection = McpConnection(service.sessions, spec, EpisodeChoice(**choice), control=control, ended=_say)
        server = mcp_server(connection, service.spec.name)
        # The SDK redirects descriptor 1, but text that is already buffered in sys.stdout would still reach the client.
        async with stdio_server() as (read, write):
            with contextlib.redirect_stdout(sys.stderr):
                try:
                    await server.run(read, write, server.create_initialization_options())
                finally:
                    await connection.close()


def _say(end: rollout_result.Rollout | RolloutFailed) -> None:
    """Print the result of an episode on stderr."""
    if isinstance(end, RolloutFailed):
        local_app.show_traceback(end.__cause__)
        failure = end.failure
        line = f"{end.rollout_id or 'The episode'} failed at boundary {failure.boundary} ({failure.code}): {failure.message}"
    else:
        reward = "undefined" if end.reward is None else number(end.reward)
        line = f"{end.rollout_id} {end.status} ({end.stop_reason}), steps {end.length}, reward {reward}"
    echo(clean(line), err=True)
