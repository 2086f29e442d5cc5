"""A call of a language model: what is sent to a chat-completions endpoint, and what comes back.

Who plays builds the body (`rollout/policy/chat/conversation.py`, in the environment's thread or a worker process), the
front sends it (`rollout/models/client.py`, on the event loop): a worker process holds no address and no key.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

from taskapp_kit.contract.content import Json
from taskapp_kit.contract.protocols import View
from taskapp_kit.contract.trajectory import Decision
from taskapp_kit.errors import Failure

POLICY = "policy"
"""The role of the model that plays; judges and user simulators have names of their own."""


CONTEXT_OVERFLOW = "context_overflow"
"""The stop reason of an episode whose conversation grew longer than the model reads: truncated, and scored."""


def role_variable(role: str) -> str:
    """The variable that holds the address of the model with this role, e.g. TASKAPP_JUDGE_URL."""
    return f"TASKAPP_{role.upper().replace('-', '_')}_URL"


def role_variables(role: str) -> tuple[str, str, str]:
    """All variables of the model with this role: the address, the model's name, the key."""
    start = role_variable(role).removesuffix("URL")
    return f"{start}URL", f"{start}MODEL", f"{start}KEY"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is asked, and as what.

    url: complete, `…/chat/completions`, its query kept; user and password never stand in it. model: the name that goes
    into the body, None leaves it out. key: the caller's own vendor key for this address, None takes the server's own
    where it belongs to the host. cache: answers may come from the response cache (never in mode `rl`).
    """

    url: str
    model: str | None = None
    key: str | None = field(default=None, repr=False)
    cache: bool = False


@dataclass(slots=True)
class ChatReply:
    """What the endpoint answered, as it gave it.

    message: the assistant's message (`content`, `tool_calls`, `reasoning_content`, …). finish_reason: `stop`,
    `tool_calls`, `length`, … usage: `prompt_tokens`, `completion_tokens` and whatever else it counted. cost: in US
    dollars, where the price is known. prompt_token_ids, token_ids, logprobs, policy_version: where the endpoint gave
    them, never recomputed; of `token_ids` and `logprobs` each has one entry for each sampled token. seconds: of the
    attempt that succeeded. attempts: 1 when the first did. retries: what the others came to, `{"kind", "status"?}`.
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
        """Prompt and completion, as the endpoint counted them; 0 when it did not."""
        usage = self.usage
        return usage.get("total_tokens", usage.get("prompt_tokens", 0.0) + usage.get("completion_tokens", 0.0))

    def to_json(self) -> dict[str, Any]:
        """For a worker process."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> ChatReply:
        """The inverse of `to_json`."""
        return cls(**body)


class ModelFailed(Exception):
    """The model could not be asked, or what it answered cannot be used; no retry is left.

    failure: boundary `policy` (or `timeout`). overflow: the conversation is longer than the model can read; that is a
    limit of the episode, and no failure.
    """

    def __init__(self, failure: Failure, *, overflow: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.overflow = overflow


@runtime_checkable
class RemotePolicy(Protocol):
    """A policy whose decisions a model makes. One object for each rollout, used in the environment's thread."""

    @property
    def name(self) -> str:
        """The name under which it was asked for."""
        ...

    def ask(self, view: View) -> dict[str, Json]:
        """The body to send, without `model`: what the model reads in this turn."""
        ...

    def read(self, reply: ChatReply) -> Decision:
        """What the model decided. What it answered badly is in `Decision.problem`, and no error."""
        ...


@runtime_checkable
class AsksModels(Protocol):
    """A policy that decides in the environment's thread, and asks the model itself meanwhile: an author's own loop."""

    def use(self, models: ModelPort) -> None:
        """How models are asked; given before the first decision."""
        ...

    def close(self) -> None:
        """The episode is over."""
        ...


class ModelPort(Protocol):
    """How code in an environment's thread reaches models: judges, user simulators. Each call blocks that thread."""

    def ask(self, role: str, body: dict[str, Json]) -> ChatReply:
        """One answer of the model that has this role. Raises ModelFailed; Unavailable when none is configured for it."""
        ...
