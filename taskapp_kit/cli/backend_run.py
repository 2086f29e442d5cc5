"""What `taskapp backend serve` does: a job server on this machine, until Ctrl-C."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from taskapp_kit.backend.app import create_backend
from taskapp_kit.backend.auth import BearerKeys
from taskapp_kit.backend.engine import Engine
from taskapp_kit.backend.rollouts_engine import RolloutsEngine
from taskapp_kit.cli.backend_viewer import backend_viewer
from taskapp_kit.cli.terminal import clean, console, table
from taskapp_kit.config import Settings
from taskapp_kit.deploy.tunnel.gateway_tunnel import gateway_tunnel
from taskapp_kit.errors import ConfigError
from taskapp_kit.serve.connection_limits import limits_of
from taskapp_kit.serve.uvicorn_server import bound_to_this_machine, log_to_stderr, run
from taskapp_kit.serve.viewer.viewer import UI, UiMount, Viewer
from taskapp_kit.train.engine.local_engine import LocalEngine, check_installed
from taskapp_kit.train.gateway.options import GatewayOptions
from taskapp_kit.train.sampler.vllm.place import KEY_VARIABLE, VllmPlace
from taskapp_kit.train.serving.served_models import ServedModels

KEY = "SYNTH_API_KEY"
GRACE_SECONDS = 5
"""How long requests may go on after Ctrl-C; jobs go on when the backend starts again."""


def serve(
    settings: Settings,
    *,
    host: str,
    port: int,
    engine_name: str,
    store: str,
    max_jobs: int,
    gateway: GatewayOptions,
    allow: Sequence[str],
    log_level: str,
    log_format: str,
) -> None:
    """Serve jobs. engine_name: rollouts or local. store: where they are stored. gateway: of the engine local.

    allow: private hosts and networks of task apps. Raises ConfigError, Unavailable, StoreError.
    """
    form: Any = log_format
    local = bound_to_this_machine(host)
    keys, minted = _keys(settings, host, local=local)
    bearer = BearerKeys(keys, minted=minted)
    log_to_stderr(log_level, form)
    with _engine(engine_name, settings, gateway) as engine:
        app = create_backend(
            bearer,
            store=store,
            environment_api_key=settings.environment_api_key,
            local=local,
            allow=allow,
            hosts=(host, *settings.hosts) if local else settings.hosts,
            max_jobs=max_jobs,
            engine=engine,
            models=ServedModels(settings.models, settings.aliases) if engine.updates_weights else None,
        )
        viewer = None
        if settings.ui if settings.ui is not None else local:
            viewer = backend_viewer(app.state.jobs, bearer, [minted] if minted is not None else keys, settings)
        run(
            app if viewer is None else UiMount(viewer, app),
            host=host,
            port=port,
            log_level=log_level,
            log_format=form,
            grace_seconds=GRACE_SECONDS,
            drain=app.state.drain,
            limits=limits_of(settings),
            announce=lambda url: _banner(url, settings, engine, store, minted, local=local, viewer=viewer),
        )


def _keys(settings: Settings, host: str, *, local: bool) -> tuple[list[str], str | None]:
    """The keys that are configured, and the one that is made where there is none. Raises ConfigError."""
    given = [key for key in (settings.variable(KEY) or "").split(",") if key.strip()]
    if given:
        return given, None
    if not local:
        raise ConfigError(
            f"No key is configured, and {host} can be reached from other machines, so nothing is served.",
            hint=f"Set {KEY} (in the environment or an --env-file), or serve on 127.0.0.1.",
        )
    return [], secrets.token_urlsafe(24)


@contextmanager
def _engine(name: str, settings: Settings, gateway: GatewayOptions) -> Iterator[Engine]:
    """The engine of this name, with its gateway's tunnel while the block runs. Raises ConfigError, Unavailable, TunnelError."""
    if name == RolloutsEngine.name:
        if gateway != GatewayOptions():
            raise ConfigError("The engine rollouts has no gateway.", hint="Add --engine local.")
        yield RolloutsEngine()
        return
    check_installed()
    with gateway_tunnel(gateway) if gateway.tunnel else nullcontext(gateway) as reached:
        vllm = VllmPlace.of(settings.vllm, settings.variable(KEY_VARIABLE))
        yield LocalEngine(settings.models, settings.aliases, gateway=reached, vllm=vllm)


def _banner(
    url: str,
    settings: Settings,
    engine: Engine,
    store: str,
    minted: str | None,
    *,
    local: bool,
    viewer: Viewer | None,
) -> None:
    """What is served and what it is not; a minted key, once; the next command."""
    out = console()
    out.print(f"taskapp backend at {url}", style="bold", soft_wrap=True)
    facts = table("", "")
    facts.add_row("engine", engine.description)
    facts.add_row("trainer id", engine.name)
    if engine.updates_weights:
        facts.add_row("models", clean(str(settings.models)))
    persistent = store.strip().lower() not in ("none", "memory", ":memory:")
    facts.add_row("store", clean(store) if persistent else "none: jobs are forgotten when it stops")
    facts.add_row("key", f"made for this run and shown here only; {KEY} gives one that stays" if minted else KEY)
    own = "ENVIRONMENT_API_KEY" if settings.environment_api_key else "those that are uploaded (taskapp setup)"
    facts.add_row("task apps", own)
    if viewer is not None:
        facts.add_row("viewer", "the link below logs a browser in, once; later the key does" if local else f"{url}{UI}")
    if not local:
        facts.add_row("warning", "this address can be reached from other machines; put TLS before it")
    out.print(facts)
    out.print()
    if minted is not None:
        out.print(f"export {KEY}={minted}", soft_wrap=True)
    if viewer is not None and local:
        out.print(viewer.login_link(url), soft_wrap=True)
    out.print(f"export BACKEND_BASE_URL={url}", soft_wrap=True)
    out.print("taskapp train --config rl.toml --task-url http://127.0.0.1:8001", soft_wrap=True)
    out.print("\nCtrl-C stops it.", style="dim")
