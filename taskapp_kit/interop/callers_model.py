"""Rollouts whose policy's model is a function of the caller: other libraries sample, and our episode goes on.

The function is `answers` of `Service.run`, through which sessions are driven, too. The episode, its worker processes, limits,
judges and scores are those of `POST /rollout`; only the policy's model calls reach the function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskapp_kit.config import DEADLINE_SECONDS, Settings, load
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import Failure
from taskapp_kit.records.content import Json
from taskapp_kit.records.model_use import POLICY
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.in_flight import Answers
from taskapp_kit.rollout.service import Service
from taskapp_kit.wire.chat.conversation import ChatReply, Endpoint, ModelFailed
from taskapp_kit.wire.inference_url import complete_url
from taskapp_kit.wire.rollout import RolloutRequest

ADDRESS = "http://caller.invalid/v1"
"""Stands where a rollout records its model's address; nothing calls it."""


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
