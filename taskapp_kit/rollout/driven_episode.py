"""An episode in which a caller makes the decisions (`DrivenEpisode`), and a repeatable call of a session (`SessionCall`)."""

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
"""Runs an admitted rollout and stores it. Raises the same errors as `Service.run`."""
MAX_JOINED = 8
"""The maximum number of requests that wait for one call. Usually a client that repeats a call has abandoned the first."""


class DrivenEpisode:
    """A running episode, from the caller's side.

    `begin` starts the asyncio task of the episode, and `decide` sends a decision. Both return a future for the episode's next
    pause. Its result is the policy's next request or the scored rollout; its exception is the one that ended the episode.

    Attributes:
        rollout: The rollout, or None before it has begun.
        observation: The latest observation.
        given: For each step so far, its reward parts by name.
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
        """Receive the policy's request, wait for the caller's decision, and return it. Call this on the event loop."""
        # The caller replies instead of a model, over the path that a worker process uses for its model calls. Threads,
        # processes, limits, scoring and the store therefore need no changes.
        self._reply = self._loop.create_future()
        if not self._pause.done():
            self._pause.set_result(body)
        return await self._reply

    def hear(self, event: Event) -> None:
        """Receive an event of the episode, in the environment's thread or on the event loop."""
        # called for every event, so it only stores the data for the next response
        kind = type(event)
        if kind is Stepped or kind is Observed:
            self._heard.append(event)
        elif kind is EpisodeEnded:
            self.ending = True

    def news(self) -> list[PlayedStep]:
        """Return the steps since the last pause, and set `observation` to the latest observation."""
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
        """Return the sum of each reward part that the steps have reported so far."""
        return {name: math.fsum(parts[name] for parts in self.given) for name in ("env", "event")}

    async def begin(self, rollout: RunningRollout, run: Run) -> asyncio.Future[dict[str, Json] | Rollout]:
        """Start the asyncio task of the episode. Once this has returned, cancelling the task releases the rollout's capacity."""
        self.rollout = rollout

        async def played() -> Rollout:
            return await run(rollout, self.hear, self.answers)

        self._task = asyncio.create_task(played())
        self._task.add_done_callback(self._ended)
        # Let the task start. If it were cancelled before, `Service.run` would never release the capacity.
        await asyncio.sleep(0)
        return self._pause

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self._ended_with is not None or (self._task is not None and self._task.done())

    def decide(self, message: dict[str, Json]) -> asyncio.Future[dict[str, Json] | Rollout]:
        """Send a decision to an episode that has not ended, and return a future for the next pause."""
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

        # a short step runs without waking the rollout's task; see `SharedThreads.run_batch`
        if self.rollout.driver is None or not self.rollout.driver.quick(reply, asked):
            self._reply.set_result(reply)
        return pause

    def fail(self, failure: Failure) -> None:
        """End the episode with this failure, unless its result is being stored."""
        rollout, task = self.rollout, self._task
        # a result that is being stored, and the first failure, must not be replaced
        if rollout is None or task is None or rollout.settling or rollout.stopped is not None:
            return
        rollout.stopped = failure
        task.cancel()

    def raise_failure(self) -> None:
        """Raise the exception that ended the episode, if any."""
        if self._task is not None and self._task.done():  # the task's callback has not run yet
            self._ended(self._task)
        if isinstance(self._ended_with, BaseException):
            raise _again(self._ended_with)

    async def stored(self) -> None:
        """Wait until the episode has ended and is stored."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _ended(self, task: asyncio.Task[Rollout]) -> None:
        """Keep the asyncio task's result but drop the task, so that an ended session is freed without garbage collection."""
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
    """A call that clients can repeat. Every repetition gets the same response. At most MAX_JOINED requests wait for it."""

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
        """Set the response, or the error, and wake the waiting requests."""
        self.done, self._result, self._error = True, result, error
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run the call as an asyncio task and return the task."""
        self.task = asyncio.create_task(work)
        self.task.add_done_callback(self._ended)
        return self.task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self.end(None if error is not None else task.result(), error)

    async def answer(self) -> Any:
        """Wait for the response and return it, or raise the call's error. Cancelling the wait does not end the call."""
        if not self.done:
            # each occupies a connection, although only the latest request still reads the response
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
    """Return the failure of an episode that its caller abandoned. what: what the caller did, such as "reset the session"."""
    return with_id(Failure("cancelled", "session_left", f"the caller {what} before the episode ended"))


def too_slow(verb: str, seconds: float) -> Failure:
    """Return the failure of an episode in which one call exceeded its time limit."""
    message = f"the session's {verb} call exceeded its time limit of {seconds:g} s"
    hint = "Increase the call's time limit, or add timeouts to the environment's blocking calls."
    return with_id(Failure("timeout", "step_timeout", message, hint))
