"""A running task app, asked over HTTP: the key goes into a header, errors come back as the kit's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from taskapp_kit.errors import ConfigError, TaskappError

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0


class RemoteError(TaskappError):
    """The server refused or could not be asked. `exit_status` is 2 when the request was wrong, else 1."""

    def __init__(self, message: str, *, hint: str = "", exit_status: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.exit_status = exit_status


class Remote:
    """One server. key: sent as X-API-Key, never shown. Redirects are not followed: the key belongs to this address."""

    def __init__(self, url: str, key: str | None) -> None:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:
            raise ConfigError("The URL cannot be read.", hint="Give one such as http://127.0.0.1:8001.") from None
        if not parts.hostname or parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(
                "The URL is a server's address alone, without a user, a query or a fragment.",
                hint="Give one such as http://127.0.0.1:8001, and the key as --key or ENVIRONMENT_API_KEY.",
            )
        self.url = url.rstrip("/")
        self._key = key

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """The body of a GET. Raises RemoteError."""
        return self._ask("GET", path, query=query)

    def post(self, path: str, body: Mapping[str, Any], *, timeout_seconds: float) -> Any:
        """The body of a POST; the server has shown a sign of life before. Raises RemoteError."""
        self._ask("GET", "/", timeout_seconds=CONNECT_SECONDS)
        return self._ask("POST", path, body=body, timeout_seconds=timeout_seconds)

    def _ask(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        timeout_seconds: float = 60.0,
    ) -> Any:
        import httpx

        headers = {"X-API-Key": self._key} if self._key else {}
        timeout = httpx.Timeout(timeout_seconds, connect=CONNECT_SECONDS)
        try:
            with httpx.Client(headers=headers, timeout=timeout) as client:
                answer = client.request(verb, self.url + path, params=query, json=body)
        except httpx.ConnectError:
            raise RemoteError(
                f"Nothing answers at {self.url}.", hint="Start the server (taskapp serve APP), or check the address."
            ) from None
        except httpx.TimeoutException:
            raise RemoteError(f"{self.url}{path} did not answer within {timeout_seconds:g} s.") from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError) as error:
            raise RemoteError(f"{self.url}{path} could not be asked: {type(error).__name__}.") from None
        if answer.status_code != 200:
            raise self._refusal(path, answer)
        try:
            return answer.json()
        except ValueError:
            raise RemoteError(f"{self.url}{path} answered with something other than JSON.", hint=NO_TASK_APP) from None

    def _refusal(self, path: str, answer: httpx.Response) -> RemoteError:
        try:
            told = answer.json()["detail"]["error"]
            code, message, hint = str(told["code"]), str(told["message"]), str(told.get("hint") or "")
        except (ValueError, KeyError, TypeError):
            return RemoteError(f"{self.url}{path} answered {answer.status_code}.", hint=NO_TASK_APP)
        if answer.status_code in (401, 403):
            what = "the key" if self._key else "a request without a key"
            return RemoteError(
                f"{self.url} refuses {what}.",
                hint="Give the server's key as --key, or set ENVIRONMENT_API_KEY (a minted one is shown where the "
                "server was started).",
            )
        if told.get("boundary"):
            ids = f"rollout {told.get('rollout_id', '-')}, error id {told.get('error_id', '-')}; see the server's log"
            return RemoteError(
                f"The rollout failed at boundary {told['boundary']} ({code}): {_sentence(message)}",
                hint=f"{hint} ({ids})".strip(),
            )
        fields = "".join(f"\n  {'.'.join(map(str, item['loc']))}: {item['message']}" for item in _fields(told, message))
        return RemoteError(
            f"{self.url} answers {answer.status_code} ({code}): {_sentence(message)}",
            hint=hint + fields,
            exit_status=2 if answer.status_code == 422 else 1,
        )


NO_TASK_APP = "Is that the address of a task app?"


def _fields(told: Mapping[str, Any], message: str) -> list[Mapping[str, Any]]:
    """The wrong fields, but those whose sentence is the message itself."""
    fields = told.get("fields") or []
    return [item for item in fields if isinstance(item, Mapping) and item.get("message") != message and "loc" in item]


def _sentence(message: str) -> str:
    return message if message.endswith((".", "!", "?")) else f"{message}."
