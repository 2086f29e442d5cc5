"""Migrations, which upgrade tables that an older release created."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sqlalchemy import Column, Connection, Double, MetaData, String, Table, inspect, select
from sqlalchemy.types import TypeEngine

from taskapp_kit.errors import StoreError

Migration = tuple[str, Callable[[Connection], None]]
"""The name and the function of a migration. Names begin with increasing numbers. Released names never change."""


def applied_table(name: str, metadata: MetaData, name_type: TypeEngine[str] | None = None) -> Table:
    """Return the table that contains one row for each applied migration."""
    return Table(
        name,
        metadata,
        Column("name", name_type or String(), primary_key=True),
        Column("applied_at", Double, nullable=False),
    )


def apply_migrations(
    connection: Connection, applied: Table, place: str, oldest: str, migrations: Sequence[Migration]
) -> list[str]:
    """Create the tables of `applied.metadata` in a new database, or apply missing migrations to an existing database.

    Runs inside the caller's transaction.

    Args:
        connection: The connection with the transaction.
        applied: The table of applied migrations.
        place: The database's name in messages.
        oldest: The schema change that an existing database must have.
        migrations: The migrations after `oldest`, oldest first.

    Returns:
        The names that were added to `applied`.

    Raises:
        StoreError: A newer release wrote the database, or its schema is older than `oldest`.
    """
    newest = migrations[-1][0] if migrations else oldest
    if applied.name not in inspect(connection).get_table_names():
        # A new database gets the current tables. Migrations are only for older databases.
        applied.metadata.create_all(connection)
        missing = [oldest, *(name for name, _ in migrations)]
    else:
        present = set(connection.execute(select(applied.c.name)).scalars())
        # Names begin with increasing numbers, so the greatest name is the newest.
        last = max(present, default="")
        if last > newest:
            raise StoreError(
                f"The store {place} is too new: its newest schema change is {last!r}, and this release supports only changes "
                f"up to {newest!r}. The store was not changed.",
                hint="Upgrade taskapp-kit, or use another store.",
            )
        if oldest not in present:
            raise StoreError(
                f"The store {place} is too old: its newest schema change is {last!r}, and {oldest!r} is required. "
                "The store was not changed.",
                hint="Export the rollouts with the release that wrote the store, or use another store.",
            )
        steps = [(name, step) for name, step in migrations if name not in present]
        for _, step in steps:
            step(connection)
        missing = [name for name, _ in steps]
    if missing:
        now = time.time()
        connection.execute(applied.insert(), [{"name": name, "applied_at": now} for name in missing])
    return missing
