"""Failed requests to a backend as exceptions: one sentence with the address, what happened and what to do."""

from __future__ import annotations

from taskapp_kit.errors import BackendError, BackendUnreachable
from taskapp_kit.net.envelope import ended, error_members, sentence
from taskapp_kit.net.http import CHECK_PROXY, NO_CONNECTION, HttpResponse, NoAnswer, Trouble

NO_BACKEND = "Is that the address of a training backend?"
NO_SUCH_ROUTE = frozenset({404, 405})


def unreachable(
    lost: NoAnswer, url: str, path: str, *, may_act: bool = False, repeatable: bool = False
) -> BackendUnreachable:
    """Return the error of a request without a response.

    may_act: the backend may be acting on it. repeatable: it had an idempotency key.
    """
    if lost.kind is Trouble.REFUSED:
        return BackendUnreachable(
            f"Nothing answers at {url}.", hint="Start the backend (taskapp backend serve), or check the address."
        )
    if lost.kind is Trouble.PROXY:
        return BackendUnreachable(f"{url} {lost.why}.", hint=CHECK_PROXY)
    if lost.kind in NO_CONNECTION:
        return BackendUnreachable(f"{url} {lost.why}.", hint="Check the address.")
    if may_act and lost.sent and repeatable:
        return BackendUnreachable(
            f"{url}/{path} {lost.why}; the backend may have acted on the request.",
            hint="Check the list of jobs. A repetition with the same idempotency key creates no second job.",
        )
    if may_act and lost.sent:
        return BackendUnreachable(
            f"{url}/{path} {lost.why}; the backend may have acted on the request, so it was not sent again.",
            hint="Check the list of jobs. With an idempotency key a request can be repeated without a second job.",
        )
    return BackendUnreachable(f"{url}/{path} {lost.why}.")


def refusal(answer: HttpResponse, url: str, path: str, key: str | None) -> BackendError:
    """Return the error of a response other than 200, 201 and 202."""
    status = answer.status
    if status in (401, 403):
        what = "the key" if key else "a request without a key"
        return BackendError(
            f"{url} refuses {what}.", status=status, hint="Give the backend's key as api_key, or set SYNTH_API_KEY."
        )
    if 300 <= status < 400:
        return BackendError(
            f"{url}/{path} answered {status}: a redirect, which is not followed, because the key belongs to this address.",
            status=status,
            hint="Give the address that it redirects to, if it is yours.",
        )
    error = error_members(answer, key)
    if error is not None:
        return BackendError(
            f"{url}/{path} answers {status} ({error.code}): {ended(error.message)}",
            status=status,
            fields=error.fields,
            hint=error.hint + error.field_lines,
        )
    body = answer.json_object() or {}
    words = sentence(body.get("detail") or body.get("message") or body.get("error"), key)
    if words:
        return BackendError(f"{url}/{path} answered {status}: {ended(words)}", status=status)
    return BackendError(f"{url}/{path} answered {status}.", status=status, hint=NO_BACKEND)


def odd(url: str, path: str, what: str) -> BackendError:
    """Return the error of a good status with a body that cannot be used."""
    return BackendError(f"The answer of {url}/{path} {what}.", status=200, hint=NO_BACKEND)


def is_temporary(error: BackendError) -> bool:
    """Return whether the error may be temporary: the backend is not reachable, restarts, or is overloaded."""
    return isinstance(error, BackendUnreachable) or error.status >= 500 or error.status in (408, 429)
