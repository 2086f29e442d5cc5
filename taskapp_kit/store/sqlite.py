"""The store on SQLite: a file in WAL mode with synchronous=FULL, or a database in memory."""

from __future__ import annotations

from pathlib import Path

from taskapp_kit.contract.protocols import Clock
from taskapp_kit.store.idempotency_sql import SqlIdempotencyStore
from taskapp_kit.store.sql import SAVE_SECONDS, SqlStore, StoreCheck
from taskapp_kit.store.sqlite_file import Database

__all__ = ["SqliteStore", "StoreCheck"]


class SqliteStore(SqlStore):
    """A `Store` in the file `path`, or in memory when `path` is None. Opening creates what is not there; blocks.

    `busy_timeout_seconds`: how long opening, and writing idempotency records, wait for another process that writes to the
    same file.
    `save_seconds`: how long a save does.
    Closing moves the write-ahead log into the file. Raises StoreError when the place cannot be used.
    """

    def __init__(
        self, path: Path | None, *, busy_timeout_seconds: float = 10.0, save_seconds: float = SAVE_SECONDS
    ) -> None:
        self._in_memory = path is None
        super().__init__(Database(path, busy_timeout_seconds), save_seconds=save_seconds)

    def coordinator(self, clock: Clock) -> SqlIdempotencyStore | None:
        """Idempotency records in the same file, each call an owner of its own; None in memory. Close it before the store."""
        return None if self._in_memory else super().coordinator(clock)
