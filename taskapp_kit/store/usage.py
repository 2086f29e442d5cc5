"""The space that a store uses, by environment and by kind of data."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Connection, func, literal, select, true

from taskapp_kit.store.database import SqlDatabase
from taskapp_kit.store.schema import BLOBS, IDEMPOTENCY_KEYS, ROLLOUTS, SCORES

_TEXTS = ("config", "policy", "scorecard", "failure", "timing", "private", "blob_hashes")
"""The JSON columns of `rollouts`. Each of the other columns uses only a few bytes."""


@dataclass(slots=True)
class EnvironmentUsage:
    """The space that the rollouts of one environment use. Sizes are in bytes as stored, so events are compressed.

    Attributes:
        events_bytes: The size of the events.
        columns_bytes: The size of the other JSON columns.
        pictures: The number of distinct images in the rollouts, including images that another environment also shows.
        pictures_bytes: The size of these images.
    """

    app: str
    environment: str
    rollouts: int
    events_bytes: int
    columns_bytes: int
    pictures: int = 0
    pictures_bytes: int = 0


@dataclass(slots=True)
class StoreUsage:
    """The space that a store uses. Sizes are in bytes.

    Attributes:
        pictures: The number of images. Each image is counted once.
        records: The number of idempotency records. Their size includes the stored answers.
        scores: The number of scores by other versions of a scorer (`taskapp rescore`).
        size_bytes: The size of the file and its write-ahead log, or of the tables with their indexes. 0 for a store in
            memory. It exceeds the sum of all kinds, because it includes indexes, numbers and free pages.
    """

    environments: list[EnvironmentUsage] = field(default_factory=list)
    pictures: int = 0
    pictures_bytes: int = 0
    records: int = 0
    records_bytes: int = 0
    scores: int = 0
    scores_bytes: int = 0
    size_bytes: int = 0

    @property
    def rollouts(self) -> int:
        """Return the number of rollouts in all environments."""
        return sum(item.rollouts for item in self.environments)

    @property
    def events_bytes(self) -> int:
        """Return the size of the events of all environments."""
        return sum(item.events_bytes for item in self.environments)

    @property
    def columns_bytes(self) -> int:
        """Return the size of the other JSON columns of all environments."""
        return sum(item.columns_bytes for item in self.environments)

    @property
    def other_bytes(self) -> int:
        """Return the part of `size_bytes` for indexes, numbers and free pages."""
        known = self.events_bytes + self.columns_bytes + self.pictures_bytes + self.records_bytes + self.scores_bytes
        return max(0, self.size_bytes - known)


def usage_of(database: SqlDatabase, connection: Connection) -> StoreUsage:
    """Measure the tables. This reads every row, but only the lengths of events and images."""

    def octets(column: ColumnElement[object]) -> ColumnElement[int]:
        return func.coalesce(func.sum(database.octets(column)), literal(0))

    place = (ROLLOUTS.c.app, ROLLOUTS.c.environment)
    columns = sum((octets(ROLLOUTS.c[name]) for name in _TEXTS[1:]), octets(ROLLOUTS.c[_TEXTS[0]]))
    rows = connection.execute(
        select(*place, func.count(), octets(ROLLOUTS.c.events), columns).group_by(*place).order_by(*place)
    )
    found = {(app, name): EnvironmentUsage(app, name, *map(int, sizes)) for app, name, *sizes in rows}
    listed = database.listed_pictures()
    shown = (
        select(*place, listed.c.value.label("sha256"))
        .select_from(ROLLOUTS)
        .join(listed, true())
        .where(ROLLOUTS.c.blob_hashes != "[]")
        .distinct()
        .subquery()
    )
    pictures = (
        select(shown.c.app, shown.c.environment, func.count(), octets(BLOBS.c.bytes))
        .join(BLOBS, BLOBS.c.sha256 == shown.c.sha256)
        .group_by(shown.c.app, shown.c.environment)
    )
    for app, name, many, size in connection.execute(pictures):
        found[app, name].pictures, found[app, name].pictures_bytes = int(many), int(size)
    usage = StoreUsage(list(found.values()), size_bytes=database.size_bytes(connection))
    many, size = connection.execute(select(func.count(), octets(BLOBS.c.bytes))).one()
    usage.pictures, usage.pictures_bytes = int(many), int(size)
    many, size = connection.execute(
        select(func.count(IDEMPOTENCY_KEYS.c.rollout_id), octets(IDEMPOTENCY_KEYS.c.answer))
    ).one()
    usage.records, usage.records_bytes = int(many), int(size)
    texts = octets(SCORES.c.scorecard) + octets(SCORES.c.failure) + octets(SCORES.c.private)
    many, size = connection.execute(select(func.count(SCORES.c.scorer), texts)).one()
    usage.scores, usage.scores_bytes = int(many), int(size)
    return usage
