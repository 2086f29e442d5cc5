"""The store in Postgres: one database for any number of servers and containers."""

from __future__ import annotations

from taskapp_kit.store.postgres_database import RETRY_SECONDS, STATEMENT_SECONDS, PostgresDatabase
from taskapp_kit.store.sql import SAVE_SECONDS, SqlStore


class PostgresStore(SqlStore):
    """A `Store` in the database at `address` (`postgresql://user:password@host:port/database?sslmode=…`).

    Opening creates missing tables and blocks. statement_seconds: the limit on a statement. retry_seconds: how long to try
    to reconnect a lost connection before an error is raised. save_seconds: how long a save waits for a lock that another
    session holds. Raises ConfigError for an invalid address, StoreError when the database cannot be used.
    """

    def __init__(
        self,
        address: str,
        *,
        statement_seconds: float = STATEMENT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        save_seconds: float = SAVE_SECONDS,
    ) -> None:
        database = PostgresDatabase(address, statement_seconds=statement_seconds, retry_seconds=retry_seconds)
        super().__init__(database, save_seconds=save_seconds)
