"""The backend's files: the database, the private key, and a lock that keeps other backends from using the database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection

from taskapp_kit.errors import ConfigError, KitError, StoreError
from taskapp_kit.store.sqlite import Database, explain
from taskapp_kit.system.private_files import lock, open_private

T = TypeVar("T")

BUSY_SECONDS = 5.0
KNOWN = "sqlite:///PATH, a bare PATH, memory, none"


def store_path(url: str) -> Path | None:
    """Return the SQLite file of an address, or None for `memory` and `none`.

    Raises ConfigError for other addresses. Its message never contains the address, which may include a password.
    """
    url = url.strip()
    if not url:
        raise ConfigError("The address of the store is empty.", hint=f"Use one of: {KNOWN}.")
    if url.lower() in ("none", "memory", ":memory:"):
        return None
    scheme, separator, rest = url.partition("://")
    if not separator:
        return Path(url).expanduser()
    if scheme.lower() != "sqlite":
        raise ConfigError("The backend can store jobs in a SQLite file only.", hint=f"Use one of: {KNOWN}.")
    if rest in ("", "/", "/:memory:"):
        return None
    if not rest.startswith("/") or "?" in rest:
        raise ConfigError(
            "The store's SQLite address needs three slashes before a relative path, four before an absolute path, and no '?'.",
            hint="Use, for example, sqlite:///.taskapp/backend.db, or only the path.",
        )
    return Path(rest[1:]).expanduser()


def key_path(store: Path) -> Path:
    """Return the path of the private key that belongs to this store."""
    return store.with_name(store.name + ".key")


class JobDatabase:
    """An open database with an exclusive lock. path: The SQLite file, or None for a database in memory.

    Raises StoreError if the database cannot be opened, or if another backend uses it, because both backends would run
    the same jobs. The lock is released when the process ends, even if it is killed. Writes and reads run on separate
    threads, so that many reads do not delay the jobs.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = None if path is None else path.resolve()
        self._lock = -1
        self.database = Database(self.path, BUSY_SECONDS)  # also creates the directories
        try:
            if self.path is not None:
                self._lock = _locked(self.path)
        except BaseException:
            self.database.close()
            raise
        self._threads = [ThreadPoolExecutor(1, f"taskapp-backend-{name}") for name in ("reader", "writer")]
        self._closed = False

    async def transact(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        """Run `work` in a transaction, which completes even if the caller is cancelled.

        Raises the errors of `transact_now`.
        """
        if self._closed:
            raise StoreError("The backend's store is closed.", hint="Start the backend again.")
        loop = asyncio.get_running_loop()
        return await asyncio.shield(
            loop.run_in_executor(self._threads[writes], lambda: self.transact_now(work, writes=writes))
        )

    def transact_now(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        """Run `work` in a transaction on this thread.

        If `work` raises a KitError, roll back and raise the same exception. For other failures, raise StoreError.
        """
        database = self.database
        try:
            database.same_file()
            if not writes:
                with database.turn, database.readers.begin() as connection:
                    return work(connection)
            with database.writing, database.turn, database.writer.begin() as connection:
                return work(connection)
        except KitError:
            raise
        except Exception as fault:
            raise explain(fault, database.place, "write" if writes else "read") from fault

    def close(self) -> None:
        """Finish waiting writes, close the database and release its lock. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for thread in self._threads:
            thread.shutdown()
        self.database.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked(store: Path) -> int:
    try:
        descriptor = open_private(store.with_name(store.name + ".lock"))
    except OSError as fault:
        raise explain(fault, str(store), "open") from None
    try:
        lock(descriptor)
    except OSError:
        os.close(descriptor)
        raise StoreError(
            f"Another backend is using the job store {store}.",
            hint="Stop that backend, or choose another --store for this one.",
        ) from None
    return descriptor
