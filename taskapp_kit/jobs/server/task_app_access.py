"""Opens task apps: chooses the key, and checks that the address may be called."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from taskapp_kit.errors import ConfigError, RequestError, TaskAppError, TaskAppUnreachable
from taskapp_kit.jobs.server.opened_task_app import OpenedTaskApp
from taskapp_kit.jobs.server.sealed_keys import SealedKeys
from taskapp_kit.jobs.server.store import JobStore
from taskapp_kit.jobs.server.task_app_addresses import TaskAppAddresses

log = logging.getLogger("taskapp_kit.jobs.server")

NAME = "ENVIRONMENT_API_KEY"
MAX_TRIED = 8
RETRIES = 6
"""Of a rollout whose connection broke: about ten seconds, in which a task app may restart."""
REFUSED = (401, 403)
VERIFY_SECONDS = 45.0
"""Time limit for all keys together."""


@dataclass(frozen=True, slots=True)
class CandidateKey:
    """A key that the task app may accept. label: its name in results. key: None sends no key."""

    label: str
    key: str | None = field(repr=False)


class TaskAppAccess:
    """Opens task apps. own_key: the backend's own ENVIRONMENT_API_KEY. box: None where sealed keys cannot be opened."""

    def __init__(
        self, records: JobStore, box: SealedKeys | None, addresses: TaskAppAddresses, own_key: str | None
    ) -> None:
        self._records = records
        self._box = box
        self.addresses = addresses
        self._own_key = own_key

    async def candidates(self, org: str, url: str) -> list[CandidateKey]:
        """Return the keys of this organisation with a task app key's name, then the backend's own.

        The latter only where this backend trusts the address. Without any key: one candidate without a key.
        """
        found: list[CandidateKey] = []
        for name, ciphertext in sorted(await self._records.keys(org), key=lambda item: item[0] != NAME):
            if NAME not in name or self._box is None:
                continue
            try:
                found.append(CandidateKey(f"{name} (uploaded)", self._box.open(ciphertext)))
            except RequestError:
                log.warning("a sealed key cannot be opened name=%s", name)
        if self._own_key and self.addresses.trusts(url):
            found.append(CandidateKey(f"{NAME} (of the backend)", self._own_key))
        return found[:MAX_TRIED] or [CandidateKey("none", None)]

    def _open(self, url: str, candidate: CandidateKey, shown: list[str], retries: int) -> OpenedTaskApp:
        if candidate.key:
            shown.append(candidate.key)
        return OpenedTaskApp(url, candidate.key, self.addresses, shown, retries)

    async def client(self, org: str, url: str, *, retries: int = RETRIES) -> OpenedTaskApp:
        """Return a client with the key that the task app accepts. Raises RequestError, TaskAppError."""
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
            "The task app refuses every key that this backend has for it.",
            status=last.status,
            code=last.code,
            hint=f"Upload its {NAME} (taskapp setup), or start the backend with it.",
        ) from None

    async def verify(self, org: str, url: str) -> dict[str, Any]:
        """Return the responses of `/health` and `/task_info` to each key; `any_ok` when one gets both. Raises RequestError.

        When the task app does not answer in time, the other keys are not tried.
        """
        await self.addresses.admit(url)
        results: list[dict[str, Any]] = []
        shown: list[str] = []
        until = asyncio.get_running_loop().time() + VERIFY_SECONDS
        for candidate in await self.candidates(org, url):
            found = await self._tried(url, candidate, shown, until)
            results.append(found)
            if not found["ok"] and all(found[name]["status"] == 0 for name in ("health", "task_info") if name in found):
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
            result |= {"ok": True, "found": "The task app answers /health and /task_info.", "do": ""}
        except TimeoutError:
            result[name] = {"ok": False, "status": 0}
            result |= {"found": f"The task app's /{name} did not answer within {VERIFY_SECONDS:g} s.", "do": ""}
        except (TaskAppError, ConfigError) as error:
            result[name] = {"ok": False, "status": error.status if isinstance(error, TaskAppError) else 0}
            result |= {"found": error.message, "do": error.hint}
        return result


def is_starting(error: TaskAppError) -> bool:
    """Return whether the task app, or a gateway in front of it, may still be starting."""
    return isinstance(error, TaskAppUnreachable) or error.status in (502, 503, 504)
