"""Every error that taskapp-kit raises, as a tree.

    KitError
    ├── DeclarationError        the author's file is invalid; has every Problem with file:line
    ├── LateRegistration        a decorator was used after the app was frozen
    ├── DiscoveryError          no app with that name, or the author's file failed during its import
    │   └── FileMissing         a file does not exist (also a FileNotFoundError)
    ├── ConfigError             a flag, environment variable or file has an invalid value
    │   └── BadArgument         an argument of a Python call is invalid (also a ValueError)
    ├── Unavailable             an optional package or a feature is missing
    ├── RequestError            the caller's request is invalid (HTTP 422)
    ├── Saturated               no capacity now; retry later (HTTP 503, for a key's own quota 429)
    ├── SessionError            a session does not exist, or the call does not fit its state (HTTP 404, 409)
    ├── IdempotencyKeyReused    an Idempotency-Key was sent again with another request (HTTP 409)
    ├── SandboxError            a box could not run a program, or read or write a file
    │   └── SandboxTooWeak      this machine confines untrusted code less than required
    ├── StoreError              the store could not save or load a rollout
    │   └── StoreRefusal        the store rejects this one rollout; it accepts others
    ├── EvaluationStopped       an evaluation ended early because rollouts fail for one reason
    │   └── EvaluationLimitReached  or because it reached a limit
    ├── JobError                a job, its backend or a task app was unreachable, rejected a request or broke (`client/`)
    │   ├── JobConfigError      an RL config is invalid; has every problem (also a ConfigError and a ValueError)
    │   ├── BackendError        the backend rejected a request or broke, with its HTTP status
    │   │   └── BackendUnreachable
    │   ├── TaskAppError        the task app rejected a request or broke, with its HTTP status, code and boundary
    │   │   └── TaskAppUnreachable
    │   ├── TunnelError         no tunnel to a task app on this machine
    │   ├── JobFailed           the job ended with a status other than succeeded
    │   └── JobTimeout          the job ran longer than the caller waits (also a TimeoutError)
    ├── TrainingError           the learning engine's sampler or update broke (`train/`)
    │   └── CheckpointError     a checkpoint cannot be saved, read, exported or imported
    ├── ServiceError            a service could not complete a call (`services/`)
    │   ├── ReplicaStartFailed  a replica could not be started
    │   ├── ReplicaDied         its replica ended during the call, or with the session
    │   ├── CallTimeout         the call exceeded its time limit (also a TimeoutError)
    │   └── EndpointRaised      the method itself raised
    └── RolloutFailed           a rollout failed at exactly one `boundary`
        └── UndefinedReward     it was played, and a part of its reward is undefined

    InvalidAction               not a failure: an environment refuses an action, and the policy reads why

A message states what happened, to what, what was expected and what to do. No message ever contains a key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Boundary = Literal["environment", "policy", "scoring", "timeout", "cancelled"]


class KitError(Exception):
    """Base class of the kit's errors. `hint` is one sentence about what to do; it may be empty."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in an author's file.

    Attributes:
        place: `file:line`, or the app's name if no line is known.
        found: What is wrong there.
        expected: What the kit accepts.
        fix: What to change.
    """

    place: str
    found: str
    expected: str
    fix: str

    def __str__(self) -> str:
        return f"{self.place}: {self.found}\n    expected: {self.expected}\n    do: {self.fix}"


class DeclarationError(KitError):
    """The declarations of one app are invalid. `problems` lists every mistake, in order of place."""

    def __init__(self, app: str, problems: list[Problem]) -> None:
        self.app = app
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "\n".join(f"  {problem}".replace("\n", "\n  ") for problem in problems)
        super().__init__(f"task app {app!r} has {count}:\n{lines}")


class LateRegistration(KitError):
    """Something was declared on an app that is already being served, so only some callers would see it."""


class DiscoveryError(KitError):
    """An app could not be found or imported."""


class FileMissing(DiscoveryError, FileNotFoundError):
    """A file does not exist."""


class ConfigError(KitError):
    """A setting is invalid. The message names the setting and its source, never a secret's value."""


class BadArgument(ConfigError, ValueError):
    """An argument of a Python call is invalid, alone or together with another argument."""


class Unavailable(KitError):
    """A requested feature is not installed or not in this version. The message names what it needs."""


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One field of a request: `loc` as in JSON (`("body", "env", "seed")`), a sentence, and a machine-readable type."""

    loc: tuple[str | int, ...]
    message: str
    type: str = "value_error"


class RequestError(KitError):
    """The caller's request is invalid. `fields` names each invalid field."""

    def __init__(
        self, message: str, *, fields: tuple[FieldProblem, ...] = (), code: str = "invalid_request", hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.fields = fields
        self.code = code


class Saturated(KitError):
    """The server has no capacity for the rollout now. Retry after `retry_after_seconds`.

    code: `saturated` (the server's limit is reached), `key_quota_reached` (the key's own limit is), `draining` (the
    server is stopping), `store_failing` (the last write to the store failed).
    """

    def __init__(self, message: str, *, code: str = "saturated", retry_after_seconds: int = 1) -> None:
        super().__init__(message, hint=f"Try again in {retry_after_seconds} s.")
        self.code = code
        self.retry_after_seconds = retry_after_seconds


class SessionError(KitError):
    """A call does not fit its session.

    code: `session_not_found` (closed, expired, or another key's), `session_busy` (another call is running), `no_episode`
    (nothing was reset yet), `episode_over` (a step after the end).
    """

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class IdempotencyKeyReused(KitError):
    """The caller sent an Idempotency-Key again with another request."""


class StoreError(KitError):
    """The store could not be opened, written or read. A rollout that was not stored is never reported as stored."""


class StoreRefusal(StoreError):
    """The store works but rejects one rollout: it would not be read back equal, contains a key, or is too large."""


class EvaluationStopped(KitError):
    """An evaluation ended early, because every rollout failed at the same model, judge or criterion."""


class EvaluationLimitReached(EvaluationStopped):
    """An evaluation reached a limit on its failures, cost or tokens. The rollouts that were played are stored."""


class JobError(KitError):
    """A job, its backend or its task app could not do what was requested over HTTP.

    code: The reason for programs, such as `no_rewards`; "" if there is no code for it.
    """

    def __init__(self, message: str, *, code: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class JobConfigError(JobError, ConfigError, ValueError):
    """An RL config is invalid.

    Attributes:
        problems: Every message, with its line if it has one.
        places: The location of each problem in the config, such as ("training", "batch_size"), or ().
    """

    def __init__(
        self,
        message: str,
        *,
        problems: tuple[str, ...] = (),
        places: tuple[tuple[str | int, ...], ...] = (),
        hint: str = "",
    ) -> None:
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{message}{lines}", hint=hint)
        self.problems = problems
        self.places = places or ((),) * len(problems)


class BackendError(JobError):
    """The backend rejected a request or broke.

    Attributes:
        status: Its HTTP status, 0 without a response.
        fields: The fields of the request that it names, and what is wrong with them.
    """

    def __init__(self, message: str, *, status: int = 0, fields: tuple[FieldProblem, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.fields = fields


class BackendUnreachable(BackendError):
    """The backend's address does not respond."""


class TaskAppError(JobError):
    """The task app rejected a request or broke.

    Attributes:
        status: Its HTTP status, 0 without a response.
        code: The stable code of the response, or "".
        boundary: Where a rollout failed, None if the request was rejected.
        rollout_id: The id of the failed rollout, or "".
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str = "",
        boundary: Boundary | None = None,
        rollout_id: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.status = status
        self.boundary = boundary
        self.rollout_id = rollout_id


class TaskAppUnreachable(TaskAppError):
    """The task app's address does not respond, or the connection broke and could not be restored."""


class TunnelError(JobError):
    """A task app on this machine could not be reached from outside."""


class JobFailed(JobError):
    """The job ended with a status other than succeeded. `job` is its last status as the backend reported it."""

    def __init__(self, message: str, *, job: dict[str, object] | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.job = job or {}


class JobTimeout(JobError, TimeoutError):
    """The caller stopped waiting for the job, which is still running."""


class TrainingError(KitError):
    """The learning engine's sampler or update failed: the model raised, or its weights or gradients are not finite."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be saved, read, exported or imported. What was stored before is unchanged."""


class ServiceError(KitError):
    """A service could not complete a call, or does not support it."""


class ReplicaStartFailed(ServiceError):
    """A replica of a service could not be started; the message includes the replica's error."""


class ReplicaDied(ServiceError):
    """The replica of a call or a session has ended. Whether the call was completed is unknown."""


class CallTimeout(ServiceError, TimeoutError):
    """A call exceeded its service's time limit. Its replica was replaced."""


class EndpointRaised(ServiceError):
    """The method of a service raised.

    Attributes:
        error_type: The exception's class, such as `ValueError`.
        error_text: The exception's text.
        traceback: The traceback in the replica.
    """

    def __init__(self, message: str, *, error_type: str, error_text: str, traceback: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.error_type = error_type
        self.error_text = error_text
        self.traceback = traceback


class SandboxError(KitError):
    """A box could not be created, start a program, or read or write a file. A program's own failure is not this error."""


class SandboxTooWeak(SandboxError):
    """This machine cannot confine untrusted code at the required level; the message names what is missing."""


@dataclass(slots=True)
class Failure:
    """The record of a failed rollout, without the exception's own text, which may contain anything.

    Attributes:
        boundary: Where the rollout failed.
        code: A stable code, such as `environment_raised` or `deadline`.
        message: What happened.
        hint: What to do; may be empty.
        error_id: The opaque id of the traceback in the log.
        metadata: Additional text by name.
    """

    boundary: Boundary
    code: str
    message: str
    hint: str = ""
    error_id: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


class RolloutFailed(KitError):
    """A rollout failed at exactly one boundary and has no reward. `__cause__` is the original exception, if any."""

    def __init__(self, failure: Failure, *, rollout_id: str = "") -> None:
        super().__init__(failure.message, hint=failure.hint)
        self.failure = failure
        self.rollout_id = rollout_id

    @property
    def boundary(self) -> Boundary:
        """Return where the rollout failed."""
        return self.failure.boundary


class UndefinedReward(RolloutFailed):
    """A rollout was played and its reward is undefined; raised only where a caller needs a number."""

    def __init__(self, *, rollout_id: str = "") -> None:
        message = "The episode was played, but a part of its reward is undefined."
        hint = "A criterion or judge with weight > 0 was not applicable; see the scorecard of such a rollout."
        super().__init__(Failure("scoring", "reward_undefined", message, hint), rollout_id=rollout_id)


class InvalidAction(Exception):
    """Raised by an author's action to refuse the call: "not in the word list".

    The text is the policy's next observation. The refusal is counted and costs a step; it is not a failure.

    Args:
        text: What the policy reads.
        end: Whether the episode ends here, terminated with stop reason `invalid_action`, and is scored.
    """

    def __init__(self, *text: object, end: bool = False) -> None:
        super().__init__(*text)
        self.end = end


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that a misspelled name resembles most, for *did you mean*; None if no name is close.

    cutoff: The required similarity, from 0 to 1 (`difflib.get_close_matches`).
    """
    import difflib  # late: a tenth of the time that `import taskapp_kit.config` takes

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)
