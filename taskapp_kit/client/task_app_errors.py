"""Failed requests to a task app as exceptions: one sentence with the server, what happened and what to do."""

from __future__ import annotations

from taskapp_kit.errors import TaskAppError, TaskAppUnreachable
from taskapp_kit.net.envelope import ErrorMembers, ended, error_members
from taskapp_kit.net.http import CHECK_PROXY, NO_CONNECTION, HttpResponse, NoAnswer, Trouble
from taskapp_kit.net.retry import ForeignRedirect

NO_TASK_APP = "Is that the address of a task app?"
START_IT = "Start the server (taskapp serve APP), or check the address."
NO_KEY_CODES = frozenset({"unauthorised", "unauthorized"})


def unreachable(
    lost: NoAnswer, url: str, path: str, *, may_run: bool = False, repeatable: bool = False
) -> TaskAppUnreachable:
    """Return the error of a request without a response.

    may_run: it was a rollout, which may run there. repeatable: it had an idempotency key.
    """
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
            hint="Repeat it with the same idempotency key: the task app runs one episode.",
        )
    return TaskAppUnreachable(
        f"{url}{path} {lost.why}; the rollout may still run there, so it was not sent again.",
        hint="With an idempotency key a rollout can be repeated without running twice.",
    )


def not_followed(foreign: ForeignRedirect, url: str, path: str) -> TaskAppError:
    """Return the error of a redirect to another server, or to none."""
    return TaskAppError(
        f"{url}{path} answered with a redirect that is not followed: {foreign}.",
        status=303,
        code="foreign_redirect",
        hint="The key belongs to the address that was given. If the app has moved, give its new address.",
    )


def refusal(answer: HttpResponse, url: str, path: str, key: str | None) -> TaskAppError:
    """Return the error of a response other than 200."""
    error = error_members(answer, key)
    known = error is not None and error.code == "admin_only"  # the key is valid, but has no right to this
    if (answer.status in (401, 403) and not known) or (error is not None and error.code in NO_KEY_CODES):
        what = "the key" if key else "a request without a key"
        return TaskAppError(
            f"{url} refuses {what}.",
            status=answer.status,
            code=error.code if error is not None else "unauthorised",
            hint="Give the key that the task app was started with, ENVIRONMENT_API_KEY there.",
        )
    if error is None:
        return TaskAppError(f"{url}{path} answered {answer.status}.", status=answer.status, hint=NO_TASK_APP)
    if error.boundary:
        ids = f"rollout {error.rollout_id or '-'}, error id {error.error_id or '-'}; see the server's log"
        message = f"The rollout failed at boundary {error.boundary} ({error.code}): {ended(error.message)}"
        return _error(message, f"{error.hint} ({ids})".strip(), answer, error)
    message = f"{url} answers {answer.status} ({error.code}): {ended(error.message)}"
    return _error(message, error.hint + error.field_lines, answer, error)


def not_json(answer: HttpResponse, url: str, path: str) -> TaskAppError:
    """Return the error of a 200 whose body is not JSON."""
    return TaskAppError(
        f"{url}{path} answered with something other than JSON.", status=answer.status, code="not_json", hint=NO_TASK_APP
    )


def _error(message: str, hint: str, answer: HttpResponse, error: ErrorMembers) -> TaskAppError:
    return TaskAppError(
        message,
        status=answer.status,
        code=error.code,
        boundary=error.boundary,
        rollout_id=error.rollout_id,
        hint=hint,
    )
