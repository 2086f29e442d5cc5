"""What went wrong with a task app, as the kit's own errors: one sentence with the server, what happened and what to do."""

from __future__ import annotations

from taskapp_kit.errors import TaskAppError, TaskAppUnreachable
from taskapp_kit.net.envelope import ErrorMembers, ended, error_members
from taskapp_kit.net.http import CHECK_PROXY, NO_CONNECTION, HttpResponse, NoAnswer, Trouble

NO_TASK_APP = "Is that the address of a task app?"
START_IT = "Start the server (taskapp serve APP), or check the address."
NO_KEY_CODES = frozenset({"unauthorised", "unauthorized"})


def unreachable(
    lost: NoAnswer, url: str, path: str, *, may_run: bool = False, repeatable: bool = False
) -> TaskAppUnreachable:
    """may_run: the request was a rollout, and the task app may be playing it. repeatable: it had an idempotency key."""
    if lost.kind is Trouble.REFUSED:
        return TaskAppUnreachable(f"Nothing answers at {url}.", hint=START_IT)
    if lost.kind is Trouble.PROXY:
        return TaskAppUnreachable(f"{url} {lost.why}.", hint=CHECK_PROXY)
    if lost.kind in NO_CONNECTION:
        return TaskAppUnreachable(f"{url} {lost.why}.", hint="Check the address.")
    if lost.kind is Trouble.FORBIDDEN:
        return TaskAppUnreachable(f"{url} is not called. {lost.why}")
    if not may_run:
        return TaskAppUnreachable(f"{url}{path} {lost.why}.")
    if repeatable:
        return TaskAppUnreachable(
            f"{url}{path} {lost.why}; the rollout may still run there.",
            hint="Ask for it again with the same idempotency key: the task app plays once.",
        )
    return TaskAppUnreachable(
        f"{url}{path} {lost.why}; the rollout may still run there, so it was not asked for again.",
        hint="With an idempotency key a rollout can be asked for again without playing twice.",
    )


def refusal(answer: HttpResponse, url: str, path: str, key: str | None) -> TaskAppError:
    """What an answer other than 200 comes to."""
    told = error_members(answer, key)
    known = told is not None and told.code == "admin_only"  # the key is valid, and may not ask for that
    if (answer.status in (401, 403) and not known) or (told is not None and told.code in NO_KEY_CODES):
        what = "the key" if key else "a request without a key"
        return TaskAppError(
            f"{url} refuses {what}.",
            status=answer.status,
            code=told.code if told is not None else "unauthorised",
            hint="Give the key that the task app was started with, ENVIRONMENT_API_KEY there.",
        )
    if told is None:
        return TaskAppError(f"{url}{path} answered {answer.status}.", status=answer.status, hint=NO_TASK_APP)
    if told.boundary:
        ids = f"rollout {told.rollout_id or '-'}, error id {told.error_id or '-'}; see the server's log"
        message = f"The rollout failed at boundary {told.boundary} ({told.code}): {ended(told.message)}"
        return _error(message, f"{told.hint} ({ids})".strip(), answer, told)
    lines = "".join(f"\n  {line}" for line in told.fields)
    message = f"{url} answers {answer.status} ({told.code}): {ended(told.message)}"
    return _error(message, told.hint + lines, answer, told)


def not_json(answer: HttpResponse, url: str, path: str) -> TaskAppError:
    """A 200 that holds something else than was asked for."""
    return TaskAppError(
        f"{url}{path} answered with something other than JSON.", status=answer.status, code="not_json", hint=NO_TASK_APP
    )


def _error(message: str, hint: str, answer: HttpResponse, told: ErrorMembers) -> TaskAppError:
    return TaskAppError(
        message,
        status=answer.status,
        code=told.code,
        boundary=told.boundary,
        rollout_id=told.rollout_id,
        hint=hint,
    )
