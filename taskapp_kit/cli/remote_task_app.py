"""A running task app that a command sends requests to: the client's errors in the words of the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

from taskapp_kit.client import SyncTaskAppClient
from taskapp_kit.errors import KitError, TaskAppError

SIGN_OF_LIFE_SECONDS = 10.0
KEY_HINT = (
    "Give the server's key as --key, or set ENVIRONMENT_API_KEY (a minted one is shown where the server was started)."
)
NO_KEY_CODES = ("unauthorised", "unauthorized")

Result = TypeVar("Result")


class RemoteError(KitError):
    """The server refused or could not be asked. `exit_status` is 2 when the request was wrong, else 1."""

    def __init__(self, message: str, *, hint: str = "", exit_status: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.exit_status = exit_status


class Remote:
    """One server. key: sent as X-API-Key to this address only, never shown. Raises ConfigError for the address."""

    def __init__(self, url: str, key: str | None) -> None:
        self._client: SyncTaskAppClient = SyncTaskAppClient(url, key)
        self.url = self._client.url

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """The body of a GET. Raises RemoteError."""
        return _asked(lambda: self._client.get(path + (f"?{urlencode(query)}" if query else "")))

    def rollout(self, body: Mapping[str, Any], *, timeout_seconds: float) -> dict[str, Any]:
        """The answer of `POST /rollout`, also where a gateway makes its caller wait in a chain of redirects.

        The server has shown a sign of life before. Raises RemoteError, JobTimeout.
        """
        _asked(lambda: self._client.get("/", retries=0, seconds=SIGN_OF_LIFE_SECONDS))
        return _asked(lambda: self._client.rollout(body, timeout_seconds=timeout_seconds))


def _asked(ask: Callable[[], Result]) -> Result:
    try:
        return ask()
    except TaskAppError as error:
        refused = error.status in (401, 403) or error.code in NO_KEY_CODES
        raise RemoteError(
            error.message, hint=KEY_HINT if refused else error.hint, exit_status=2 if error.status == 422 else 1
        ) from None
