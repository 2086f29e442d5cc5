"""Controls how a backend calls task apps: which addresses are allowed, and which key is sent.

Callers choose the addresses, so metadata, link-local and multicast addresses are never called. A backend that other
machines can reach does not call private or loopback addresses either, unless its operator allows the host or network.
`admit` checks an address before a job or a check begins, so that the caller gets an error. `guard` checks the IP
address of each connection, because the DNS entry may have changed since then.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

from taskapp_kit.client.task_app import TaskAppClient
from taskapp_kit.errors import ConfigError, FieldProblem, RequestError, TaskAppError, TaskAppUnreachable
from taskapp_kit.jobs.server.sealed_keys import SealedKeys
from taskapp_kit.net.addresses import NEVER, AddressPolicy, NotAnAddress, is_metadata_name, server_url
from taskapp_kit.net.redact import without_key

log = logging.getLogger("taskapp_kit.jobs.server")

URL_PATH = ("body", "data", "endpoint_base_url")
SETTING = "--allow-task-app"
MAX_CHARACTERS = 2048
RESOLVE_SECONDS = 5.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""The largest response. The engine needs only numbers from it, and many responses may arrive at the same time."""
NAME = "ENVIRONMENT_API_KEY"
MAX_TRIED = 8
RETRIES = 6
"""How often a request is retried after a broken connection.

The retries take about ten seconds, so a task app can restart.
"""
REFUSED = (401, 403)
VERIFY_SECONDS = 45.0
"""The time limit for all keys together."""


class TaskAppAddresses:
    """The rules for addresses of task apps.

    local: Whether only this machine can reach the backend. allow: Additional hosts and networks that may be called.

    Raises ConfigError if an entry of `allow` is neither a host nor a network.
    """

    def __init__(self, *, local: bool, allow: Sequence[str] = ()) -> None:
        self.local = local
        self.allow = tuple(allow)
        self._policy = AddressPolicy("local" if local else "public", allow, setting=SETTING, link_local=False)

    def read(self, url: object) -> str:
        """Return the address without a trailing slash.

        Raises RequestError if the address is missing or invalid. The message never contains the address.
        """
        try:
            if not isinstance(url, str) or not url.strip():
                raise NotAnAddress("is missing or is not a string")
            if len(url) > MAX_CHARACTERS:
                raise NotAnAddress(f"has more than {MAX_CHARACTERS} characters")
            return server_url(url)
        except NotAnAddress as wrong:
            raise RequestError(
                f"The task app's address {wrong}.",
                fields=(FieldProblem(URL_PATH, str(wrong), "task_app_address"),),
                hint="Use an address such as https://my-app.modal.run.",
            ) from None

    def trusts(self, url: str) -> bool:
        """Return whether the backend's own key may be sent to this address.

        A local backend sends the key to any task app.
        """
        return self.local or self._policy.allows(_host(url))

    async def admit(self, url: str) -> None:
        """Resolve the host and check all of its addresses. An unknown host name is accepted.

        Raises RequestError if an address is not allowed.
        """
        host = _host(url)
        kind = NEVER if is_metadata_name(host) else None
        for address in () if kind else await _resolved(host, urlsplit(url).port):
            kind = kind or self._policy.refusal(host, address)
        if kind is not None:
            raise RequestError(
                f"The task app's address resolves to {kind}, which this backend does not call.",
                fields=(FieldProblem(URL_PATH, f"resolves to {kind}", "task_app_address"),),
                code="task_app_address",
                hint="" if kind == NEVER else f"The backend's operator can allow it with {SETTING} HOST_OR_NETWORK.",
            )

    def guard(self, url: str) -> Callable[[str], str | None]:
        """Return a function that returns why an IP address must not be called, or None if it may be called."""
        host = _host(url)

        def refuse(address: str) -> str | None:
            kind = self._policy.refusal(host, address)
            return None if kind is None else f"The address resolves to {kind}, which this backend does not call."

        return refuse


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").lower().rstrip(".")


async def _resolved(host: str, port: int | None) -> list[str]:
    """Resolve the host. If it is not found in time, return an empty list: the connection then reports the error."""
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(entry[4][0]) for entry in entries]


@dataclass(frozen=True, slots=True)
class TaskAppHandover:
    """What another process needs to call a task app in the same way: the keys and the rules for addresses."""

    url: str
    key: str | None = field(repr=False)
    shown: Sequence[str] = field(repr=False)
    retries: int
    local: bool
    allow: Sequence[str]


class OpenedTaskApp(TaskAppClient):
    """A client of a task app, with one key.

    shown: All keys that were sent to the server so far, including this one. The server's responses may contain any of
    them.
    """

    def __init__(
        self, url: str, key: str | None, addresses: TaskAppAddresses, shown: Sequence[str], retries: int
    ) -> None:
        super().__init__(url, key, retries=retries, refuse=addresses.guard(url))
        self._transport.max_body_bytes = MAX_ANSWER_BYTES
        self._shown = tuple(shown)
        self._addresses = addresses

    def handover(self) -> TaskAppHandover:
        """Return the argument for `taken_over` in another process.

        It contains keys, so only pass it over a private socket.
        """
        rules = self._addresses
        return TaskAppHandover(self.url, self._key, self._shown, self.retries, rules.local, rules.allow)

    @classmethod
    def taken_over(cls, given: TaskAppHandover) -> Self:
        """Return the client that another process opened."""
        addresses = TaskAppAddresses(local=given.local, allow=given.allow)
        return cls(given.url, given.key, addresses, given.shown, given.retries)

    def elsewhere(self, url: str) -> OpenedTaskApp:
        """Return a client that sends the same key to another task app.

        Raises ConfigError if the key must not be sent to `url`.
        """
        if not self._addresses.trusts(url):
            raise ConfigError(
                f"The task app's key was not sent to {url}, because this address is not the job's task app.",
                hint=f"The backend's operator can allow it with {SETTING} HOST.",
            )
        return OpenedTaskApp(url, self._key, self._addresses, self._shown, self.retries)

    def cleaned(self, text: str) -> str:
        """Return a string from the server without parts of the keys that were sent to the server."""
        for key in self._shown:
            text = without_key(text, key)
        return text

    def cleaned_error(self, error: TaskAppError) -> TaskAppError:
        """Return the error without parts of the keys that were sent to the server."""
        return type(error)(
            self.cleaned(error.message),
            status=error.status,
            code=self.cleaned(error.code),
            boundary=error.boundary,
            rollout_id=self.cleaned(error.rollout_id),
            hint=self.cleaned(error.hint),
        )


@dataclass(frozen=True, slots=True)
class CandidateKey:
    """A key that the task app may accept. label: The key's name in results. key: The key, or None to send no key."""

    label: str
    key: str | None = field(repr=False)


class TaskAppAccess:
    """Creates clients of task apps, with keys that the task apps accept.

    Args:
        uploaded: A function that returns the name and the ciphertext of each key that an organization uploaded.
        box: Opens uploaded keys. None if PyNaCl is not installed.
        own_key: The backend's own ENVIRONMENT_API_KEY.
    """

    def __init__(
        self,
        uploaded: Callable[[str], Awaitable[Sequence[tuple[str, str]]]],
        box: SealedKeys | None,
        addresses: TaskAppAddresses,
        own_key: str | None,
    ) -> None:
        self._uploaded = uploaded
        self._box = box
        self.addresses = addresses
        self._own_key = own_key

    async def candidates(self, org: str, url: str) -> list[CandidateKey]:
        """Return the keys that this organization uploaded, followed by the backend's own key if the address is trusted.

        Without any keys, return one candidate that sends no key.
        """
        usable: list[CandidateKey] = []
        for name, ciphertext in sorted(await self._uploaded(org), key=lambda item: item[0] != NAME):
            if NAME not in name or self._box is None:
                continue
            try:
                usable.append(CandidateKey(f"{name} (uploaded)", self._box.open(ciphertext)))
            except RequestError:
                log.warning("a sealed key cannot be opened name=%s", name)
        if self._own_key and self.addresses.trusts(url):
            usable.append(CandidateKey(f"{NAME} (of the backend)", self._own_key))
        return usable[:MAX_TRIED] or [CandidateKey("none", None)]

    def _open(self, url: str, candidate: CandidateKey, shown: list[str], retries: int) -> OpenedTaskApp:
        if candidate.key:
            shown.append(candidate.key)
        return OpenedTaskApp(url, candidate.key, self.addresses, shown, retries)

    async def client(self, org: str, url: str, *, retries: int = RETRIES) -> OpenedTaskApp:
        """Return a client with the key that the task app accepts.

        Raises RequestError if the address is not allowed or every key is rejected, and TaskAppError if a request
        fails.
        """
        await self.addresses.admit(url)
        shown: list[str] = []
        last: TaskAppError | None = None
        for candidate in await self.candidates(org, url):
            client = self._open(url, candidate, shown, retries)
            try:
                await client.health()
            except BaseException as error:
                await client.aclose()
                if not isinstance(error, TaskAppError):
                    raise
                last = client.cleaned_error(error)
                if error.status not in REFUSED:
                    raise last from None
            else:
                return client
        assert last is not None, "there is at least one candidate"
        raise TaskAppError(
            "The task app rejects every key that this backend has for it.",
            status=last.status,
            code=last.code,
            hint=f"Upload the task app's {NAME} (`taskapp setup`), or set {NAME} and restart the backend.",
        ) from None

    async def verify(self, org: str, url: str) -> dict[str, Any]:
        """Return the results of `/health` and `/task_info` for each key. `any_ok`: whether both accept the same key.

        If the task app does not respond in time, the remaining keys are not tried. Raises RequestError if the address
        is not allowed.
        """
        await self.addresses.admit(url)
        results: list[dict[str, Any]] = []
        shown: list[str] = []
        until = asyncio.get_running_loop().time() + VERIFY_SECONDS
        for candidate in await self.candidates(org, url):
            result = await self._tried(url, candidate, shown, until)
            results.append(result)
            routes = [result[name] for name in ("health", "task_info") if name in result]
            if not result["ok"] and all(route["status"] == 0 for route in routes):
                break
        return {"any_ok": any(result["ok"] for result in results), "endpoint_base_url": url, "results": results}

    async def _tried(self, url: str, candidate: CandidateKey, shown: list[str], until: float) -> dict[str, Any]:
        result: dict[str, Any] = {"key": candidate.label, "ok": False}
        name = "health"
        try:
            client = self._open(url, candidate, shown, 0)
            try:
                async with asyncio.timeout_at(until):
                    for name, ask in (("health", client.health), ("task_info", client.task_info)):
                        await ask()
                        result[name] = {"ok": True, "status": 200}
            except TaskAppError as error:
                raise client.cleaned_error(error) from None
            finally:
                await client.aclose()
            result |= {"ok": True, "found": "The task app responds to /health and /task_info.", "do": ""}
        except TimeoutError:
            result[name] = {"ok": False, "status": 0}
            result |= {"found": f"The task app's /{name} did not respond within {VERIFY_SECONDS:g} s.", "do": ""}
        except (TaskAppError, ConfigError) as error:
            result[name] = {"ok": False, "status": error.status if isinstance(error, TaskAppError) else 0}
            result |= {"found": error.message, "do": error.hint}
        return result


def is_starting(error: TaskAppError) -> bool:
    """Return whether the task app, or a gateway in front of it, may still be starting."""
    return isinstance(error, TaskAppUnreachable) or error.status in (502, 503, 504)
