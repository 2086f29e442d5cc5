"""What `taskapp store` does: opens an existing store, and measures, checks or prunes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from taskapp_kit.contract.protocols import Store
from taskapp_kit.errors import ConfigError, Unavailable
from taskapp_kit.evaluate.directory import store_address
from taskapp_kit.rollout.retention import DAY_SECONDS
from taskapp_kit.store import open_store
from taskapp_kit.store.sql import SqlStore, StoreCheck
from taskapp_kit.store.usage import StoreUsage

T = TypeVar("T")


def usage(place: str) -> StoreUsage:
    """What takes space. place: a store's address, or the directory of an evaluation. Raises ConfigError, StoreError."""
    return _with_store(place, lambda store: _own(store).usage())


def check(place: str) -> StoreCheck:
    """What is damaged or missing. Raises as `usage` does."""
    return _with_store(place, lambda store: _own(store).check())


def prune(place: str, keep: tuple[int | None, int | None], app: str | None, *, dry_run: bool) -> dict[str, int]:
    """Rollouts that were removed (dry_run: would be), by app. keep: days, or a number of the newest. Raises as `usage`."""
    days, newest = keep
    which = {"before": None if days is None else time.time() - days * DAY_SECONDS, "keep": newest}

    async def pruned(store: Store) -> dict[str, int]:
        own = _own(store)
        names = await own.apps()
        if app is not None and app not in names:
            raise ConfigError(
                f"The store has no rollouts of an app {app[:80]!r}.",
                hint=f"It has those of {', '.join(names) or 'none'}.",
            )
        work: Callable[..., Awaitable[int]] = own.prunable if dry_run else own.prune
        return {name: await work(name, **which) for name in ([app] if app is not None else names)}

    return _with_store(place, pruned)


def _with_store(place: str, use: Callable[[Store], Awaitable[T]]) -> T:
    """Opens an existing store, uses it and closes it."""

    async def run() -> T:
        store = open_store(store_address(place), create=False)
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _own(store: Store) -> SqlStore:
    """The store as one of the kit's. Raises Unavailable for a plugin's."""
    if not isinstance(store, SqlStore):
        raise Unavailable("`taskapp store` reads SQLite and Postgres stores; this one is a plugin's.")
    return store
