"""A session for blocking callers. The environments for Gymnasium and TRL use it.

Requests and responses are the JSON objects in docs/connect/sessions.md, for apps in this process and at a URL.
"""

from __future__ import annotations

import math
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from taskapp_kit.client.blocking_portal import DaemonLoop
from taskapp_kit.client.session import RemoteSession
from taskapp_kit.client.task_app import TaskAppClient
from taskapp_kit.config import load, process_variable
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import TaskAppError
from taskapp_kit.records.content import Json
from taskapp_kit.rollout.describe import Description
from taskapp_kit.rollout.service import Service
from taskapp_kit.rollout.session import EnvironmentSession
from taskapp_kit.serve.route import parsed
from taskapp_kit.serve.routes.sessions import (
    FinishSession,
    ResetSession,
    StepSession,
    finish_with,
    reset_with,
    step_with,
)


class BlockingSession:
    """A session with an app in this process or at a URL. It runs in a separate thread.

    Attributes:
        described: The taskset, as in the response of `/task_info`.
    """

    def __init__(self, app: TaskApp | str | Path, environment: str | None, key_variable: str, protocol: str) -> None:
        """Open the session.

        Args:
            app: An app, a path, the name of a bundled app, or a URL.
            environment: The name of an environment, or None for the app's first environment.
            key_variable: The environment variable that contains the API key for a URL.
            protocol: The protocol's name, which is stored with the episodes.

        Raises:
            DiscoveryError, DeclarationError, RequestError, Unavailable, ConfigError, TaskAppError: The app cannot be
            used.
        """
        self._process = os.getpid()
        self._loop = DaemonLoop(f"taskapp-{protocol}")
        try:
            if isinstance(app, str) and app.startswith(("http://", "https://")):
                opened = _Remote.opened(app, environment, process_variable(key_variable))
                self._driver: _Local | _Remote = self._loop.run(opened)
            else:
                local = app if isinstance(app, TaskApp) else find_app(str(app))
                self._driver = self._loop.run(_Local.opened(local, environment, protocol))
        except BaseException:
            self._loop.stop()
            raise
        self.described = self._driver.described

    def reset(self, body: dict[str, Json]) -> dict[str, Any]:
        """Begin an episode."""
        return self._loop.run(self._driver.reset(body))

    def step(self, body: dict[str, Json]) -> dict[str, Any]:
        """Apply one decision of the policy."""
        return self._loop.run(self._driver.step(body))

    def finish(self) -> dict[str, Any]:
        """Truncate and score the episode."""
        return self._loop.run(self._driver.finish())

    def close(self) -> None:
        """Close the session. For an app in this process, also close its service."""
        if os.getpid() != self._process:  # in a forked process, the thread does not exist
            return
        try:
            self._loop.run(self._driver.close())
        finally:
            self._loop.stop()


class _Local:
    """A session with a service in this process. It stores nothing and returns the same responses as the HTTP routes."""

    def __init__(self, service: Service, session: EnvironmentSession) -> None:
        self._service, self._session = service, session
        limits = service.settings
        description = Description(
            service.spec,
            max_time_seconds=limits.max_time_seconds,
            max_concurrent=limits.max_concurrent,
            max_body_bytes=load().max_body_bytes,
        )
        self.described = description.taskset(session.environment)

    @classmethod
    async def opened(cls, app: TaskApp, environment: str | None, protocol: str) -> _Local:
        """Start the service and open a session.

        Raises RequestError if the environment does not exist, Unavailable if a judge has no model, and DeclarationError
        if the app is invalid.
        """
        # sessions may use at most three quarters of the capacity, so one session needs a capacity of two
        service = Service.of(app, load(), max_concurrent=2, threads=1, session_idle_seconds=math.inf)
        try:
            return cls(service, await service.sessions.open(environment, protocol=protocol))
        except BaseException:
            await service.close()
            raise

    async def reset(self, body: dict[str, Json]) -> dict[str, Any]:
        return await reset_with(self._session, parsed(ResetSession, body))

    async def step(self, body: dict[str, Json]) -> dict[str, Any]:
        return await step_with(self._session, parsed(StepSession, body))

    async def finish(self) -> dict[str, Any]:
        return await finish_with(self._session, FinishSession())

    async def close(self) -> None:
        await self._service.close()


class _Remote:
    """A session with a task app at a URL. If the session has expired, `reset` opens a new session."""

    def __init__(self, client: TaskAppClient, environment: str | None) -> None:
        self._client, self._environment = client, environment
        self._open = AsyncExitStack()
        self._session: RemoteSession
        self.described: dict[str, Json] = {}

    @classmethod
    async def opened(cls, url: str, environment: str | None, key: str | None) -> _Remote:
        """Connect to the task app and open a session.

        Raises TaskAppError if the task app rejects a request, and TaskAppUnreachable if it does not respond.
        """
        driver = cls(TaskAppClient(url, key), environment)
        query: dict[str, str] = {} if environment is None else {"environment": environment}
        try:
            driver.described = await driver._client.task_info((), **query)
            await driver._enter()
        except BaseException:
            await driver._client.aclose()
            raise
        return driver

    async def _enter(self) -> None:
        await self._open.aclose()
        self._session = await self._open.enter_async_context(self._client.session(self._environment))

    async def reset(self, body: dict[str, Json]) -> dict[str, Any]:
        try:
            return await self._session.reset(**body)
        except TaskAppError as error:
            if error.code != "session_not_found":
                raise
        await self._enter()
        return await self._session.reset(**body)

    async def step(self, body: dict[str, Json]) -> dict[str, Any]:
        return await self._session.step(**body)

    async def finish(self) -> dict[str, Any]:
        return await self._session.finish()

    async def close(self) -> None:
        try:
            await self._open.aclose()
        finally:
            await self._client.aclose()
