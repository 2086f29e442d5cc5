"""The wiring: the only file that plugs service, store and front entrance together."""

from __future__ import annotations

from fastapi import FastAPI

from taskapp_kit.config import Settings, from_environment
from taskapp_kit.contract.protocols import Clock, IdempotencyStore, Store, SystemClock
from taskapp_kit.declare.app import Exposure, TaskApp
from taskapp_kit.rollout.models.access import model_access
from taskapp_kit.rollout.service import Service, ServiceSettings
from taskapp_kit.serve.app import create
from taskapp_kit.serve.keys import Keys


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
    """The FastAPI app of a task app. Raises DeclarationError, ConfigError, Unavailable, StoreError.

    settings: from the process environment when absent. store: opened from `settings.store` when absent; nothing is kept
    when that is absent too (`taskapp serve` has a default of its own). coordinator: where tickets of rollouts are kept
    that are repeated or fetched later; the store's when absent, else this process's memory. skip_judges: see Service.
    """
    settings = settings or from_environment()
    if store is None and settings.store not in (None, "none"):
        from taskapp_kit.store import open_store

        store = open_store(str(settings.store))
    keys = Keys.of(settings)

    def is_door_key(text: str) -> bool:
        return keys.match((text.encode("utf-8", "replace"),)) is not None

    service = Service(
        app,
        ServiceSettings(
            max_concurrent=settings.max_concurrent,
            max_time_seconds=settings.max_time_seconds,
            exposure=exposure,
            workers=settings.workers,
            max_calls=settings.max_calls_per_answer,
            skip_judges=skip_judges,
            gold=settings.gold,
        ),
        store=store,
        clock=clock,
        models=model_access(settings, exposure, clock or SystemClock(), is_door_key=is_door_key),
    )
    return create(service, settings, exposure=exposure, coordinator=coordinator)
