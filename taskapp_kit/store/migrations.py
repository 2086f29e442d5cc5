"""Migrations, which upgrade the tables of an older release."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sqlalchemy import Column, Connection, Double, MetaData, String, Table, inspect, select
from sqlalchemy.types import TypeEngine

from taskapp_kit.errors import StoreError

Migration = tuple[str, Callable[[Connection], None]]
"""A name and a function. Names begin with a growing number. A released name never changes and is never removed."""


def applied_table(name: str, metadata: MetaData, name_type: TypeEngine[str] | None = None) -> Table:
    """Return the table with one row for each applied migration."""
    return Table(
        name,
        metadata,
        Column("name", name_type or String(), primary_key=True),
        Column("applied_at", Double, nullable=False),
    )


def apply_migrations(
    connection: Connection, applied: Table, place: str, oldest: str, migrations: Sequence[Migration]
) -> list[str]:
    """Create the tables of `applied.metadata` in a new database; apply missing migrations to an existing one.

    Runs inside the caller's transaction and returns the names that it recorded. place: the database's name in messages.
    oldest: the schema change that a database must have; `migrations` follow it, oldest first. Raises StoreError for a
    database of a newer release, or from before `oldest`.
    """
    newest = migrations[-1][0] if migrations else oldest
    if applied.name not in inspect(connection).get_table_names():
        # A new database gets the current tables; the migrations are for older databases.
        applied.metadata.create_all(connection)
        missing = [oldest, *(name for name, _ in migrations)]
    else:
        present = set(connection.execute(select(applied.c.name)).scalars())
        # Names begin with growing numbers, so the greatest is the newest.
        last = max(present, default="")
        if last > newest:
            raise StoreError(
                f"{place} was written by a newer taskapp-kit: it has the schema change {last!r}, but this release only "
                f"supports changes up to {newest!r}. Nothing in it was changed.",
                hint="Upgrade taskapp-kit, or use another store.",
            )
        if oldest not in present:
            raise StoreError(
                f"{place} was written by a taskapp-kit from before {oldest!r}: its newest schema change is {last!r}. "
                "Nothing in it was changed.",
                hint="Export its rollouts with the release that wrote them, or use another store.",
            )
        steps = [(name, step) for name, step in migrations if name not in present]
        for _, step in steps:
            step(connection)
        missing = [name for name, _ in steps]
    if missing:
        now = time.time()
        connection.execute(applied.insert(), [{"name": name, "applied_at": now} for name in missing])
    return missing
