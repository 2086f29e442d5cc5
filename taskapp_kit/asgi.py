"""Builds the server of a task app: the only module that connects service, store and HTTP."""

from __future__ import annotations

from fastapi import FastAPI

from taskapp_kit.config import Settings, from_environment
from taskapp_kit.contract.protocols import Clock, IdempotencyStore, Store
from taskapp_kit.declare.app import Exposure, TaskApp
from taskapp_kit.rollout.service import Service
from taskapp_kit.serve.app import create
from taskapp_kit.serve.keys import Keys
from taskapp_kit.store import open_store


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
    """Return the FastAPI application of a task app. Raises DeclarationError, ConfigError, Unavailable, StoreError.

    settings: default: from the process environment. store: default: opened from `settings.store`; without that nothing is
    stored (`taskapp serve` has a default of its own). coordinator: where idempotency records are stored, of rollouts that
    are repeated or fetched later; default: the store's, else this process's memory. skip_judges: see Service.
    """
    settings = settings or from_environment()
    if store is None and settings.store not in (None, "none"):
        store = open_store(str(settings.store))
    keys = Keys.of(settings)

    def is_server_key(text: str) -> bool:
        return keys.match((text.encode("utf-8", "replace"),)) is not None

    service = Service.of(
        app,
        settings,
        exposure=exposure,
        store=store,
        clock=clock,
        is_server_key=is_server_key,
        max_concurrent=settings.max_concurrent,
        max_time_seconds=settings.max_time_seconds,
        workers=settings.workers,
        skip_judges=skip_judges,
        session_idle_seconds=settings.session_idle_seconds,
        gold=settings.gold,
    )
    return create(service, settings, exposure=exposure, coordinator=coordinator)
