"""Models that an environment calls itself, such as a user simulator: never trained, counted separately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskapp_kit.errors import Failure, KitError, Unavailable
from taskapp_kit.records.content import Json, NotJson, plain
from taskapp_kit.wire.chat.conversation import ChatReply, ModelFailed, ModelPort


class AuxiliaryModelFailed(KitError):
    """A model that the environment called gave no reply. `failure` is the rollout's, at boundary `environment`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, hint=failure.hint)
        self.failure = failure


class NoAuxiliaryModel(Unavailable):
    """No model has the role that the environment called. `failure` is the rollout's, at boundary `environment`."""

    def __init__(self, role: str, missing: Unavailable) -> None:
        super().__init__(missing.message, hint=missing.hint)
        message = f"context.model({role!r}): {missing.message}"
        self.failure = Failure("environment", "auxiliary_model_not_configured", message, missing.hint)


def auxiliary_failure(error: BaseException) -> Failure | None:
    """Return the failure of the auxiliary model because of which the author's code raised `error`; None for another cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AuxiliaryModelFailed | NoAuxiliaryModel):
            return cause.failure
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


class AuxiliaryModels:
    """The models of one episode. spent: `calls_ROLE` and `tokens_ROLE`, for the episode's metrics.

    calls: each with `role`, `model`, `messages` (those that are new for this role), `reply`, `usage`, `seconds`, `attempts` and
    `cost`, private values included.
    """

    def __init__(self, port: ModelPort | None) -> None:
        self._port = port
        self.spent: dict[str, float] = {}
        self.calls: list[dict[str, Json]] = []
        self._known: dict[str, list[Json]] = {}

    def model(self, role: str) -> AuxiliaryModel:
        """Return the model with this role."""
        return AuxiliaryModel(role, self)

    def ask(self, role: str, body: dict[str, Json]) -> ChatReply:
        """Return one reply. Raises AuxiliaryModelFailed; NoAuxiliaryModel when no model has the role."""
        try:
            if self._port is None:
                raise Unavailable("no model can be called from here.", hint="Play the app with `taskapp rollout`.")
            reply = self._port.ask(role, body)
        except Unavailable as missing:
            raise NoAuxiliaryModel(role, missing) from None
        except ModelFailed as failed:
            failure = failed.failure
            if failure.boundary not in ("timeout", "cancelled"):  # of the model, not of the rollout
                message = f"The environment could not call the model of role {role!r}: {failure.message}"
                failure = Failure("environment", "auxiliary_model_failed", message, failure.hint)
            raise AuxiliaryModelFailed(failure) from None
        for name, amount in ((f"calls_{role}", 1.0), (f"tokens_{role}", reply.tokens)):
            self.spent[name] = self.spent.get(name, 0.0) + amount
        self._record(role, body, reply)
        return reply

    def _record(self, role: str, body: dict[str, Json], reply: ChatReply) -> None:
        sent, known = body["messages"], self._known.get(role, [])
        fresh = sent[len(known) :] if sent[: len(known)] == known else sent
        self._known[role] = [*sent, reply.message]
        self.calls.append(
            {
                "role": role,
                "model": reply.model,
                "messages": fresh,
                "reply": reply.message,
                "usage": reply.usage,
                "seconds": reply.seconds,
                "attempts": reply.attempts,
                "cost": reply.cost,
            }
        )


class AuxiliaryModel:
    """The result of `context.model(role)`."""

    def __init__(self, role: str, models: AuxiliaryModels) -> None:
        self.role = role
        self._models = models

    def ask(self, messages: Sequence[dict[str, Any]], **sampling: Any) -> ChatReply:
        """Return one reply to a conversation (`[{"role": "user", "content": …}, …]`), in synchronous environments.

        sampling: further members of the chat-completions request (`temperature`, `max_tokens`, …). Raises
        AuxiliaryModelFailed, Unavailable; ValueError for values that are not JSON.
        """
        try:
            body = plain({**sampling, "messages": list(messages)}, "request")
        except NotJson as error:
            raise ValueError(f"context.model({self.role!r}): {error}") from None
        assert isinstance(body, dict), "a dict stays one"
        return self._models.ask(self.role, body)

    async def chat(self, messages: Sequence[dict[str, Any]], **sampling: Any) -> ChatReply:
        """As `ask`, for async environments. One call at a time: an episode runs in one thread."""
        return self.ask(messages, **sampling)
