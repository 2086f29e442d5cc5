"""Every error that taskapp-kit raises, drawn as a tree.

    TaskappError
    ├── DeclarationError        the author's file is wrong; holds every Problem with file:line
    ├── LateRegistration        a decorator was used after the app was frozen
    ├── DiscoveryError          no app under that name, or the author's file failed while importing
    │   └── FileMissing         there is no such file (a FileNotFoundError, too)
    ├── ConfigError             a flag, environment variable or file has an unusable value
    │   └── BadArgument         an argument of a Python call has (a ValueError, too)
    ├── Unavailable             an optional package or a later part of the kit is missing
    ├── RequestError            the caller's request is wrong (HTTP 422 at the front entrance)
    ├── Saturated               no place is free now; come back later (HTTP 503, for a key's own quota 429)
    ├── IdempotencyKeyReused    an Idempotency-Key was sent again with another request (HTTP 409)
    ├── SandboxError            a box could not run a program, or not give or take a file
    │   └── SandboxTooWeak      this machine confines untrusted code less than is asked for
    ├── StoreError              the store could not keep or give back a rollout
    │   └── StoreRefusal        the store refuses this one rollout; it keeps others
    ├── EvaluationStopped       an evaluation ended early because its model is gone
    ├── JobError                a job, its backend or a task app could not be asked, refused or broke (`client/`)
    │   ├── JobConfigError      an RL config cannot be used; holds every problem (a ConfigError and ValueError, too)
    │   ├── BackendError        the backend refused or broke, with its HTTP status
    │   │   └── BackendUnreachable
    │   ├── TaskAppError        the task app refused or broke, with its HTTP status, code and boundary
    │   │   └── TaskAppUnreachable
    │   ├── TunnelError         no tunnel to a task app on this machine
    │   ├── JobFailed           the job ended, and not as succeeded
    │   └── JobTimeout          the job went on for longer than the caller waits (a TimeoutError, too)
    └── RolloutFailed           a rollout broke; exactly one `boundary` says where

    InvalidAction               not a failure: an environment says no, the policy reads why

A sentence says what happened, to what, what was expected and what to do. No message ever holds a key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Boundary = Literal["environment", "policy", "scoring", "timeout", "cancelled"]


class TaskappError(Exception):
    """Root of the family. `hint` is what to do about it, in one sentence; may be empty."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in an author's file.

    `place` is `file:line` (or the app's name when there is no line), `found` what is wrong there, `expected` what
    the kit can use, `fix` what to change.
    """

    place: str
    found: str
    expected: str
    fix: str

    def __str__(self) -> str:
        return f"{self.place}: {self.found}\n    expected: {self.expected}\n    do: {self.fix}"


class DeclarationError(TaskappError):
    """The declarations of one app do not hold together. `problems` lists all of them, in order of place."""

    def __init__(self, app: str, problems: list[Problem]) -> None:
        self.app = app
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "\n".join(f"  {problem}".replace("\n", "\n  ") for problem in problems)
        super().__init__(f"task app {app!r} has {count}:\n{lines}")


class LateRegistration(TaskappError):
    """Something was declared on an app that already serves: it would exist for some callers only."""


class DiscoveryError(TaskappError):
    """An app could not be found or imported."""


class FileMissing(DiscoveryError, FileNotFoundError):
    """There is no such file."""


class ConfigError(TaskappError):
    """A setting cannot be used. The message names the setting and where it came from, never a secret's value."""


class BadArgument(ConfigError, ValueError):
    """An argument of a Python call cannot be used, alone or beside another."""


class Unavailable(TaskappError):
    """Something the caller asked for is not installed or not part of this version. The message names what it needs."""


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One field of a request: `loc` as in JSON (`("body", "env", "seed")`), a sentence, and a machine-readable type."""

    loc: tuple[str | int, ...]
    message: str
    type: str = "value_error"


class RequestError(TaskappError):
    """The caller's request cannot be played. `fields` names each field that is wrong."""

    def __init__(
        self, message: str, *, fields: tuple[FieldProblem, ...] = (), code: str = "invalid_request", hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.fields = fields
        self.code = code


class Saturated(TaskappError):
    """There is no place for the rollout now. `retry_after_seconds` is when asking again makes sense.

    code: `saturated` (all places are taken), `key_quota_reached` (all that the key has), `draining` (the server stops),
    `store_failing` (the last write to the store failed).
    """

    def __init__(self, message: str, *, code: str = "saturated", retry_after_seconds: int = 1) -> None:
        super().__init__(message, hint=f"Ask again in {retry_after_seconds} s.")
        self.code = code
        self.retry_after_seconds = retry_after_seconds


class IdempotencyKeyReused(TaskappError):
    """The caller sent an Idempotency-Key again, with another request."""


class StoreError(TaskappError):
    """The store could not be opened, written or read. A rollout that it could not keep is not answered as kept."""


class StoreRefusal(StoreError):
    """The store works and refuses one rollout: it would not read back equal, holds a key, or is too large."""


class EvaluationStopped(TaskappError):
    """An evaluation ended early: rollout after rollout failed because the model could not be asked."""


class JobError(TaskappError):
    """A job, its backend or the task app that it drives: asked over HTTP, and it could not be done."""


class JobConfigError(JobError, ConfigError, ValueError):
    """An RL config cannot be used. `problems` holds every sentence, each with its line where there is one."""

    def __init__(self, message: str, *, problems: tuple[str, ...] = (), hint: str = "") -> None:
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{message}{lines}", hint=hint)
        self.problems = problems


class BackendError(JobError):
    """The backend refused or broke. `status` is its HTTP status, 0 when there was none."""

    def __init__(self, message: str, *, status: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class BackendUnreachable(BackendError):
    """Nothing answers at the backend's address."""


class TaskAppError(JobError):
    """The task app refused or broke.

    status: HTTP status, 0 when there was none. code: the stable word of the answer, "" when it had none. boundary:
    where a rollout failed, None for a refusal. rollout_id: of the rollout that failed, "" when there is none.
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
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.boundary = boundary
        self.rollout_id = rollout_id


class TaskAppUnreachable(TaskAppError):
    """Nothing answers at the task app's address, or the connection broke and could not be taken up again."""


class TunnelError(JobError):
    """A task app on this machine could not be reached from outside."""


class JobFailed(JobError):
    """The job ended otherwise than as succeeded. `job` is its last status as the backend told it."""

    def __init__(self, message: str, *, job: dict[str, object] | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.job = job or {}


class JobTimeout(JobError, TimeoutError):
    """The job went on for longer than the caller was ready to wait; it goes on."""


class SandboxError(TaskappError):
    """A box could not be made, start a program, or give or take a file. What a program in it does is no such error."""


class SandboxTooWeak(SandboxError):
    """This machine cannot confine untrusted code at the level that is asked for; the message says what is missing."""


@dataclass(slots=True)
class Failure:
    """What is recorded of a failed rollout: never the exception's own text, which may hold anything.

    `error_id` is the opaque id under which the log has the traceback. `code` is a stable word, e.g.
    `environment_raised`, `step_not_json`, `deadline`.
    """

    boundary: Boundary
    code: str
    message: str
    hint: str = ""
    error_id: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


class RolloutFailed(TaskappError):
    """A rollout broke at exactly one boundary; it has no reward. The cause, when there is one, is `__cause__`."""

    def __init__(self, failure: Failure, *, rollout_id: str = "") -> None:
        super().__init__(failure.message, hint=failure.hint)
        self.failure = failure
        self.rollout_id = rollout_id

    @property
    def boundary(self) -> Boundary:
        """Where it broke."""
        return self.failure.boundary


class InvalidAction(Exception):
    """Raised by an author's action to say no: "not in the word list".

    The text goes back to the policy as its next observation, is counted, costs a step, and is no failure. end: the
    episode ends here, terminated with stop reason `invalid_action`, and is scored.
    """

    def __init__(self, *text: object, end: bool = False) -> None:
        super().__init__(*text)
        self.end = end


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that a misspelt one resembles most, for *did you mean*; None when none is near.

    cutoff: how near it has to be, from 0 to 1 (`difflib.get_close_matches`).
    """
    import difflib  # late: a tenth of the time that `import taskapp_kit.config` takes

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)
