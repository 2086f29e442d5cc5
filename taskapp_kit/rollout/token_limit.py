"""`safety.max_rollout_tokens`: counts the tokens of one rollout's models and checks the limit before each call."""

from __future__ import annotations

from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import PolicyStops, View
from taskapp_kit.records.trajectory import Decision
from taskapp_kit.rollout.policy.options import EstimatedTokens, characters_of
from taskapp_kit.wire.chat.conversation import ChatReply, ModelPort, RemotePolicy

MAX_ROLLOUT_TOKENS = "max_rollout_tokens"
"""The stop reason of a rollout that reached its token limit."""


class TokenMeter:
    """The tokens of one rollout: prompt and completion of the policy's model and of the environment's models.

    The endpoint's counts are used, else an estimate from the characters. Judges are not counted, since they are called
    after the episode. The last call may exceed `limit`; no call begins once it is reached.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0.0
        self._estimate = EstimatedTokens()

    def check(self) -> None:
        """Raises PolicyStops when the limit is reached."""
        if self.spent >= self.limit:
            raise PolicyStops(MAX_ROLLOUT_TOKENS, self.limit)

    def count(self, body: dict[str, Json], reply: ChatReply) -> None:
        """Adds the tokens of one call."""
        self.spent += reply.tokens or self._estimate.tokens(_characters(body) + characters_of(reply.message))


def _characters(body: dict[str, Json]) -> int:
    return sum(characters_of(message) for message in body.get("messages", ())) + characters_of(
        {"tools": body.get("tools", [])}
    )


class MeteredPolicy:
    """A policy whose model calls have a token limit."""

    def __init__(self, policy: RemotePolicy, meter: TokenMeter) -> None:
        self.name = policy.name
        self._policy = policy
        self._meter = meter
        self._asked: dict[str, Json] = {}

    def ask(self, view: View) -> dict[str, Json]:
        """The body to send. Raises PolicyStops when the limit is reached."""
        self._meter.check()
        self._asked = self._policy.ask(view)
        return self._asked

    def read(self, reply: ChatReply) -> Decision:
        """The reply as a Decision."""
        self._meter.count(self._asked, reply)
        return self._policy.read(reply)


class MeteredPort:
    """A `ModelPort` for the environment's thread, with a token limit."""

    def __init__(self, models: ModelPort, meter: TokenMeter) -> None:
        self._models = models
        self._meter = meter

    def ask(self, role: str, body: dict[str, Json]) -> ChatReply:
        """Requests a reply. Raises PolicyStops when the limit is reached, and what `ModelPort.ask` raises."""
        self._meter.check()
        reply = self._models.ask(role, body)
        self._meter.count(body, reply)
        return reply
