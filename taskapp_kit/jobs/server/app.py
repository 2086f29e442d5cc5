"""The backend's ASGI application: connects store, keys, engine and routes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from taskapp_kit.errors import KitError, Unavailable
from taskapp_kit.jobs.server.auth import BearerKeys, authenticator, is_open
from taskapp_kit.jobs.server.data_files import JobDatabase, key_path, store_path
from taskapp_kit.jobs.server.engine import Engine
from taskapp_kit.jobs.server.inference import InferenceRoutes, ModelProvider
from taskapp_kit.jobs.server.jobs import Jobs
from taskapp_kit.jobs.server.rollouts_engine import RolloutsEngine
from taskapp_kit.jobs.server.routes import BackendContext
from taskapp_kit.jobs.server.schema import JobRow
from taskapp_kit.jobs.server.sealed_keys import SealedKeys
from taskapp_kit.jobs.server.store import JobStore
from taskapp_kit.jobs.server.task_app_access import TaskAppAccess, TaskAppAddresses
from taskapp_kit.net.auth import ApiKeyMiddleware, SiteRules
from taskapp_kit.net.error_response import ErrorWriter
from taskapp_kit.version import __version__

log = logging.getLogger("taskapp_kit.jobs.server")


ERRORS = ErrorWriter(
    "The backend",
    log,
    stored="a job",
    routes="docs/train/backend.md",
    unavailable_status=501,
    framework_codes={404: "not_found"},
    max_fields=100,
)


def create_backend(
    keys: BearerKeys | Sequence[str],
    *,
    store: str = "none",
    environment_api_key: str | None = None,
    local: bool = True,
    allow: Sequence[str] = (),
    hosts: Sequence[str] = (),
    max_jobs: int = 4,
    engine: Engine | None = None,
    models: ModelProvider | None = None,
    trainers: Mapping[str, str] | None = None,
    resumes: Callable[[JobRow], bool] = lambda job: True,
) -> FastAPI:
    """Return the application. `app.state.drain(grace_seconds)` stops the running jobs. A later backend resumes them.

    Args:
        keys: The API keys that callers may use.
        store: A SQLite address or path. If it is `none` or `memory`, jobs are lost when the process ends.
        environment_api_key: The key that the backend sends to task apps without an uploaded key.
        local: Whether only this machine can reach the backend. It may then call private and loopback addresses.
        allow: Non-public hosts and networks of task apps that may be called.
        hosts: Host names that requests may use, with `local` also this machine's. If both are unset, any is accepted.
        max_jobs: The maximum number of concurrent jobs. The engine may have a lower limit.
        engine: The engine that runs the jobs. Defaults to `RolloutsEngine`.
        models: Serves trained models by name. It is closed at shutdown. If None, no models are served.
        trainers: Names of additional trainers, by id. The engine is always a trainer.
        resumes: A function that returns whether an unfinished job in the store is resumed at startup.

    Raises:
        ConfigError: A setting is invalid.
        StoreError: The store cannot be opened.
    """
    bearer = keys if isinstance(keys, BearerKeys) else BearerKeys(keys)
    database = JobDatabase(store_path(store))
    try:
        records = JobStore(database)
        bearer.adopt(records.minted(bearer.minted_org))
        box = _box(database)
    except BaseException:
        database.close()
        raise
    access = TaskAppAccess(records.keys, box, TaskAppAddresses(local=local, allow=allow), environment_api_key)
    sites = SiteRules(hosts, local=local, any_host=not (local or hosts))
    engine = engine or RolloutsEngine()
    jobs = Jobs(records, access, engine, at_once=min(max_jobs, engine.most_jobs or max_jobs), resumes=resumes)

    async def drain(_: float = 0.0) -> None:
        await jobs.drain()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await jobs.start()
        try:
            yield
        finally:
            if models is not None:
                await models.close()
            await jobs.drain()
            await records.close()

    app = FastAPI(
        title="taskapp backend",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=[Middleware(ApiKeyMiddleware, authenticator(bearer), is_open=is_open, sites=sites, errors=ERRORS)],
    )
    inference = InferenceRoutes(models, records, lambda: bearer.operator, engine.name, ERRORS)
    context = BackendContext(jobs, access, box, {engine.name: engine.description, **(trainers or {})}, inference)
    app.router.routes.extend(context.routes())
    app.state.drain = drain
    app.state.jobs = jobs

    for kind in (HTTPException, KitError):  # any other exception reaches the middleware
        app.add_exception_handler(kind, _error_response)
    return app


async def _error_response(_: Request, error: Exception) -> Response:
    return ERRORS.response(error)  # type: ignore[return-value]  # an EncodedResponse is an ASGI application


def _box(database: JobDatabase) -> SealedKeys | None:
    """Return the database's sealed keys, or None if PyNaCl is not installed. Only sealed keys need PyNaCl."""
    try:
        return SealedKeys(None if database.path is None else key_path(database.path))
    except Unavailable as error:
        log.warning("sealed keys cannot be opened: %s", error)
        return None
