"""An episode whose policy answers from elsewhere: from one question to the next, each hop in the environment's thread."""

from __future__ import annotations

from collections.abc import Callable

from taskapp_kit.contract.chat import CONTEXT_OVERFLOW, ChatReply, ModelFailed, RemotePolicy
from taskapp_kit.contract.content import Json
from taskapp_kit.contract.events import Called, Event
from taskapp_kit.contract.protocols import PolicyStops
from taskapp_kit.rollout.episode.episode import Episode, PolicyFailed, policy_failure


class ModelDriver:
    """Plays `episode` with `policy`. Each event goes to `tell`. All calls come from one thread.

    `begin`, then `go_on` with what came of each question, until one of them gives None: the episode is over.
    """

    def __init__(self, episode: Episode, policy: RemotePolicy, tell: Callable[[Event], None]) -> None:
        self._episode = episode
        self._policy = policy
        self._tell = tell
        self._events = episode.events()

    def begin(self) -> dict[str, Json] | None:
        """Plays up to the first question; gives its body."""
        return self._until_called(lambda: next(self._events))

    def go_on(self, came: ChatReply | ModelFailed | PolicyFailed) -> dict[str, Json] | None:
        """Plays on with the model's reply, or with why there is none, up to the next question."""
        if isinstance(came, ModelFailed):
            if came.overflow:
                stops = PolicyStops(CONTEXT_OVERFLOW)
                return self._until_called(lambda: self._events.throw(stops))
            came = PolicyFailed(came.failure)
        if isinstance(came, PolicyFailed):
            failed = came
            return self._until_called(lambda: self._events.throw(failed))
        try:
            answer = self._policy.read(came)
        except Exception as error:
            thrown = policy_failure(self._policy.name, error)
            return self._until_called(lambda: self._events.throw(thrown))
        return self._until_called(lambda: self._events.send(answer))

    def close(self) -> None:
        """Closes the environment of an episode that nobody plays on."""
        self._events.close()

    def _until_called(self, step: Callable[[], Event]) -> dict[str, Json] | None:
        try:
            event = step()
            while True:
                self._tell(event)
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
