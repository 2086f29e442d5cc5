"""An episode whose caller makes the decisions, and one call of that caller."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from taskapp_kit.errors import Failure, RolloutFailed, SessionError
from taskapp_kit.records.content import Content, Json
from taskapp_kit.records.events import EpisodeEnded, Event, Observed, Stepped
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.trajectory import PlayedStep
from taskapp_kit.rollout.admission import Answers, Listener, RunningRollout, cancelled, with_id
from taskapp_kit.rollout.policy.caller import FINISH_MESSAGE
from taskapp_kit.wire.chat.conversation import ChatReply

Run = Callable[[RunningRollout, Listener, Answers], Awaitable[Rollout]]
"""Runs an admitted rollout until it is stored. Raises the same errors as `Service.run`."""
MAX_JOINED = 8
"""The limit on requests that wait for the answer of one call. A client that repeats a call has abandoned the earlier call."""


class DrivenEpisode:
    """A running episode, as its caller sees it.

    `begin` starts its task and `decide` sends a decision. Both return a future for the episode's next pause: the policy's
    next request, the scored rollout, or the exception that ended the episode.

    Attributes:
        rollout: The rollout, once it has begun.
        observation: The latest observation.
        given: The reward parts of each step so far.
        turn: The number of decisions so far.
        ending: Whether playing has ended, so that only scoring and storing remain.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.Future[dict[str, Json] | Rollout] = self._loop.create_future()
        self._reply: asyncio.Future[ChatReply] | None = None
        self._task: asyncio.Task[Rollout] | None = None
        self._ended_with: Rollout | BaseException | None = None
        self._heard: list[Event] = []
        self.rollout: RunningRollout | None = None
        self.observation: Content = None
        self.given: list[dict[str, float]] = []
        self.turn = 0
        self.ending = False

    async def answers(self, body: dict[str, Json]) -> ChatReply:
        """Receive the policy's request and wait for the caller's decision. Call it on the event loop."""
        # The caller replies where a model would, over the same path as a model's reply to a worker process. Threads,
        # processes, limits, scoring and the store therefore work without changes.
        self._reply = self._loop.create_future()
        if not self._pause.done():
            self._pause.set_result(body)
        return await self._reply

    def hear(self, event: Event) -> None:
        """Receive an event of the episode, in the environment's thread or on the event loop."""
        # Called for every event, so it only keeps what the next answer needs.
        kind = type(event)
        if kind is Stepped or kind is Observed:
            self._heard.append(event)
        elif kind is EpisodeEnded:
            self.ending = True

    def news(self) -> list[PlayedStep]:
        """Return the steps since the last pause, and set `observation` to the newest."""
        heard, self._heard = self._heard, []
        steps = []
        for event in heard:
            if isinstance(event, Stepped):
                steps.append(event.step)
                self.observation = event.step.observation
            elif isinstance(event, Observed):
                self.observation = event.observation
        return steps

    def paid(self) -> dict[str, float]:
        """Return the sums of the reward parts that the steps reported so far."""
        return {name: math.fsum(parts[name] for parts in self.given) for name in ("env", "event")}

    async def begin(self, rollout: RunningRollout, run: Run) -> asyncio.Future[dict[str, Json] | Rollout]:
        """Start the episode's task. Once this returns, cancelling the task releases the rollout's capacity."""
        self.rollout = rollout

        async def played() -> Rollout:
            return await run(rollout, self.hear, self.answers)

        self._task = asyncio.create_task(played())
        self._task.add_done_callback(self._ended)
        # Let the task take its first step. Cancelled before it, `Service.run` would never release the capacity.
        await asyncio.sleep(0)
        return self._pause

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self._ended_with is not None or (self._task is not None and self._task.done())

    def decide(self, message: dict[str, Json]) -> asyncio.Future[dict[str, Json] | Rollout]:
        """Send a decision to an episode that has not ended."""
        assert self._reply is not None, "the episode waits"
        assert self.rollout is not None, "it has begun"
        self.ending = message is FINISH_MESSAGE
        self._pause = pause = self._loop.create_future()
        if self._reply.done():  # the episode was stopped, and its failure is being stored
            return pause
        reply = ChatReply(message)

        def asked(body: dict[str, Json] | None) -> None:
            if body is not None and not pause.done():
                pause.set_result(body)
            elif body is None and self._reply is not None and not self._reply.done():
                self._reply.set_result(reply)

        # A short step runs without waking the rollout's task; see `SharedThreads.run_batch`.
        if self.rollout.driver is None or not self.rollout.driver.quick(reply, asked):
            self._reply.set_result(reply)
        return pause

    def fail(self, failure: Failure) -> None:
        """End the episode with this failure, unless its result is being stored."""
        rollout, task = self.rollout, self._task
        # keep a result that is being stored, and the first failure
        if rollout is None or task is None or rollout.settling or rollout.stopped is not None:
            return
        rollout.stopped = failure
        task.cancel()

    def raise_failure(self) -> None:
        """Raise the exception that ended the episode, if any."""
        if self._task is not None and self._task.done():  # its callback has not run yet
            self._ended(self._task)
        if isinstance(self._ended_with, BaseException):
            raise _again(self._ended_with)

    async def stored(self) -> None:
        """Wait until the episode has ended and is stored."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _ended(self, task: asyncio.Task[Rollout]) -> None:
        """Keep the result, but no reference back to this object, so that ended sessions need no garbage collection."""
        if self._task is None:
            return
        self._task = None
        rollout = self.rollout
        if task.cancelled():
            self._ended_with = RolloutFailed(cancelled(), rollout_id="" if rollout is None else rollout.rollout_id)
        else:
            error = task.exception()
            self._ended_with = task.result() if error is None else _again(error)
        if self._pause.done():
            return
        if isinstance(self._ended_with, BaseException):
            self._pause.set_exception(_again(self._ended_with))
        else:
            self._pause.set_result(self._ended_with)


class SessionCall:
    """A call that can be repeated: each repetition gets the same answer. Only a few requests may wait for it."""

    __slots__ = ("_error", "_result", "_waiting", "body", "done", "request_id", "task", "verb")

    def __init__(self, verb: str, request_id: str | None, body: Json) -> None:
        self.verb = verb
        self.request_id = request_id
        self.body = body
        self.done = False
        self.task: asyncio.Task[Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def end(self, result: Any = None, error: BaseException | None = None) -> None:
        """Set the answer and wake the waiting requests."""
        self.done, self._result, self._error = True, result, error
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run the call as a task and return the task."""
        self.task = asyncio.create_task(work)
        self.task.add_done_callback(self._ended)
        return self.task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self.end(None if error is not None else task.result(), error)

    async def answer(self) -> Any:
        """Wait for the answer and return it, or raise its error. Cancelling this does not end the call."""
        if not self.done:
            # each holds a connection for an answer that only the latest still reads
            if len(self._waiting) >= MAX_JOINED:
                message = f"{MAX_JOINED} requests are already waiting for the response to this call."
                raise SessionError("session_busy", message, hint="Wait for a response before you repeat the request.")
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        if self._error is not None:
            raise self._error
        return self._result


def _again(error: BaseException) -> BaseException:
    """Return a copy of a rollout's failure, so that each call raises an exception with its own traceback."""
    if not isinstance(error, RolloutFailed):
        return error
    again = RolloutFailed(error.failure, rollout_id=error.rollout_id)
    again.__cause__ = error.__cause__
    return again


def left(what: str) -> Failure:
    """Return the failure of an episode that its caller abandoned."""
    return with_id(Failure("cancelled", "session_left", f"the caller {what} before the episode ended"))


def too_slow(verb: str, seconds: float) -> Failure:
    """Return the failure of an episode in which one call exceeded its time limit."""
    message = f"the session's {verb} call exceeded its time limit of {seconds:g} s"
    hint = "Increase the call's time limit, or add timeouts to the environment's blocking calls."
    return with_id(Failure("timeout", "step_timeout", message, hint))
