"""Every error that taskapp-kit raises, as a tree.

    KitError
    ├── DeclarationError        the author's file is invalid; lists every Problem with file:line
    ├── LateRegistration        a decorator was used after the app was frozen
    ├── DiscoveryError          no app with that name, or the author's file failed during its import
    │   └── FileMissing         a file does not exist (also a FileNotFoundError)
    ├── ConfigError             a flag, environment variable or file has an invalid value
    │   └── BadArgument         an argument of a Python call is invalid (also a ValueError)
    ├── Unavailable             an optional package or a feature is missing
    ├── RequestError            the caller's request is invalid (HTTP 422)
    ├── Saturated               no capacity now; retry later (HTTP 503, or 429 if the key's own quota is used up)
    ├── SessionError            a session does not exist or is not in a state that allows the call (HTTP 404, 409)
    ├── IdempotencyKeyReused    an Idempotency-Key was sent again with a different request (HTTP 409)
    ├── SandboxError            a sandbox could not run a program, or read or write a file
    │   └── SandboxTooWeak      this machine cannot confine untrusted code as required
    ├── StoreError              the store could not save or load a rollout
    │   └── StoreRefusal        the store rejects this one rollout; it accepts others
    ├── EvaluationStopped       an evaluation ended early because all rollouts fail for the same reason
    │   └── EvaluationLimitReached  an evaluation ended early because it reached a limit
    ├── JobError                a job failed, or a backend or task app was unreachable or rejected a request (`client/`)
    │   ├── JobConfigError      an RL config is invalid; lists every problem (also a ConfigError and a ValueError)
    │   ├── BackendError        the backend rejected a request or failed, with the HTTP status
    │   │   └── BackendUnreachable
    │   ├── TaskAppError        the task app rejected a request or failed, with the HTTP status, code and boundary
    │   │   └── TaskAppUnreachable
    │   ├── TunnelError         the tunnel to a task app on this machine could not be opened, or does not reach the app
    │   ├── JobFailed           the job ended with a status other than succeeded
    │   └── JobTimeout          the job ran longer than the caller waits (also a TimeoutError)
    ├── TrainingError           the learning engine's sampler or update failed (`train/`)
    │   └── CheckpointError     a checkpoint cannot be saved, read, exported or imported
    ├── ServiceError            a service could not complete a call (`services/`)
    │   ├── ReplicaStartFailed  a replica could not be started
    │   ├── ReplicaDied         the replica ended during the call or the session
    │   ├── CallTimeout         the call exceeded its time limit (also a TimeoutError)
    │   └── EndpointRaised      a method of the service raised an exception
    └── RolloutFailed           a rollout failed at exactly one `boundary`
        └── UndefinedReward     the rollout was played, but a part of its reward is undefined

    InvalidAction               not a failure: an environment rejects an action, and the policy reads the reason

A message states what happened, to what, what was expected and what to do. No message ever contains an API key.
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
        place: `file:line`, or the app's name if the line is unknown.
        found: What is wrong at this location.
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
    """The declarations of one app are invalid. `problems` lists every mistake, ordered by location."""

    def __init__(self, app: str, problems: list[Problem]) -> None:
        self.app = app
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "\n".join(f"  {problem}".replace("\n", "\n  ") for problem in problems)
        super().__init__(f"task app {app!r} has {count}:\n{lines}")


class LateRegistration(KitError):
    """Something was declared on an app after the app was frozen, so only later callers would see it."""


class DiscoveryError(KitError):
    """An app could not be found or imported."""


class FileMissing(DiscoveryError, FileNotFoundError):
    """A file does not exist."""


class ConfigError(KitError):
    """A setting is invalid. The message names the setting and its source, never a secret's value."""


class BadArgument(ConfigError, ValueError):
    """An argument of a Python call is invalid, alone or together with another argument."""


class Unavailable(KitError):
    """A requested feature is not installed, or this version does not have it. The message names what is required."""


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One invalid field of a request.

    Attributes:
        loc: The path to the field in the request, such as `("body", "env", "seed")`.
        message: What is wrong with the field.
        type: A machine-readable code.
    """

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
    """The server has no capacity for another rollout at the moment. Retry after `retry_after_seconds`.

    code: `saturated` (the server's limit is reached), `key_quota_reached` (the key's quota is used up), `draining` (the
    server is stopping), `store_failing` (the last write to the store failed).
    """

    def __init__(self, message: str, *, code: str = "saturated", retry_after_seconds: int = 1) -> None:
        super().__init__(message, hint=f"Try again in {retry_after_seconds} s.")
        self.code = code
        self.retry_after_seconds = retry_after_seconds


class SessionError(KitError):
    """A call is not possible in the current state of its session.

    code: `session_not_found` (the session was closed, has expired or belongs to another key), `session_busy` (another
    call is running), `no_episode` (the session was not reset yet), `episode_over` (a step was requested after the
    episode ended).
    """

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class IdempotencyKeyReused(KitError):
    """The caller sent an Idempotency-Key again with a different request."""


class StoreError(KitError):
    """The store could not be opened, written or read. A rollout that was not stored is never reported as stored."""


class StoreRefusal(StoreError):
    """The store works but rejects one rollout: it is too large, contains a key, or would change when read back."""


class EvaluationStopped(KitError):
    """An evaluation ended early, because every rollout failed at the same model, judge or criterion."""


class EvaluationLimitReached(EvaluationStopped):
    """An evaluation reached its limit on failures, cost or tokens. The rollouts played so far are stored."""


class JobError(KitError):
    """A job failed, or a request to its backend or its task app failed.

    code: A machine-readable reason, such as `no_rewards`, or "" if the reason has no code.
    """

    def __init__(self, message: str, *, code: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class JobConfigError(JobError, ConfigError, ValueError):
    """An RL config is invalid.

    Attributes:
        problems: The message of each problem, with its line in the config if the line is known.
        places: The path of each problem in the config, such as ("training", "batch_size"), or () if the problem has no
            path.
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
    """The backend rejected a request or failed.

    Attributes:
        status: The HTTP status of the response, or 0 if there was no response.
        fields: The invalid fields of the request, as the backend reported them.
    """

    def __init__(self, message: str, *, status: int = 0, fields: tuple[FieldProblem, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.fields = fields


class BackendUnreachable(BackendError):
    """The backend does not respond at its address."""


class TaskAppError(JobError):
    """The task app rejected a request or failed.

    Attributes:
        status: The HTTP status of the response, or 0 if there was no response.
        code: The error code in the response, or "".
        boundary: Where a rollout failed, or None if the request was rejected.
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
    """The task app does not respond, or the connection to it broke and could not be restored."""


class TunnelError(JobError):
    """The tunnel to a task app on this machine could not be opened, or does not reach the task app."""


class JobFailed(JobError):
    """The job ended with a status other than succeeded. `job` is the last status that the backend reported."""

    def __init__(self, message: str, *, job: dict[str, object] | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.job = job or {}


class JobTimeout(JobError, TimeoutError):
    """The caller stopped waiting for the job, which is still running."""


class TrainingError(KitError):
    """The learning engine's sampler or update failed: the model raised an exception, or a number is not
    finite."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be saved, read, exported or imported. Existing checkpoints are unchanged."""


class ServiceError(KitError):
    """A service could not complete a call, or does not support it."""


class ReplicaStartFailed(ServiceError):
    """A replica of a service could not be started. The message includes the replica's error."""


class ReplicaDied(ServiceError):
    """The replica ended during a call or a session. Whether the call was completed is unknown."""


class CallTimeout(ServiceError, TimeoutError):
    """A call exceeded the service's time limit. The replica was replaced."""


class EndpointRaised(ServiceError):
    """A method of a service raised an exception.

    Attributes:
        error_type: The name of the exception's class, such as `ValueError`.
        error_text: The exception's message.
        traceback: The traceback in the replica.
    """

    def __init__(self, message: str, *, error_type: str, error_text: str, traceback: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.error_type = error_type
        self.error_text = error_text
        self.traceback = traceback


class SandboxError(KitError):
    """A sandbox could not be created, start a program, or read or write a file.

    A program that fails does not raise this error.
    """


class SandboxTooWeak(SandboxError):
    """This machine cannot confine untrusted code at the required level. The message names the missing features."""


@dataclass(slots=True)
class Failure:
    """The record of a failed rollout. It omits the exception's message, which may contain secrets.

    Attributes:
        boundary: Where the rollout failed.
        code: A stable code, such as `environment_raised` or `deadline`.
        message: What happened.
        hint: What to do; may be empty.
        error_id: The opaque id that marks the traceback in the log.
        metadata: Additional strings by name.
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
    """A rollout was played, but its reward is undefined. This error is raised only if the caller needs a number."""

    def __init__(self, *, rollout_id: str = "") -> None:
        message = "The episode was played, but a part of its reward is undefined."
        hint = "A criterion or judge with weight > 0 was not applicable. The rollout's scorecard shows which one."
        super().__init__(Failure("scoring", "reward_undefined", message, hint), rollout_id=rollout_id)


class InvalidAction(Exception):
    """An author's action rejects the call, for example with "not in the word list".

    The text becomes the policy's next observation. A rejected call is counted and uses a step, but the rollout does not
    fail.

    Args:
        text: The observation for the policy.
        end: End the episode as terminated, with stop reason `invalid_action`, and score it.
        reward: The reward of the rejected step: at most 0, and within `reward_range`. None means no reward.
    """

    def __init__(self, *text: object, end: bool = False, reward: float | None = None) -> None:
        super().__init__(*text)
        self.end = end
        self.reward = reward


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to a misspelled name, or None if no known name is similar enough.

    cutoff: The required similarity, from 0 to 1, as in `difflib.get_close_matches`.
    """
    import difflib  # imported here, because it would add a tenth to the time of `import taskapp_kit.config`

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)
