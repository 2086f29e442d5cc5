"""An episode whose caller decides from outside: what is sent to it, what it asks next, how it ends; and one call of it."""

from __future__ import annotations

import asyncio
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
"""Runs an admitted one to its stored end. Raises as `Service.run`."""
MAX_JOINED = 8
"""Requests that may wait for the answer of one call: a client that repeats it gave up the others."""


class DrivenEpisode:
    """An episode under way, from the caller's side.

    `begin` starts its task and `decide` sends a decision; both return a future of the episode's next pause: what the policy
    asks, or the scored rollout; or with the exception that ended the episode.
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
        self.ending = False  # nothing more is played: what is left is to score and store it

    async def answers(self, body: dict[str, Json]) -> ChatReply:
        """Receive what the policy asks, and wait for the caller. On the event loop."""
        # A session is a rollout whose caller is asked where a policy would ask its model, by the path on which a worker
        # process asks for a reply: so threads, processes, limits, scoring and the store need no second form.
        self._reply = self._loop.create_future()
        if not self._pause.done():
            self._pause.set_result(body)
        return await self._reply

    def hear(self, event: Event) -> None:
        """Receive the episode's events; a Listener, in the environment's thread or on the event loop."""
        # Called in the environment's thread for every event, so it only keeps what the next answer needs.
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

    async def begin(self, rollout: RunningRollout, run: Run) -> asyncio.Future[dict[str, Json] | Rollout]:
        """Start the episode's task; once this returns, it may be cancelled without leaving the rollout admitted."""
        self.rollout = rollout

        async def played() -> Rollout:
            return await run(rollout, self.hear, self.answers)

        self._task = asyncio.create_task(played())
        self._task.add_done_callback(self._ended)
        # The task's first step: cancelled before it, `Service.run` would never give the place back.
        await asyncio.sleep(0)
        return self._pause

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self._ended_with is not None or (self._task is not None and self._task.done())

    def decide(self, message: dict[str, Json]) -> asyncio.Future[dict[str, Json] | Rollout]:
        """Send a decision to an episode that has not ended."""
        assert self._reply is not None, "the episode waits"
        assert self.rollout is not None, "it was begun"
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

        # A short step is played without waking the rollout's task; see `SharedThreads.run_batch`.
        if self.rollout.driver is None or not self.rollout.driver.quick(reply, asked):
            self._reply.set_result(reply)
        return pause

    def fail(self, failure: Failure) -> None:
        """End the episode with this failure, unless its result is being stored."""
        rollout, task = self.rollout, self._task
        # A result that is being stored is kept; and the first reason is the true one.
        if rollout is None or task is None or rollout.settling or rollout.stopped is not None:
            return
        rollout.stopped = failure
        task.cancel()

    def raise_failure(self) -> None:
        """Raise what ended the episode, unless it was scored or has not ended."""
        if self._task is not None and self._task.done():  # and its callback has not run yet
            self._ended(self._task)
        if isinstance(self._ended_with, BaseException):
            raise _again(self._ended_with)

    async def stored(self) -> None:
        """Wait until the episode has ended and is stored."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _ended(self, task: asyncio.Task[Rollout]) -> None:
        """Hold how it ended, and nothing that refers back to this object: sessions leave no work to the collector."""
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
    """A call whose answer is returned again to those who repeat it; few of them may wait for it."""

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
        """Set the answer, and wake those who wait for it."""
        self.done, self._result, self._error = True, result, error
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run the call as a task, and return that."""
        self.task = asyncio.create_task(work)
        self.task.add_done_callback(self._ended)
        return self.task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self.end(None if error is not None else task.result(), error)

    async def answer(self) -> Any:
        """Wait for the answer and return it, or raise it. May be cancelled, which does not end the call."""
        if not self.done:
            # Each holds a connection for an answer that only the last of them still reads.
            if len(self._waiting) >= MAX_JOINED:
                message = f"{MAX_JOINED} requests wait for the answer of this call already."
                raise SessionError("session_busy", message, hint="Wait for an answer before the request is repeated.")
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        if self._error is not None:
            raise self._error
        return self._result


def _again(error: BaseException) -> BaseException:
    """Return the failure for another call, which raises one of its own, with its own traceback."""
    if not isinstance(error, RolloutFailed):
        return error
    again = RolloutFailed(error.failure, rollout_id=error.rollout_id)
    again.__cause__ = error.__cause__
    return again


def left(what: str) -> Failure:
    """Return the failure of an episode whose caller went on to something else."""
    return with_id(Failure("cancelled", "session_left", f"the caller {what} before the episode ended"))


def too_slow(verb: str, seconds: float) -> Failure:
    """Return the failure of an episode whose caller gave one call no more time."""
    message = f"the session's {verb} did not end within its time limit of {seconds:g} s"
    hint = "Give the call more time, or the environment's own calls a time limit."
    return with_id(Failure("timeout", "step_timeout", message, hint))
