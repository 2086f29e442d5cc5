"""Old rollouts are removed from the store while the server runs, where `TASKAPP_STORE_KEEP` says how many stay."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from taskapp_kit.contract.protocols import Clock, PrunableStore
from taskapp_kit.errors import StoreError, Unavailable
from taskapp_kit.rollout.service import Service

log = logging.getLogger("taskapp_kit.store")

PRUNE_SECONDS = 3600.0
"""Between two prunings; the first comes when the server starts."""
DAY_SECONDS = 86_400.0


def retention_of(service: Service, keep: str | None) -> Retention | None:
    """What prunes the service's store; None when everything is kept. Raises Unavailable for a store that cannot prune."""
    if keep is None or service.store is None:
        return None
    if not isinstance(service.store, PrunableStore):
        raise Unavailable(
            "TASKAPP_STORE_KEEP is set, and this store cannot remove rollouts (it has no `prune`).",
            hint="Unset it, or use a store of taskapp-kit.",
        )
    return Retention(service.store, service.spec.name, keep, service.clock)


class Retention:
    """Removes this app's older rollouts. keep: `30d` keeps those of the last 30 days, `N` the newest N."""

    def __init__(self, store: PrunableStore, app: str, keep: str, clock: Clock) -> None:
        self._store = store
        self._app = app
        self._days = float(keep[:-1]) if keep.endswith("d") else None
        self._newest = None if keep.endswith("d") else int(keep)
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Prunes now and then hourly, on the running event loop."""
        self._task = asyncio.create_task(self._hourly(), name="taskapp-store-pruning")

    async def prune(self) -> int:
        """Prunes once; how many rollouts were removed. Raises StoreError."""
        before = None if self._days is None else self._clock.now() - self._days * DAY_SECONDS
        return await self._store.prune(self._app, before=before, keep=self._newest)

    async def close(self) -> None:
        """Ends it."""
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
                log.warning("old rollouts were not removed: %s", error)
            except Exception:  # a plugin's own fault
                log.exception("old rollouts were not removed")
            await asyncio.sleep(PRUNE_SECONDS)
