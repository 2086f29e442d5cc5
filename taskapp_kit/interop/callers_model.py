"""Rollouts whose policy model is a function of the caller, so that another library generates the model's replies.

Episodes, worker processes, limits, judges and scores are the same as for `POST /rollout`. Only the policy's model calls
go to the caller's function, through the parameter `answers` of `Service.run`, which sessions also use.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from taskapp_kit.client.blocking_portal import DaemonLoop
from taskapp_kit.config import DEADLINE_SECONDS, Settings, load
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import Failure
from taskapp_kit.records.content import Json
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.scorecard import POLICY
from taskapp_kit.rollout.admission import Answers
from taskapp_kit.rollout.service import Service
from taskapp_kit.wire.chat.conversation import ChatReply, Endpoint, ModelFailed
from taskapp_kit.wire.inference_url import complete_url
from taskapp_kit.wire.rollout import RolloutRequest

ADDRESS = "http://caller.invalid/v1"
"""The model address that a rollout records. Nothing calls this address."""
COLUMNS = ("environment", "split", "seed", "config", "output_mode")
"""The columns of `taskapp export tasks` that identify an episode."""

T = TypeVar("T")


def env_of_row(row: Mapping[str, Any]) -> dict[str, Json]:
    """Return the field `env` of a rollout request for a row's episode.

    The row's `config` is a dict or a JSON string.
    """
    config = row.get("config") or {}
    config = dict(json.loads(config) if isinstance(config, str) else config)
    if row.get("split") is not None:
        config["split"] = row["split"]
    return {"env_name": row.get("environment"), "seed": int(row["seed"]), "config": config}


class CallerService:
    """Plays rollouts of an app with functions as models, and stores nothing.

    Create, use and close an instance on the same event loop.

    Args:
        app: An app, a path or the name of a bundled app.
        settings: Server settings. Defaults to the values in the process environment.

    Raises:
        DiscoveryError: The app cannot be found or imported.
        DeclarationError: A declaration of the app is invalid.
        Unavailable: A judge with a weight has no model.
    """

    def __init__(self, app: TaskApp | str | Path, settings: Settings | None = None, **limits: Any) -> None:
        loaded = app if isinstance(app, TaskApp) else find_app(str(app))
        self.service = Service.of(loaded, settings or load(), **limits)

    async def rollout(
        self,
        ask: Answers,
        env: Mapping[str, Json],
        *,
        output_mode: str = "tool_calls",
        turns: int | None = None,
        label: str = "caller",
    ) -> Rollout:
        """Play and score one episode.

        Args:
            ask: Returns the reply to a chat completions request, given its body. It is called on the event loop.
            env: `env` of a rollout request.
            output_mode: The format of the model's replies: `tool_calls`, `text` or `structured`.
            turns: Truncate the episode after this many replies.
            label: The `run_id`.

        Raises:
            RequestError, Unavailable, Saturated, RolloutFailed: As in `Service.rollout`.
        """
        request = RolloutRequest.model_validate(
            {
                "run_id": label,
                "mode": "rl",
                "env": dict(env),
                "policy": {"config": {"inference_url": ADDRESS}, "output_mode": output_mode},
                "ops": ["agent"] * (turns or 0),
            }
        )
        return await self.service.rollout(request, answers=ask)

    def endpoint(self, url: str, model: str, key: str) -> Answers:
        """Return a function that calls a chat completions endpoint with the usual retries.

        url: the address, ending in `/v1`.
        """
        calls = self.service.models.of_rollout(Endpoint(complete_url(url), model, key), DEADLINE_SECONDS)

        async def ask(body: dict[str, Json]) -> ChatReply | ModelFailed:
            return await calls(POLICY, body)

        return ask

    async def close(self) -> None:
        """Stop running rollouts and worker processes, and close the connections."""
        await self.service.close()


class LoopServices:
    """One service per app and event loop, created on first use. limits: passed to `CallerService`."""

    def __init__(self, **limits: Any) -> None:
        self._limits = limits
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[TaskApp | str, CallerService]] = (
            WeakKeyDictionary()
        )

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def of(self, app: TaskApp | str) -> CallerService:
        """Return the app's service on the running event loop. Raises the same exceptions as `CallerService`."""
        services = self._open.setdefault(asyncio.get_running_loop(), {})
        if app not in services:
            services[app] = CallerService(app, **self._limits)
        return services[app]

    async def close(self) -> None:
        """Close the services on the running event loop."""
        for service in self._open.pop(asyncio.get_running_loop(), {}).values():
            await service.close()


class BlockingService:
    """A `CallerService` in a thread, for blocking callers. It is closed when the process ends.

    After a fork, the child process opens its own service, because threads are not copied.
    """

    def __init__(self, app: TaskApp, thread_name: str) -> None:
        self._app, self._thread_name = app, thread_name
        self._lock = threading.Lock()
        self._running: tuple[int, DaemonLoop, CallerService] | None = None

    def run(self, work: Callable[[CallerService], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with the service and return its result."""
        with self._lock:
            if self._running is None or self._running[0] != os.getpid():
                self._running = self._opened()
                atexit.register(self.close)
            _, loop, service = self._running
        return loop.run(work(service))

    def _opened(self) -> tuple[int, DaemonLoop, CallerService]:
        async def opened() -> CallerService:
            return CallerService(self._app)

        loop = DaemonLoop(self._thread_name)
        try:
            return os.getpid(), loop, loop.run(opened())
        except BaseException:
            loop.stop()
            raise

    def close(self) -> None:
        """Stop the thread and the worker processes. Another call of `run` starts them again."""
        with self._lock:
            running, self._running = self._running, None
        if running is None or running[0] != os.getpid():
            return
        atexit.unregister(self.close)
        _, loop, service = running
        try:
            loop.run(service.close())
        finally:
            loop.stop()


def truncating(reason: str) -> ModelFailed:
    """Return a model failure that makes the kit truncate and score the episode."""
    return ModelFailed(Failure("policy", "stopped_by_caller", reason), overflow=True)


class SteppedRollout:
    """A rollout in which the caller passes each model reply to `next`, for libraries that play one turn at a time.

    Use an instance only on the event loop that created it. If the caller can pass a function that returns replies, use
    `CallerService.rollout` instead.

    Attributes:
        request: The body of the model call that waits for a reply, or None if no call is waiting.
        answered: How many model replies were used.
    """

    def __init__(
        self,
        service: CallerService,
        env: Mapping[str, Json],
        *,
        output_mode: str = "tool_calls",
        label: str = "caller",
    ) -> None:
        self.request: dict[str, Any] | None = None
        self.answered = 0
        self._answer: asyncio.Future[ChatReply | ModelFailed] | None = None
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(service.rollout(self._ask, env, output_mode=output_mode, label=label))
        self._task.add_done_callback(lambda _: self._changed.set())

    async def _ask(self, body: dict[str, Json]) -> ChatReply | ModelFailed:
        self._answer = asyncio.get_running_loop().create_future()
        self.request = body
        self._changed.set()
        return await self._answer

    async def next(self, answer: ChatReply | ModelFailed | None = None) -> dict[str, Any] | None:
        """Answer the waiting model call, and return the body of the next model call, or None if the rollout has ended.

        If `next` is cancelled, no body is lost: calling `next` again returns it. Raises the same exceptions as
        `CallerService.rollout`.
        """
        if answer is not None and self._answer is not None:
            if not self._answer.done():  # the future is cancelled if the rollout reached its deadline
                self._answer.set_result(answer)
            self._answer = self.request = None
            self.answered += isinstance(answer, ChatReply)
        while self.request is None and not self._task.done():
            self._changed.clear()
            await self._changed.wait()
        if self._task.done():
            self.request = None
            self._task.result()  # raises the rollout's failure
        return self.request

    @property
    def ended(self) -> bool:
        """Whether the rollout has ended, with a result or a failure."""
        return self._task.done()

    def result(self) -> Rollout:
        """Return the scored rollout, or raise the rollout's failure. The rollout must have ended."""
        return self._task.result()

    async def cancel(self) -> None:
        """End the rollout without a score."""
        self._task.cancel()
        await asyncio.wait({self._task})
