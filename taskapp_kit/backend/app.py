"""The backend as one application: store, keys, engine and routes plugged together."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from taskapp_kit.backend.auth import BackendApiKeyMiddleware, BearerKeys
from taskapp_kit.backend.data_files import JobDatabase, key_path, store_path
from taskapp_kit.backend.engine import Engine
from taskapp_kit.backend.jobs import Jobs
from taskapp_kit.backend.response import error_answer
from taskapp_kit.backend.rollouts_engine import RolloutsEngine
from taskapp_kit.backend.routes import DEFAULT_TRAINER, BackendContext
from taskapp_kit.backend.sealed_keys import SealedKeys
from taskapp_kit.backend.store import JobStore
from taskapp_kit.backend.task_app_access import TaskAppAccess
from taskapp_kit.backend.task_app_addresses import TaskAppAddresses
from taskapp_kit.errors import TaskappError, Unavailable
from taskapp_kit.version import __version__

log = logging.getLogger("taskapp_kit.backend")


class GatedBackendApp(FastAPI):
    """FastAPI behind a gate: the key check takes each request first."""

    gate: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, websocket or lifespan."""
        await (self.gate or self.routed)(scope, receive, send)

    async def routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What the gate lets through."""
        await super().__call__(scope, receive, send)


def create_backend(
    keys: BearerKeys | Sequence[str],
    *,
    store: str = "none",
    environment_api_key: str | None = None,
    local: bool = True,
    allow: Sequence[str] = (),
    max_jobs: int = 4,
    engine: Engine | None = None,
    trainers: Mapping[str, str] | None = None,
) -> FastAPI:
    """The application. `app.state.drain(grace_seconds)` lets go of running jobs, which a later backend takes up again.

    keys: what opens it. store: a SQLite address or path; `none` and `memory` last as long as the process.
    environment_api_key: the backend's own key for task apps. local: only this machine reaches it, so it may call task apps
    at private and loopback addresses, which otherwise `allow` (hosts, networks) has to name. max_jobs: jobs at once.
    trainers: id to name, besides the default.

    Raises ConfigError, StoreError.
    """
    bearer = keys if isinstance(keys, BearerKeys) else BearerKeys(keys)
    addresses = TaskAppAddresses(local=local, allow=allow)
    place = JobDatabase(store_path(store))
    try:
        records = JobStore(place)
        bearer.adopt(records.minted(bearer.minted_org))
        box = _box(place)
    except BaseException:
        place.close()
        raise
    access = TaskAppAccess(records, box, addresses, environment_api_key)
    jobs = Jobs(records, access, engine or RolloutsEngine(), at_once=max_jobs)

    async def drain(_: float = 0.0) -> None:
        await jobs.drain()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await jobs.start()
        try:
            yield
        finally:
            await jobs.drain()
            await records.close()

    app = GatedBackendApp(
        title="taskapp backend",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    context = BackendContext(jobs, access, box, {DEFAULT_TRAINER: "rollouts: plays and scores", **(trainers or {})})
    app.router.routes.extend(context.routes())
    app.state.drain = drain
    app.state.jobs = jobs

    async def handle(_: Request, error: Exception) -> Response:
        return error_answer(error)

    for kind in (HTTPException, TaskappError, Exception):
        app.add_exception_handler(kind, handle)
    app.gate = BackendApiKeyMiddleware(app.routed, bearer)
    return app


def _box(place: JobDatabase) -> SealedKeys | None:
    """None without PyNaCl: everything but sealed keys works then."""
    try:
        return SealedKeys(None if place.path is None else key_path(place.path))
    except Unavailable as error:
        log.warning("sealed keys cannot be opened: %s", error)
        return None
