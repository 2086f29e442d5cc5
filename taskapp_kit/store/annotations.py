"""Reads, writes and removes annotations: people's scores of stored rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields

from sqlalchemy import Connection, delete, except_, insert, select

from taskapp_kit.contract.protocols import Annotation
from taskapp_kit.store.schema import ANNOTATIONS, ROLLOUTS


def write_annotations(connection: Connection, annotations: Sequence[Annotation]) -> int:
    """Stores them, in place of those of the same rollout, criterion and annotator."""
    key = (ANNOTATIONS.c.rollout_id, ANNOTATIONS.c.criterion, ANNOTATIONS.c.annotator)
    for item in annotations:
        row = asdict(item)
        connection.execute(delete(ANNOTATIONS).where(*(column == row[column.name] for column in key)))
        connection.execute(insert(ANNOTATIONS).values(**row))
    return len(annotations)


def read_annotations(connection: Connection, wanted: Mapping[str, str | None]) -> list[Annotation]:
    """Those of stored rollouts that match `rollout_id`, `app` and `key_label` where they are not None, oldest first."""
    statement = select(*(ANNOTATIONS.c[item.name] for item in fields(Annotation))).join(
        ROLLOUTS, ROLLOUTS.c.rollout_id == ANNOTATIONS.c.rollout_id
    )
    for name, value in wanted.items():
        if value is not None:
            statement = statement.where(ROLLOUTS.c[name] == value)
    ordered = statement.order_by(ANNOTATIONS.c.created_at, ANNOTATIONS.c.rollout_id, ANNOTATIONS.c.criterion)
    return [Annotation(*row) for row in connection.execute(ordered)]


def prune_annotations(connection: Connection) -> int:
    """Removes the annotations of rollouts that are gone."""
    gone = except_(select(ANNOTATIONS.c.rollout_id), select(ROLLOUTS.c.rollout_id))
    return connection.execute(delete(ANNOTATIONS).where(ANNOTATIONS.c.rollout_id.in_(gone))).rowcount
