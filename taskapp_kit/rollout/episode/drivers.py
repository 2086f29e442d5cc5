"""The drivers of an episode's generator: they send decisions back when it yields `Called`.

`drive`: a policy that computes, in the same thread. `ModelDriver`: a policy that calls a model; the generator runs in a
thread from one model call to the next, and the model is awaited on an event loop (`run`) or in the thread (`run_blocking`).
`until_called`: no policy; stops where the first would be called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from taskapp_kit.errors import Failure
from taskapp_kit.records.content import Json
from taskapp_kit.records.events import Called, Event, Failed
from taskapp_kit.records.model_use import POLICY
from taskapp_kit.records.protocols import LocalPolicy, PolicyStops
from taskapp_kit.rollout.episode.episode import Episode, PolicyFailed, policy_failure, stop_failure
from taskapp_kit.wire.chat.conversation import CONTEXT_OVERFLOW, ChatReply, ModelFailed, ModelPort, RemotePolicy

Emit = Callable[[Event], None]
"""Called with each event, in the thread that runs the episode; must not raise."""


def drive(episode: Episode, policy: LocalPolicy, emit: Emit) -> None:
    """Run the episode to its end with a policy that computes, all in this thread."""
    events = episode.events()
    try:
        event = next(events)
        while True:
            emit(event)
            if type(event) is not Called:
                event = next(events)
                continue
            try:
                answer = policy.decide(episode.view)
            except PolicyStops as stops:
                event = events.throw(stops)
            except BaseException as error:  # sys.exit() in an author's function must not end the server
                stop = episode.control.stop
                if stop is None or isinstance(error, ModelFailed):  # which has a sentence of its own
                    event = events.throw(policy_failure(policy.name, error))
                else:
                    event = events.throw(stop_failure(stop))
            else:
                event = events.send(answer)
    except StopIteration:
        pass
    # Whatever stopped the driver, the environment is closed in the thread that made it.
    finally:
        events.close()


def until_called(episode: Episode) -> Failure | None:
    """Run up to the first `Called`, where `episode.view` is what a policy would read; return the failure of reset, if any."""
    events = episode.events()
    try:
        for event in events:
            if isinstance(event, Failed):
                return event.failure()
            if isinstance(event, Called):
                return None
    finally:
        events.close()
    return None


class ModelDriver:
    """Runs an episode with a policy that calls a model. All calls of `begin`, `go_on` and `close` come from one thread.

    Call `begin`, then `go_on` with the outcome of each model call, until one of them returns None: the episode is over.
    """

    def __init__(self, episode: Episode, policy: RemotePolicy, emit: Emit) -> None:
        self._episode = episode
        self._policy = policy
        self._emit = emit
        self._events = episode.events()

    async def run(
        self,
        ask: Callable[[str, dict[str, Json]], Awaitable[ChatReply | ModelFailed]],
        in_thread: Callable[[Callable[[], dict[str, Json] | None]], Awaitable[dict[str, Json] | None]],
    ) -> None:
        """Run to the end on an event loop. ask: (role, body) -> the outcome. in_thread: runs a function in the thread."""
        body = await in_thread(self.begin)
        while body is not None:
            body = await in_thread(partial(self.go_on, await ask(POLICY, body)))

    def run_blocking(self, port: ModelPort) -> None:
        """Run to the end in this thread, which waits while `port` calls the model."""
        body = self.begin()
        while body is not None:
            outcome: ChatReply | ModelFailed
            try:
                outcome = port.ask(POLICY, body)
            except ModelFailed as failed:
                outcome = failed
            body = self.go_on(outcome)

    def begin(self) -> dict[str, Json] | None:
        """Run up to the first model call; return its body."""
        return self._until_asked(lambda: next(self._events))

    def go_on(self, outcome: ChatReply | ModelFailed) -> dict[str, Json] | None:
        """Continue with the model's reply, or its failure, up to the next model call; return its body."""
        thrown: BaseException
        if isinstance(outcome, ModelFailed):
            # A conversation that no longer fits is a limit and no failure: what was played can be scored.
            thrown = PolicyStops(CONTEXT_OVERFLOW) if outcome.overflow else PolicyFailed(outcome.failure)
            return self._until_asked(partial(self._events.throw, thrown))
        try:
            answer = self._policy.read(outcome)
        # Thrown into the episode and not raised here: it ends there, with its events and a closed environment.
        except PolicyStops as stops:
            thrown = stops
        except Exception as error:
            thrown = policy_failure(self._policy.name, error)
        else:
            return self._until_asked(lambda: self._events.send(answer))
        try:
            return self._until_asked(partial(self._events.throw, thrown))
        finally:
            del thrown  # its traceback has this frame, and this frame would have it

    def close(self) -> None:
        """Close the environment of an episode that will not continue."""
        self._events.close()

    def _until_asked(self, step: Callable[[], Event]) -> dict[str, Json] | None:
        try:
            event = step()
            while True:
                self._emit(event)
                if type(event) is not Called:
                    event = next(self._events)
                    continue
                try:
                    return self._policy.ask(self._episode.view)
                except PolicyStops as stops:
                    event = self._events.throw(stops)
                except Exception as error:
                    event = self._events.throw(policy_failure(self._policy.name, error))
        except StopIteration:
            return None
