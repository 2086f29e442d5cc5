"""One call of a language model: the request to a chat-completions endpoint, and its reply.

The policy builds the body (`rollout/policy/conversation.py`, in the environment's thread or a worker process); the
server process sends it (`rollout/models/client.py`, on the event loop), so a worker process has no address and no key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

from taskapp_kit.errors import Failure
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import View
from taskapp_kit.records.trajectory import Decision

CONTEXT_OVERFLOW = "context_overflow"
"""The stop reason if the conversation exceeds the model's context: the episode is truncated, and scored."""


def role_variable(role: str) -> str:
    """Return the variable that holds the address of the model with this role, e.g. TASKAPP_JUDGE_URL."""
    return f"TASKAPP_{role.upper().replace('-', '_')}_URL"


def role_variables(role: str) -> tuple[str, str, str]:
    """Return the variables of the model with this role: the address, the model's name, the key."""
    start = role_variable(role).removesuffix("URL")
    return f"{start}URL", f"{start}MODEL", f"{start}KEY"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a model, and how to call it.

    Attributes:
        url: The complete address, `…/chat/completions`, with its query, without user and password.
        model: The name sent in the body; None omits it.
        key: The caller's vendor key for this address; None uses the server's key for the host, if any.
        cache: Whether answers may come from the response cache (never in mode `rl`).
        sample: The rollout's sample of its seed; samples do not share cached answers.
    """

    url: str
    model: str | None = None
    key: str | None = field(default=None, repr=False)
    cache: bool = False
    sample: int = 0


@dataclass(slots=True)
class ChatReply:
    """An endpoint's reply, as received.

    Attributes:
        message: The assistant's message (`content`, `tool_calls`, `reasoning_content`, …).
        finish_reason: `stop`, `tool_calls`, `length`, …
        model: The name that the endpoint sent.
        usage: `prompt_tokens`, `completion_tokens` and any other counts.
        cost: In US dollars, if the price is known.
        prompt_token_ids: As the endpoint sent them, never computed, like the next three.
        token_ids: One for each sampled token.
        logprobs: One for each sampled token.
        policy_version: The version of the weights.
        seconds: The duration of the successful attempt.
        attempts: The number of attempts.
        retries: The failed attempts, each as `{"kind", "status"?}`.
        cached: Whether it came from the response cache.
    """

    message: dict[str, Json]
    finish_reason: str = ""
    model: str = ""
    usage: dict[str, float] = field(default_factory=dict)
    cost: float | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    policy_version: str | None = None
    seconds: float = 0.0
    attempts: int = 1
    retries: list[dict[str, Json]] = field(default_factory=list)
    cached: bool = False

    @property
    def tokens(self) -> float:
        """Return the prompt and completion tokens as the endpoint counted them; 0 if it reported no usage."""
        usage = self.usage
        return usage.get("total_tokens", usage.get("prompt_tokens", 0.0) + usage.get("completion_tokens", 0.0))

    def to_json(self) -> dict[str, Any]:
        """Return the reply as JSON, to pass it to another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> ChatReply:
        """Return the inverse of `to_json`."""
        return cls(**body)


class ModelFailed(Exception):
    """The model could not be called, or its answer is unusable, after all retries.

    failure: boundary `policy` (or `timeout`). overflow: the conversation is longer than the model's context, which is a
    limit of the episode, not a failure.
    """

    def __init__(self, failure: Failure, *, overflow: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.overflow = overflow


def stopped_failure(reason: str) -> ModelFailed:
    """Return the exception for a call whose rollout was stopped. reason: timeout | cancelled."""
    if reason == "timeout":
        failure = Failure("timeout", "deadline", "the rollout reached its deadline during a model call")
    else:
        failure = Failure("cancelled", "cancelled", "the rollout was cancelled during a model call")
    return ModelFailed(failure)


Ask = Callable[[str, dict[str, Json]], Awaitable[ChatReply | ModelFailed]]
"""(role, body) -> the reply or the failure, on the event loop. Raises Unavailable if no model has the role."""


@runtime_checkable
class RemotePolicy(Protocol):
    """A policy with a model's decisions. One object for each rollout, used in the environment's thread."""

    @property
    def name(self) -> str:
        """Return the name under which it was requested."""
        ...

    def ask(self, view: View) -> dict[str, Json]:
        """Return the body of this turn's request, without `model`."""
        ...

    def read(self, reply: ChatReply) -> Decision:
        """Parse the model's decision. An unusable answer is reported in `Decision.problem`, not raised."""
        ...


@runtime_checkable
class AsksModels(Protocol):
    """An author's loop: a policy that runs in the environment's thread and calls the model itself."""

    def use(self, models: ModelPort) -> None:
        """Set how models are called, before the first decision."""
        ...

    def stop(self, reason: str) -> None:
        """Make a running decision raise. Called in another thread when the rollout is stopped from outside."""
        ...

    def close(self) -> None:
        """Clean up at the end of the episode."""
        ...


class ModelPort(Protocol):
    """Calls of models (judges, user simulators) from an environment's thread, which each call blocks."""

    def ask(self, role: str, body: dict[str, Json]) -> ChatReply:
        """Return a reply of the model with this role. Raises ModelFailed, or Unavailable if none is configured."""
        ...
