"""Rollouts whose policy's model is a function of the caller: other libraries sample, and our episode goes on.

The function is `answers` of `Service.run`, through which sessions are driven, too. The episode, its worker processes, limits,
judges and scores are those of `POST /rollout`; only the policy's model calls reach the function.
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
"""Stands where a rollout records its model's address; nothing calls it."""
COLUMNS = ("environment", "split", "seed", "config", "output_mode")
"""What names an episode, in the rows of `taskapp export tasks`."""

T = TypeVar("T")


def env_of_row(row: Mapping[str, Any]) -> dict[str, Json]:
    """`env` of a rollout's request for the episode that a row names; its config is a dict, or the JSON text of one."""
    config = row.get("config") or {}
    config = dict(json.loads(config) if isinstance(config, str) else config)
    if row.get("split") is not None:
        config["split"] = row["split"]
    return {"env_name": row.get("environment"), "seed": int(row["seed"]), "config": config}


class CallerService:
    """One app's rollouts with functions for models, nothing stored. Create and use it on one event loop; `close` it.

    app: the app, or where it is. settings: those of the process environment when absent. Raises DiscoveryError,
    DeclarationError, Unavailable (a judge with weight > 0 has no model).
    """

    def __init__(self, app: TaskApp | str | Path, settings: Settings | None = None, **limits: Any) -> None:
        found = app if isinstance(app, TaskApp) else find_app(str(app))
        self.service = Service.of(found, settings or load(), **limits)

    async def rollout(
        self,
        ask: Answers,
        env: Mapping[str, Json],
        *,
        output_mode: str = "tool_calls",
        turns: int | None = None,
        label: str = "caller",
    ) -> Rollout:
        """Plays and scores one episode.

        ask: answers the policy's calls, the body of a chat-completions request each; on the event loop. env: `env` of a
        request. turns: the episode is truncated after so many answers. label: the `run_id`.
        Raises RequestError, Unavailable, Saturated, RolloutFailed.
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
        """A function that calls a chat-completions endpoint, with the retries of any rollout. url: up to `/v1`."""
        calls = self.service.models.of_rollout(Endpoint(complete_url(url), model, key), DEADLINE_SECONDS)

        async def ask(body: dict[str, Json]) -> ChatReply | ModelFailed:
            return await calls(POLICY, body)

        return ask

    async def close(self) -> None:
        """Ends rollouts that run, worker processes and connections."""
        await self.service.close()


class LoopServices:
    """Services of the running event loop, one for each app, opened when they are first needed. limits: of `CallerService`."""

    def __init__(self, **limits: Any) -> None:
        self._limits = limits
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[TaskApp | str, CallerService]] = (
            WeakKeyDictionary()
        )

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def of(self, app: TaskApp | str) -> CallerService:
        """The app's service. Raises DiscoveryError, DeclarationError, Unavailable: a judge has no model."""
        services = self._open.setdefault(asyncio.get_running_loop(), {})
        if app not in services:
            services[app] = CallerService(app, **self._limits)
        return services[app]

    async def close(self) -> None:
        """End the services of the running event loop, with their worker processes and connections."""
        for service in self._open.pop(asyncio.get_running_loop(), {}).values():
            await service.close()


class BlockingService:
    """A `CallerService` on an event loop in a thread, for blocking callers. The end of the process closes it.

    A fork opens its own, because threads are not copied.
    """

    def __init__(self, app: TaskApp, thread_name: str) -> None:
        self._app, self._thread_name = app, thread_name
        self._lock = threading.Lock()
        self._running: tuple[int, DaemonLoop, CallerService] | None = None

    def run(self, work: Callable[[CallerService], Coroutine[Any, Any, T]]) -> T:
        """Return the result of what is done with the service."""
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
        """End the thread and worker processes; another call starts them again."""
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
    """The outcome of a model call that ends the episode where it is: truncated, and scored."""
    return ModelFailed(Failure("policy", "stopped_by_caller", reason), overflow=True)


class SteppedRollout:
    """A rollout whose model calls are answered one by one from outside. On the event loop on which it was made.

    For libraries that take one turn at a time; where the library may be called from our side, `CallerService.rollout` needs
    less. The parameters are its parameters. request: the body of the call that waits for its answer, None while none does.
    answered: the answers of the model that were given.
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
        """Answer the call that waits, if one does, and return the next call's body; None when the rollout ended.

        May be cancelled and called again: no body is lost. Raises RolloutFailed and what else a rollout raises.
        """
        if answer is not None and self._answer is not None:
            if not self._answer.done():  # cancelled when the rollout reached its deadline
                self._answer.set_result(answer)
            self._answer = self.request = None
            self.answered += isinstance(answer, ChatReply)
        while self.request is None and not self._task.done():
            self._changed.clear()
            await self._changed.wait()
        if self._task.done():
            self.request = None
            self._task.result()  # raises its failure
        return self.request

    @property
    def ended(self) -> bool:
        """Whether the rollout has ended, with a result or a failure."""
        return self._task.done()

    def result(self) -> Rollout:
        """The scored rollout, once it has ended. Raises its failure."""
        return self._task.result()

    async def cancel(self) -> None:
        """End it without a score."""
        self._task.cancel()
        await asyncio.wait({self._task})
