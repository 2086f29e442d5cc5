"""One call of a language model: the request to a chat completions endpoint, and the reply.

The policy builds the body (`rollout/policy/conversation.py`, in the environment's thread or a worker process); the
server process sends the body (`rollout/models/client.py`, on the event loop), so worker processes have no addresses or
API keys.
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
"""The stop reason if the conversation exceeds the model's context. The episode is truncated and scored."""


def role_variable(role: str) -> str:
    """Return the variable that contains the address of the model with this role, such as TASKAPP_JUDGE_URL."""
    return f"TASKAPP_{role.upper().replace('-', '_')}_URL"


def role_variables(role: str) -> tuple[str, str, str]:
    """Return the variables that contain the address, the name and the API key of the model with this role."""
    start = role_variable(role).removesuffix("URL")
    return f"{start}URL", f"{start}MODEL", f"{start}KEY"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a model, and how to call it.

    Attributes:
        url: The complete address, `…/chat/completions`, with the query but without user and password.
        model: The value of `model` in the body, or None to omit it.
        key: The caller's API key for this address. If None, the server's API key for the host is used, if it has one.
        cache: Whether replies may come from the response cache; False in mode `rl`.
        sample: The number of the rollout among the rollouts of its seed. Different samples do not share cached replies.
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
        cost: The cost in US dollars, or None if the price is unknown.
        prompt_token_ids: The token ids of the prompt. This and the next three fields are sent by the endpoint and never
            computed by the kit.
        token_ids: The id of each sampled token.
        logprobs: The logprob of each sampled token.
        policy_version: The version of the weights.
        seconds: The duration of the successful attempt.
        attempts: The number of attempts.
        retries: The failed attempts, each as `{"kind", "status"?}`.
        cached: Whether the reply came from the response cache.
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
        """Return the sum of prompt and completion tokens that the endpoint reported, or 0 if it reported no usage."""
        usage = self.usage
        return usage.get("total_tokens", usage.get("prompt_tokens", 0.0) + usage.get("completion_tokens", 0.0))

    def to_json(self) -> dict[str, Any]:
        """Return the reply as a JSON object that another process can decode."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> ChatReply:
        """Return the reply from the result of `to_json`."""
        return cls(**body)


class ModelFailed(Exception):
    """Raised if, after all retries, the model cannot be called or its reply is unusable.

    failure: the record of the failure, with boundary `policy`, `timeout` or `cancelled`. overflow: whether the
    conversation exceeds the model's context; if so, the episode is truncated and does not fail.
    """

    def __init__(self, failure: Failure, *, overflow: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.overflow = overflow


def stopped_failure(reason: str) -> ModelFailed:
    """Return the exception for a model call whose rollout was stopped. reason: `timeout` or `cancelled`."""
    if reason == "timeout":
        failure = Failure("timeout", "deadline", "the rollout reached its deadline during a model call")
    else:
        failure = Failure("cancelled", "cancelled", "the rollout was cancelled during a model call")
    return ModelFailed(failure)


Ask = Callable[[str, dict[str, Json]], Awaitable[ChatReply | ModelFailed]]
"""Calls the model with a role on the event loop, given the body of the request.

Raises Unavailable if no model has the role.
"""


@runtime_checkable
class RemotePolicy(Protocol):
    """A policy whose decisions are made by a model.

    Each rollout has one instance, which is used in the environment's thread.
    """

    @property
    def name(self) -> str:
        """Return the policy's name in the request."""
        ...

    def ask(self, view: View) -> dict[str, Json]:
        """Return the body of this turn's request, without `model`."""
        ...

    def read(self, reply: ChatReply) -> Decision:
        """Parse the model's decision. An unusable reply does not raise; `Decision.problem` describes it."""
        ...


@runtime_checkable
class AsksModels(Protocol):
    """An author's rollout function: a policy that runs in the environment's thread and calls the model itself."""

    def use(self, models: ModelPort) -> None:
        """Set how models are called, before the first decision."""
        ...

    def stop(self, reason: str) -> None:
        """Make a running decision raise an exception. Another thread calls this method when the rollout is stopped."""
        ...

    def close(self) -> None:
        """Clean up at the end of the episode."""
        ...


class ModelPort(Protocol):
    """Calls of judges and user simulators from an environment's thread. Each call blocks the thread."""

    def ask(self, role: str, body: dict[str, Json]) -> ChatReply:
        """Return a reply of the model with this role.

        Raises ModelFailed, or Unavailable if no such model is configured.
        """
        ...
