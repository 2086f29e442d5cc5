"""Asking a task app: with which key, and whether that address may be called at all."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from taskapp_kit.backend.addresses import TaskAppAddresses
from taskapp_kit.backend.key_box import KeyBox
from taskapp_kit.backend.records import Records
from taskapp_kit.client.task_app import TaskAppClient
from taskapp_kit.errors import ConfigError, RequestError, TaskAppError

log = logging.getLogger("taskapp_kit.backend")

NAME = "ENVIRONMENT_API_KEY"
MAX_TRIED = 8
RETRIES = 6
"""Of a rollout that broke on the way: about ten seconds, in which a task app may restart."""
REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A key that may be the task app's. told: how it is called; None for asking without a key."""

    told: str
    key: str | None = field(repr=False)


class Access:
    """Opens task apps. own_key: the backend's own ENVIRONMENT_API_KEY. box: None where sealed keys cannot be opened."""

    def __init__(self, records: Records, box: KeyBox | None, addresses: TaskAppAddresses, own_key: str | None) -> None:
        self._records = records
        self._box = box
        self.addresses = addresses
        self._own_key = own_key

    async def candidates(self, org: str, url: str) -> list[Candidate]:
        """The keys of this organisation whose name says that they open a task app, then the backend's own.

        That one goes only where this backend trusts the address. Without any key, one candidate that is none.
        """
        found: list[Candidate] = []
        for name, ciphertext in sorted(await self._records.keys(org), key=lambda item: item[0] != NAME):
            if NAME not in name or self._box is None:
                continue
            try:
                found.append(Candidate(f"{name} (uploaded)", self._box.open(ciphertext)))
            except RequestError:
                log.warning("a sealed key cannot be opened any more name=%s", name)
        if self._own_key and self.addresses.trusts(url):
            found.append(Candidate(f"{NAME} (of the backend)", self._own_key))
        return found[:MAX_TRIED] or [Candidate("none", None)]

    async def client(self, org: str, url: str) -> TaskAppClient:
        """A client with the key that the task app takes. Raises RequestError, TaskAppError: refused, unreachable."""
        await self.addresses.admit(url)
        last: TaskAppError | None = None
        for candidate in await self.candidates(org, url):
            client = TaskAppClient(url, candidate.key, retries=RETRIES)
            try:
                await client.health()
            except BaseException as error:
                await client.aclose()
                if not isinstance(error, TaskAppError) or error.status not in REFUSED:
                    raise
                last = error
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
        """What each key finds at `/health` and `/task_info`; `any_ok` when one of them finds both. Raises RequestError."""
        await self.addresses.admit(url)
        results = [await self._tried(url, candidate) for candidate in await self.candidates(org, url)]
        return {"any_ok": any(result["ok"] for result in results), "endpoint_base_url": url, "results": results}

    async def _tried(self, url: str, candidate: Candidate) -> dict[str, Any]:
        result: dict[str, Any] = {"key": candidate.told, "ok": False}
        name = "health"
        try:
            async with TaskAppClient(url, candidate.key, retries=0) as client:
                for name, ask in (("health", client.health), ("task_info", client.task_info)):
                    await ask()
                    result[name] = {"ok": True, "status": 200}
            result |= {"ok": True, "found": "The task app answers /health and /task_info.", "do": ""}
        except (TaskAppError, ConfigError) as error:
            status = error.status if isinstance(error, TaskAppError) else 0
            result[name] = {"ok": False, "status": status}
            result |= {"found": error.message, "do": error.hint}
        return result
