"""Exceptions for failed requests to a task app. Each message names the server, what happened and what to do."""

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

    `may_run` is whether the request may have started a rollout, `repeatable` whether it had an idempotency key.
    """
    if lost.kind is Trouble.REFUSED:
        return TaskAppUnreachable(f"Nothing is listening at {url}.", hint=START_IT)
    if lost.kind is Trouble.PROXY:
        return TaskAppUnreachable(f"{url} {lost.why}.", hint=CHECK_PROXY)
    if lost.kind in NO_CONNECTION:
        return TaskAppUnreachable(f"{url} {lost.why}.", hint="Check the address.")
    if lost.kind is Trouble.FORBIDDEN:
        return TaskAppUnreachable(f"The connection to {url} was not made. {lost.why}")
    if not may_run:
        return TaskAppUnreachable(f"{url}{path} {lost.why}.")
    if repeatable:
        return TaskAppUnreachable(
            f"{url}{path} {lost.why}. The rollout may still be running there.",
            hint="Repeat it with the same idempotency key. The task app will not run a second episode.",
        )
    return TaskAppUnreachable(
        f"{url}{path} {lost.why}. The rollout may still be running there, so it was not sent again.",
        hint="Pass an idempotency key, with which a rollout can be repeated without running twice.",
    )


def not_followed(foreign: ForeignRedirect, url: str, path: str) -> TaskAppError:
    """Return the error of a redirect to another server or an invalid address."""
    return TaskAppError(
        f"{url}{path} returned a redirect that is not followed: {foreign}.",
        status=303,
        code="foreign_redirect",
        hint="The key is only sent to the configured address. If the app has moved, use its new address.",
    )


def refusal(answer: HttpResponse, url: str, path: str, key: str | None) -> TaskAppError:
    """Return the error of a response other than 200."""
    error = error_members(answer, key)
    valid_key = error is not None and error.code == "admin_only"  # the key is valid but lacks this right
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
        ids = f"rollout {error.rollout_id or '-'}, error id {error.error_id or '-'}; see the server's log"
        message = f"The rollout failed at boundary {error.boundary} ({error.code}): {ended(error.message)}"
        return _error(message, f"{error.hint} ({ids})".strip(), answer, error)
    message = f"{url} returned {answer.status} ({error.code}): {ended(error.message)}"
    return _error(message, error.hint + error.field_lines, answer, error)


def not_json(answer: HttpResponse, url: str, path: str) -> TaskAppError:
    """Return the error of a 200 whose body is not JSON."""
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
