"""`taskapp backend serve`: serve a job backend whose engine trains a model or only plays rollouts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import click

from taskapp_kit.cli.options import ENV_FILES, LOG_LEVEL, listen_options
from taskapp_kit.cli.output.terminal import clean, console, example, table, until_stopped
from taskapp_kit.cli.train import backend_viewer as viewers
from taskapp_kit.config import Settings, load
from taskapp_kit.deploy.tunnel import gateway_tunnel as tunnels
from taskapp_kit.errors import ConfigError, StoreError
from taskapp_kit.jobs.server import app as backends
from taskapp_kit.jobs.server import auth, rollouts_engine
from taskapp_kit.jobs.server import engine as engines
from taskapp_kit.serve import connection_limits, uvicorn_server
from taskapp_kit.train.engine import local_engine
from taskapp_kit.train.gateway import gateway_options as gateways
from taskapp_kit.train.sampler.vllm import place as vllm_place
from taskapp_kit.train.serving import served_models
from taskapp_kit.viewer import viewer as server_viewer

DEFAULT_STORE = "sqlite:///.taskapp/backend.db"
KEY = "SYNTH_API_KEY"
LOCAL = "local"
GRACE_SECONDS = 5
"""How long requests may continue after Ctrl-C, in seconds. Jobs continue when the backend restarts."""


@click.group(epilog=example("taskapp backend serve"))
def command() -> None:
    """Serve a backend for training jobs.

    The engine `local` trains a model on this machine with rollouts of the task app. The engine `rollouts` only plays
    rollouts and reports their rewards.
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
    type=click.Choice(["rollouts", LOCAL]),
    default="rollouts",
    help="rollouts only plays and scores. local trains, one job at a time (needs the extra train).",
)
@click.option(
    "--store",
    default=DEFAULT_STORE,
    metavar="URL",
    help="The store for jobs. With none, jobs are lost when the backend stops.",
)
@ENV_FILES
@click.option(
    "--max-jobs",
    type=click.IntRange(1, 256),
    default=4,
    metavar="N",
    help="Maximum concurrent jobs. The engine local runs only one.",
)
@click.option(
    "--models",
    metavar="DIR",
    help="The directory for models and checkpoints of the engine local.  [default: TASKAPP_MODELS, else .taskapp/models]",
)
@click.option(
    "--gateway-url",
    metavar="URL",
    help="The address at which task apps reach the gateway of the engine local.  [default: a loopback address]",
)
@click.option(
    "--gateway-listen", metavar="HOST:PORT", help="Where the gateway listens.  [default: a free port of 127.0.0.1]"
)
@click.option("--gateway-tunnel", is_flag=True, help="Open an https tunnel to the gateway, for remote task apps.")
@click.option(
    "--allow-task-app",
    "allow",
    multiple=True,
    metavar="HOST",
    help="Allow task apps at this private host or network although other machines can reach the backend.",
)
@LOG_LEVEL
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="The log format.")
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
    log_format: Any,
) -> None:
    """Serve jobs over HTTP, protected by a key.

    The accepted keys are the comma-separated values of SYNTH_API_KEY in the process environment, --env-file or .env. If
    SYNTH_API_KEY is not set and the address is a loopback address, a key is created and printed once. On any other address,
    SYNTH_API_KEY is required. The backend calls task apps with their uploaded keys, or else with ENVIRONMENT_API_KEY.
    Ctrl-C stops the backend. Running jobs continue when the backend restarts.
    """
    settings = load({} if models is None else {"models": models}, env_files=env_files)
    gateway = gateways.GatewayOptions.of(url=gateway_url, listen=gateway_listen, tunnel=gateway_tunnel)
    local = uvicorn_server.bound_to_this_machine(host)
    with until_stopped(ctx, StoreError):
        keys, minted = _keys(settings, host, local=local)
        bearer = auth.BearerKeys(keys, minted=minted)
        uvicorn_server.log_to_stderr(log_level, log_format)
        with _engine(engine, settings, gateway) as running:
            app = backends.create_backend(
                bearer,
                store=store,
                environment_api_key=settings.environment_api_key,
                local=local,
                allow=allow,
                hosts=(host, *settings.hosts) if local else settings.hosts,
                max_jobs=max_jobs,
                engine=running,
                models=served_models.ServedModels(settings.models, settings.aliases) if engine == LOCAL else None,
            )
            viewer = None
            if settings.ui if settings.ui is not None else local:
                viewer = viewers.backend_viewer(app.state.jobs, bearer, keys if minted is None else [minted], settings)
            uvicorn_server.run(
                app if viewer is None else server_viewer.UiMount(viewer, app),
                host=host,
                port=port,
                log_level=log_level,
                log_format=log_format,
                grace_seconds=GRACE_SECONDS,
                drain=app.state.drain,
                limits=connection_limits.limits_of(settings),
                announce=lambda url: _banner(url, settings, running, store, minted, local=local, viewer=viewer),
            )


def _keys(settings: Settings, host: str, *, local: bool) -> tuple[list[str], str | None]:
    """Return (the configured keys, None). If no key is configured, return (an empty list, a new key).

    Raises ConfigError if no key is configured and other machines can reach the backend.
    """
    keys = [key for key in (settings.variable(KEY) or "").split(",") if key.strip()]
    if keys:
        return keys, None
    if not local:
        raise ConfigError(
            f"The backend did not start, because other machines can reach {host} and no key is configured.",
            hint=f"Set {KEY} (in the environment or an --env-file), or serve on 127.0.0.1.",
        )
    return [], secrets.token_urlsafe(24)


@contextmanager
def _engine(name: str, settings: Settings, gateway: gateways.GatewayOptions) -> Iterator[engines.Engine]:
    """Provide an engine while the block runs, and open its gateway's tunnel if one is configured.

    Raises ConfigError for gateway options with the engine `rollouts`, Unavailable if the extra `train` is not installed,
    and TunnelError if the tunnel cannot be opened.
    """
    if name == rollouts_engine.RolloutsEngine.name:
        if gateway != gateways.GatewayOptions():
            raise ConfigError("The engine `rollouts` has no gateway.", hint="Pass --engine local, or omit --gateway-*.")
        yield rollouts_engine.RolloutsEngine()
        return
    local_engine.check_installed()
    with tunnels.gateway_tunnel(gateway) if gateway.tunnel else nullcontext(gateway) as reached:
        vllm = vllm_place.VllmPlace.of(settings.vllm, settings.variable(vllm_place.KEY_VARIABLE))
        yield local_engine.LocalEngine(settings.models, settings.aliases, gateway=reached, vllm=vllm)


def _banner(
    url: str,
    settings: Settings,
    engine: engines.Engine,
    store: str,
    minted: str | None,
    *,
    local: bool,
    viewer: server_viewer.Viewer | None,
) -> None:
    """Print the engine, the store, the next command, and, if there are any, a new key and a login link."""
    out = console()
    out.print(f"taskapp backend at {url}", style="bold", soft_wrap=True)
    facts = table("", "")
    facts.add_row("engine", engine.description)
    facts.add_row("trainer id", engine.name)
    if engine.updates_weights:
        facts.add_row("models", clean(str(settings.models)))
    persistent = store.strip().lower() not in ("none", "memory", ":memory:")
    facts.add_row("store", clean(store) if persistent else "none; jobs are lost when the backend stops")
    own = f"created for this run and shown only here; set {KEY} for a permanent key"
    facts.add_row("key", own if minted else KEY)
    uploaded = "uploaded keys (taskapp setup)"
    facts.add_row("task apps", "ENVIRONMENT_API_KEY" if settings.environment_api_key else uploaded)
    if viewer is not None:
        link = "log in with the link below, which works once, or with the key"
        facts.add_row("viewer", link if local else f"{url}{server_viewer.UI}")
    if not local:
        facts.add_row("warning", "other machines can reach this address; put a TLS proxy in front of it")
    out.print(facts)
    out.print()
    if minted is not None:
        out.print(f"export {KEY}={minted}", soft_wrap=True)
    if viewer is not None and local:
        out.print(viewer.login_link(url), soft_wrap=True)
    out.print(f"export BACKEND_BASE_URL={url}", soft_wrap=True)
    out.print("taskapp train --config rl.toml --task-url http://127.0.0.1:8001", soft_wrap=True)
    out.print("\nCtrl-C stops the backend.", style="dim")
