"""API key authentication of a task app: reads the key from the headers and stores its label and rights in the scope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.types import Scope

from taskapp_kit.net.auth import candidates
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import Headers
from taskapp_kit.rollout.in_flight import Caller
from taskapp_kit.serve.keys import Keys

CHALLENGE: Headers = [(b"www-authenticate", b'Bearer realm="taskapp", Basic realm="taskapp", charset="UTF-8"')]
DOCUMENTS: Final = frozenset({"/docs", "/openapi.json"})
LABEL = "taskapp_kit.key_label"
"""Scope key: the label of the API key."""
QUOTA = "taskapp_kit.key_quota"
"""Scope key: how many rollouts that label may have in flight, an int, or None for any number."""
ADMIN = "taskapp_kit.key_admin"
"""Scope key: whether the API key sees the rollouts of every label."""


def authenticator(keys: Keys) -> Callable[[Scope], RequestRefused | None]:
    """Return the check for `ApiKeyMiddleware`. It returns the refusal, or stores the key's label in the scope."""

    def authenticate(scope: Scope) -> RequestRefused | None:
        if not keys.configured():
            return RequestRefused(
                "missing_environment_api_key",
                "ENVIRONMENT_API_KEY is not configured",
                hint="Set ENVIRONMENT_API_KEY (or TASKAPP_KEYS_FILE) where the server runs, and start it again.",
            )
        try:
            holder = keys.match(candidates(scope["headers"], CHALLENGE))
        except RequestRefused as refused:
            return refused
        if holder is None:
            return RequestRefused(
                "unauthorised",
                "API key missing or invalid",
                hint="Send the key in the X-API-Key header or as Authorization: Bearer.",
                headers=CHALLENGE,
            )
        scope[LABEL], scope[QUOTA], scope[ADMIN] = holder.label, holder.max_in_flight, holder.admin
        return None

    return authenticate


def open_paths(documents: bool) -> Callable[[Scope], bool]:
    """Return a test for requests that need no key: `GET /`; with `documents` (exposure `local`) /docs, /openapi.json."""

    def is_open(scope: Scope) -> bool:
        if scope["method"] not in ("GET", "HEAD"):
            return False
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return path == "/" or (documents and path in DOCUMENTS)

    return is_open


def caller_of(scope: Scope, *, traceparent: str | None = None, tracestate: str | None = None) -> Caller:
    """Return the caller of a request that passed authentication."""
    return Caller(scope.get(LABEL), scope.get(QUOTA), traceparent, tracestate, admin=scope.get(ADMIN, False))
