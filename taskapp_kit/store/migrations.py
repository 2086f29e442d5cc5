"""Migrations: bring tables that an older release created up to date."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sqlalchemy import Column, Connection, Double, MetaData, String, Table, inspect, select
from sqlalchemy.types import TypeEngine

from taskapp_kit.errors import StoreError

Migration = tuple[str, Callable[[Connection], None]]
"""A name and a function. A released name never changes and is never removed."""


def applied_table(name: str, metadata: MetaData, name_type: TypeEngine[str] | None = None) -> Table:
    """The table with one row for each migration that was applied."""
    return Table(
        name,
        metadata,
        Column("name", name_type or String(), primary_key=True),
        Column("applied_at", Double, nullable=False),
    )


def apply_migrations(connection: Connection, applied: Table, what: str, migrations: Sequence[Migration]) -> list[str]:
    """Applies the migrations, oldest first, that are not in `applied`, inside the caller's transaction.

    what: the database's name in messages. Returns the names of those that it applied. Raises StoreError if a newer release
    has applied others.
    """
    if applied.name not in inspect(connection).get_table_names():
        applied.create(connection)
    known = set(connection.execute(select(applied.c.name)).scalars())
    newer = sorted(known - {name for name, _ in migrations})
    if newer:
        raise StoreError(
            f"{what} was written by a newer taskapp-kit: it has the schema change {newer[-1]!r}, and this release knows "
            f"them up to {migrations[-1][0]!r}. Nothing in it was changed.",
            hint="Upgrade taskapp-kit, or give another store.",
        )
    fresh = [(name, step) for name, step in migrations if name not in known]
    for name, step in fresh:
        step(connection)
        connection.execute(applied.insert().values(name=name, applied_at=time.time()))
    return [name for name, _ in fresh]
