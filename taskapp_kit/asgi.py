"""The server of a task app. Only this module connects the service, store, HTTP routes, protocols and viewer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastapi import FastAPI

from taskapp_kit.config import Settings, from_environment
from taskapp_kit.declare.app import Exposure, TaskApp
from taskapp_kit.interop.protocols import load_protocols
from taskapp_kit.records.protocols import Clock, IdempotencyStore, Store
from taskapp_kit.rollout.service import Service
from taskapp_kit.serve.app import create_app
from taskapp_kit.serve.auth import Keys
from taskapp_kit.serve.route import WireProtocol
from taskapp_kit.store import open_store
from taskapp_kit.viewer.source import ProtocolClients, ServiceSource
from taskapp_kit.viewer.viewer import UI, UiMount, Viewer


def build(
    app: TaskApp,
    settings: Settings | None = None,
    *,
    exposure: Exposure = "public",
    store: Store | None = None,
    clock: Clock | None = None,
    coordinator: IdempotencyStore | None = None,
    skip_judges: bool = False,
) -> FastAPI:
    """Return the FastAPI application of a task app.

    Args:
        app: The task app to serve. It is frozen by this call.
        settings: The server's settings. Defaults to the values in the process environment.
        exposure: Who can reach the server: `local` or `public`.
        store: Where rollouts are saved. Defaults to the store named in `settings`. If `settings` names no store,
            nothing is saved.
        clock: The clock for timestamps and time limits. Defaults to the system clock.
        coordinator: Where idempotency records are stored. Defaults to the store, or to this process's memory if there
            is no store.
        skip_judges: Score rollouts without judges. The scorecards report the judges as skipped.

    Raises:
        DeclarationError: A declaration is invalid; the message lists every problem.
        ConfigError: A setting is invalid, or a key file cannot be read.
        Unavailable: A package that the app needs is not installed.
        StoreError: The store cannot be opened.
    """
    settings = settings or from_environment()
    if store is None and settings.store not in (None, "none"):
        store = open_store(str(settings.store))
    service = Service.of(
        app,
        settings,
        exposure=exposure,
        store=store,
        clock=clock,
        is_server_key=Keys.of(settings).has_key,
        max_concurrent=settings.max_concurrent,
        max_time_seconds=settings.max_time_seconds,
        workers=settings.workers,
        skip_judges=skip_judges,
        session_idle_seconds=settings.session_idle_seconds,
        gold=settings.gold,
    )
    return create(service, settings, exposure=exposure, coordinator=coordinator)


def create(
    service: Service, settings: Settings, *, exposure: Exposure = "public", coordinator: IdempotencyStore | None = None
) -> FastAPI:
    """Return the application that serves `service`, with the protocols listed in `settings`.

    The viewer is at `/ui` if `settings.ui` is true, or if `settings.ui` is None and the exposure is `local`. The other
    arguments are described at `serve.app.create_app`.

    Raises:
        ConfigError: The key file cannot be read, or a protocol cannot be loaded.
    """
    protocols = load_protocols(settings.protocols)
    app = create_app(service, settings, protocols=protocols, exposure=exposure, coordinator=coordinator)
    app.state.viewer = None
    if settings.ui if settings.ui is not None else exposure == "local":
        metrics = app.state.metrics
        viewer = Viewer(
            ServiceSource(service, partial(_client_lines, protocols)),
            app.state.keys,
            title=service.spec.name,
            hosts=(settings.host, *settings.hosts, *settings.ui_hosts),
            clock=service.clock,
            on_answer=lambda method, status: metrics.answered(method, UI, status),
        )
        # mounted outside the CORS middleware, because no other site may read these pages
        app.state.viewer, app.gate = viewer, UiMount(viewer, app.gate or app.routed)
    return app


def _client_lines(protocols: Sequence[WireProtocol], url: str, environments: Sequence[str]) -> list[ProtocolClients]:
    return [
        ProtocolClients(protocol.summary, [(lines.title, lines.text) for lines in protocol.clients(url, environments)])
        for protocol in protocols
    ]
