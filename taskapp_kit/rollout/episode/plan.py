"""The plan of an episode: its identity, its policy, its limits, and the caller's parsed `ops`."""

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
    """An action that the caller applies."""

    tool: str
    args: Json


StopReason = Literal["timeout", "cancelled"]

Instruction = Scripted | Literal["agent"]


def read_ops(ops: Sequence[Any]) -> tuple[Instruction, ...] | None:
    """Return the caller's `ops` as instructions; None for an empty list, which plays until the end or a limit.

    "agent" (policy, model) is one policy turn; "env" (environment, step) is its answer and adds nothing;
    `{"type": "env", "tool": NAME, "args": {…}}` applies that action. Raises RequestError for anything else.
    """
    if not ops:
        return None
    result: list[Instruction] = []
    for index, op in enumerate(ops):
        word = op.get("type") if isinstance(op, dict) else op
        if not isinstance(word, str):
            raise _bad_op(
                index, "has no `type` that is a string" if isinstance(op, dict) else f"is a {type(op).__name__}"
            )
        # Accepted, it would silently play a different action than the caller wrote.
        if isinstance(op, dict) and "tool" in op and word in AGENT_WORDS:
            raise _bad_op(index, f"names a tool, but with the type {word!r} the policy chooses the tool")
        if isinstance(op, dict) and "tool" in op and word in ENVIRONMENT_WORDS:
            if not isinstance(op["tool"], str):
                raise _bad_op(index, "names a tool that is not a string")
            try:
                result.append(Scripted(op["tool"], plain(op.get("args", {}), "args")))
            except NotJson as error:
                raise _bad_op(index, f"cannot be applied: {error}") from None
        elif word in AGENT_WORDS:
            result.append("agent")
        elif word not in ENVIRONMENT_WORDS:
            raise _bad_op(index, f"is of type {word[:40]!r}" if isinstance(op, dict) else f"is {word[:40]!r}")
    return tuple(result)


def _bad_op(index: int, found: str) -> RequestError:
    message = (
        f'ops[{index}] {found}; expected "agent", "env", an object whose `type` is one of them, or '
        '{"type": "env", "tool": NAME, "args": {…}}'
    )
    return RequestError(message, fields=(FieldProblem(("body", "ops", index), message, "unknown_op"),), code="bad_ops")


@dataclass(slots=True)
class EpisodePlan:
    """A request validated against the app: everything that one rollout needs. Limits of None do not apply.

    `max_ops` counts 1 for a policy's turn and 1 for each action, so at least 2 for a turn and 1 for a scripted action.
    max_refusals: consecutive answers of the policy in which nothing was accepted. default_max_turns: of an environment that
    declares no limit. max_calls: how many calls of one answer are executed.

    config: env.config as the caller gave it; arguments: the constructor's, validated. task: the row, private fields
    included, None without rows. folder: the directory of the author's file, for `context.path`. actor: the policy itself.

    blend: the request's own reward formula, None for the app's. warnings: what was accepted and ignored. skip_judges: no
    judge is called; their scores are null. inference_url: the model's address, without a key. correlation_id: the caller's
    id of the trace. endpoint: of the policy's model, None where none is called. recording: what a replay repeats.
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
        """Return the policy of a plan whose policy computes its decisions."""
        assert hasattr(self.actor, "decide"), "a model decides, from elsewhere"  # a protocol's isinstance takes 8 µs
        return cast(LocalPolicy, self.actor)

    def remote_actor(self) -> RemotePolicy:
        """Return the policy of a plan whose policy calls a model."""
        assert isinstance(self.actor, RemotePolicy), "it decides by computing"
        return self.actor

    def instructions(self) -> Iterator[Instruction]:
        """Yield the program, or policy turns without end."""
        if self.program is not None:
            yield from self.program
            return
        while True:
            yield "agent"


@dataclass(slots=True)
class Control:
    """Stops an episode from outside, and holds the cause of its failure. Each member is written by one side only.

    stop: set from outside by `end`; the episode ends before its next step. on_stop: also called then, in the caller's
    thread, with the reason; for a policy that waits in the episode's thread. cause: the exception behind a failure, for the
    log and for a local caller; it is never sent in a response.
    """

    stop: StopReason | None = None
    on_stop: Callable[[StopReason], None] | None = None
    cause: BaseException | None = None
    closed: threading.Event = field(default_factory=threading.Event)

    def end(self, reason: StopReason) -> None:
        """Stop the episode. The first reason counts. Called in any thread but the episode's."""
        self.stop = self.stop or reason
        if self.on_stop is not None:
            self.on_stop(self.stop)
