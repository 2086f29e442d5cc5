"""Removes old rollouts from the store while the server runs, as `TASKAPP_STORE_KEEP` specifies."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from taskapp_kit.errors import StoreError, Unavailable
from taskapp_kit.records.protocols import Clock, QueryableStore
from taskapp_kit.rollout.service import Service

log = logging.getLogger("taskapp_kit.store")

PRUNE_SECONDS = 3600.0
"""The pause between two prunings. The first pruning runs when the server starts."""
DAY_SECONDS = 86_400.0


def retention_of(service: Service, keep: str | None) -> Retention | None:
    """Return the retention for the service's store, or None if `keep` is None. Raises Unavailable if the store cannot prune."""
    if keep is None or service.store is None:
        return None
    if not isinstance(service.store, QueryableStore):
        raise Unavailable(
            "TASKAPP_STORE_KEEP is set, but this store cannot remove rollouts because it has no `prune` method.",
            hint="Unset TASKAPP_STORE_KEEP, or use one of taskapp-kit's stores.",
        )
    return Retention(service.store, service.spec.name, keep, service.clock)


class Retention:
    """Removes old rollouts of this app. keep: `30d` retains the rollouts of the last 30 days; `N` retains the newest N."""

    def __init__(self, store: QueryableStore, app: str, keep: str, clock: Clock) -> None:
        self._store = store
        self._app = app
        self._days = float(keep[:-1]) if keep.endswith("d") else None
        self._newest = None if keep.endswith("d") else int(keep)
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Prune immediately and then every hour, on the running event loop."""
        self._task = asyncio.create_task(self._hourly(), name="taskapp-store-pruning")

    async def prune(self) -> int:
        """Prune once and return the number of removed rollouts. Raises StoreError if the store fails."""
        before = None if self._days is None else self._clock.now() - self._days * DAY_SECONDS
        return await self._store.prune(self._app, before=before, keep=self._newest)

    async def close(self) -> None:
        """Stop pruning."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _hourly(self) -> None:
        while True:
            try:
                removed = await self.prune()
                if removed:
                    log.info("pruned rollouts=%d", removed)
            except StoreError as error:
                log.warning("old rollouts could not be removed: %s", error)
            except Exception:  # an error of a store plugin
                log.exception("old rollouts could not be removed")
            await asyncio.sleep(PRUNE_SECONDS)
