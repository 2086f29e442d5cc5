"""Exceptions for failed requests to a task app. Each message states the server, what happened and what to do."""

from __future__ import annotations

from taskapp_kit.errors import TaskAppError, TaskAppUnreachable
from taskapp_kit.net.envelope import ErrorMembers, ended, error_members
from taskapp_kit.net.http import CHECK_PROXY, NO_CONNECTION, HttpResponse, NoAnswer, Trouble
from taskapp_kit.net.retry import ForeignRedirect

NO_TASK_APP = "Check whether this is the address of a task app."
START_IT = "Start the server (taskapp serve APP), or check the address."
NO_KEY_CODES = frozenset({"unauthorised", "unauthorized"})


def unreachable(
    lost: NoAnswer, url: str, path: str, *, may_run: bool = False, repeatable: bool = False
) -> TaskAppUnreachable:
    """Return the error for a request that got no response.

    Args:
        lost: Why no response arrived.
        url: The task app's address.
        path: The path of the request.
        may_run: Whether the request may have started a rollout.
        repeatable: Whether the request had an idempotency key.
    """
    if lost.kind is Trouble.REFUSED:
        return TaskAppUnreachable(f"Nothing is listening at {url}.", hint=START_IT)
    if lost.kind is Trouble.PROXY:
        return TaskAppUnreachable(f"{url} {lost.why}.", hint=CHECK_PROXY)
    if lost.kind in NO_CONNECTION:
        return TaskAppUnreachable(f"{url} {lost.why}.", hint="Check the address.")
    if lost.kind is Trouble.FORBIDDEN:
        return TaskAppUnreachable(f"No connection to {url} was opened. {lost.why}")
    if not may_run:
        return TaskAppUnreachable(f"{url}{path} {lost.why}.")
    if repeatable:
        return TaskAppUnreachable(
            f"{url}{path} {lost.why}. The rollout may still be running there.",
            hint="Send the request again with the same idempotency key. The task app will not run a second episode.",
        )
    return TaskAppUnreachable(
        f"{url}{path} {lost.why}. The request was not sent again, because the rollout may still be running there.",
        hint="To repeat requests without running a second episode, pass an idempotency key.",
    )


def not_followed(foreign: ForeignRedirect, url: str, path: str) -> TaskAppError:
    """Return the error for a redirect to another server or to an invalid address."""
    return TaskAppError(
        f"{url}{path} returned a redirect that was not followed: {foreign}.",
        status=303,
        code="foreign_redirect",
        hint="The key is only sent to the configured address. If the task app has moved, configure its new address.",
    )


def refusal(answer: HttpResponse, url: str, path: str, key: str | None) -> TaskAppError:
    """Return the error for a response whose status is not 200."""
    error = error_members(answer, key)
    valid_key = error is not None and error.code == "admin_only"  # the key is valid but does not permit this request
    if (answer.status in (401, 403) and not valid_key) or (error is not None and error.code in NO_KEY_CODES):
        what = "the key" if key else "a request without a key"
        return TaskAppError(
            f"{url} rejects {what}.",
            status=answer.status,
            code=error.code if error is not None else "unauthorised",
            hint="Use the ENVIRONMENT_API_KEY that the task app was started with.",
        )
    if error is None:
        return TaskAppError(f"{url}{path} returned {answer.status}.", status=answer.status, hint=NO_TASK_APP)
    if error.boundary:
        ids = f"rollout {error.rollout_id or '-'}, error id {error.error_id or '-'} in the server's log"
        message = f"The rollout failed at boundary {error.boundary} ({error.code}): {ended(error.message)}"
        return _error(message, f"{error.hint} ({ids})".strip(), answer, error)
    message = f"{url} returned {answer.status} ({error.code}): {ended(error.message)}"
    return _error(message, error.hint + error.field_lines, answer, error)


def not_json(answer: HttpResponse, url: str, path: str) -> TaskAppError:
    """Return the error for a 200 response whose body is not JSON."""
    return TaskAppError(f"{url}{path} did not return JSON.", status=answer.status, code="not_json", hint=NO_TASK_APP)


def _error(message: str, hint: str, answer: HttpResponse, error: ErrorMembers) -> TaskAppError:
    return TaskAppError(
        message,
        status=answer.status,
        code=error.code,
        boundary=error.boundary,
        rollout_id=error.rollout_id,
        hint=hint,
    )
