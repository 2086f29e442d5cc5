"""The plan of an episode: the identity, the policy, the limits, and the caller's parsed `ops`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from taskapp_kit.config import CALLS_PER_ANSWER
from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.records.content import Json, NotJson, plain
from taskapp_kit.records.protocols import LocalPolicy
from taskapp_kit.records.scorecard import Blend
from taskapp_kit.records.trajectory import Recording
from taskapp_kit.wire.chat.conversation import Endpoint, RemotePolicy

if TYPE_CHECKING:
    from taskapp_kit.wire.rollout import RolloutRequest

AGENT_WORDS = frozenset({"agent", "policy", "model"})
ENVIRONMENT_WORDS = frozenset({"env", "environment", "step"})


@dataclass(frozen=True, slots=True)
class Scripted:
    """An action that the caller supplies in `ops`."""

    tool: str
    args: Json


StopReason = Literal["timeout", "cancelled"]

Instruction = Scripted | Literal["agent"]


def read_ops(ops: Sequence[Any]) -> tuple[Instruction, ...] | None:
    """Convert the caller's `ops` to instructions. Returns None for an empty list: the policy then plays until the episode ends.

    "agent" (also "policy", "model") is one turn of the policy. "env" (also "environment", "step") represents the response
    to a turn and adds nothing. `{"type": "env", "tool": NAME, "args": {…}}` executes this tool. Raises RequestError for
    other values.
    """
    if not ops:
        return None
    result: list[Instruction] = []
    for index, op in enumerate(ops):
        word = op.get("type") if isinstance(op, dict) else op
        if not isinstance(word, str):
            raise _bad_op(index, "needs a string `type`" if isinstance(op, dict) else f"is a {type(op).__name__}")
        # if accepted, the episode would silently ignore the action that the caller requested
        if isinstance(op, dict) and "tool" in op and word in AGENT_WORDS:
            raise _bad_op(index, f"names a tool, but the policy chooses the tool in a turn of type {word!r}")
        if isinstance(op, dict) and "tool" in op and word in ENVIRONMENT_WORDS:
            if not isinstance(op["tool"], str):
                raise _bad_op(index, "names a tool that is not a string")
            try:
                result.append(Scripted(op["tool"], plain(op.get("args", {}), "args")))
            except NotJson as error:
                raise _bad_op(index, f"has arguments that are not JSON: {error}") from None
        elif word in AGENT_WORDS:
            result.append("agent")
        elif word not in ENVIRONMENT_WORDS:
            raise _bad_op(index, f"is of type {word[:40]!r}" if isinstance(op, dict) else f"is {word[:40]!r}")
    return tuple(result)


def _bad_op(index: int, found: str) -> RequestError:
    message = (
        f'ops[{index}] {found}. An op must be "agent", "env", an object whose `type` is one of them, or '
        '{"type": "env", "tool": NAME, "args": {…}}'
    )
    return RequestError(message, fields=(FieldProblem(("body", "ops", index), message, "unknown_op"),), code="bad_ops")


@dataclass(slots=True)
class EpisodePlan:
    """A request that was validated against the app, with all data for one rollout. A limit of None does not apply.

    max_ops: the limit on operations. Each turn of the policy and each action is one operation, so a turn counts at least 2
    and a scripted action 1. max_refusals: the limit on consecutive replies without an accepted action. default_max_turns:
    the limit on turns if the environment declares no limit. max_calls: the limit on tool calls that are executed from one reply.

    config: the caller's env.config. arguments: the validated arguments of the constructor. task: the row with its private
    fields, or None if the environment has no rows. folder: the directory of the author's file, for `context.path`. actor:
    the policy object.

    blend: the request's reward formula, or None to use the app's formula. warnings: parts of the request that were
    ignored. skip_judges: whether judges are skipped; their scores are then null. inference_url: the model's address without
    a key. correlation_id: the caller's trace id. endpoint: the endpoint of the policy's model, or None if no model is
    called. recording: the decisions that a replay repeats.
    """

    request: RolloutRequest
    actor: LocalPolicy | RemotePolicy
    environment: EnvironmentSpec
    split: str
    seed: int
    config: dict[str, Json]
    arguments: dict[str, Any]
    folder: Path
    task: Any = None
    program: tuple[Instruction, ...] | None = None
    max_turns: int | None = None
    max_steps: int | None = None
    max_ops: int | None = None
    max_refusals: int | None = None
    default_max_turns: int | None = None
    max_calls: int = CALLS_PER_ANSWER
    wants_images: bool = True
    blend: Blend | None = None
    warnings: list[str] = field(default_factory=list)
    skip_judges: bool = False
    inference_url: str | None = None
    correlation_id: str | None = None
    endpoint: Endpoint | None = None
    recording: Recording | None = None

    @property
    def policy(self) -> str:
        """The name of the policy."""
        return self.actor.name

    def local_actor(self) -> LocalPolicy:
        """Return the policy as a LocalPolicy, which computes its decisions."""
        assert hasattr(self.actor, "decide"), "a model decides, from elsewhere"  # isinstance with a protocol takes 8 µs
        return cast(LocalPolicy, self.actor)

    def remote_actor(self) -> RemotePolicy:
        """Return the policy as a RemotePolicy, which calls a model."""
        assert isinstance(self.actor, RemotePolicy), "it decides by computing"
        return self.actor

    def instructions(self) -> Iterator[Instruction]:
        """Yield the instructions of `ops`, or an endless sequence of policy turns."""
        if self.program is not None:
            yield from self.program
            return
        while True:
            yield "agent"


@dataclass(slots=True)
class Control:
    """Stops an episode from outside, and stores the cause of its failure.

    Each field is written either only by the episode's thread, or only by other code.

    stop: the reason that `end` sets from outside. The episode ends before its next step. on_stop: a function that `end`
    calls with the reason in the caller's thread, to wake a policy that waits in the episode's thread. cause: the exception
    that caused a failure, for the log and for a local caller. The exception is never sent in a response.
    """

    stop: StopReason | None = None
    on_stop: Callable[[StopReason], None] | None = None
    cause: BaseException | None = None
    closed: threading.Event = field(default_factory=threading.Event)

    def end(self, reason: StopReason) -> None:
        """Stop the episode. Only the first reason counts. Call this in any thread except the episode's thread."""
        self.stop = self.stop or reason
        if self.on_stop is not None:
            self.on_stop(self.stop)
