"""Later scores of stored rollouts, by other versions of the scorer (`rollout_scores`) and by people (`annotations`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import orjson
from sqlalchemy import Connection, delete, except_, func, insert, select

from taskapp_kit.errors import StoreRefusal
from taskapp_kit.records.protocols import Annotation, ScorerVersion, StoredScores
from taskapp_kit.store.rows import Inexact, exact_float, exact_json, exact_text, unreadable
from taskapp_kit.store.schema import ANNOTATIONS, ROLLOUTS, SCORES

_NAMES = tuple(item.name for item in fields(StoredScores))
_TEXTS = ("rollout_id", "scorer", "status", "app_version", "spec_hash", "kit_version")
_NUMBERS = ("reward", "outcome_score", "events_score", "cost")
_OBJECTS = ("scorecard", "failure", "private")
_LISTED = [SCORES.c[name] for name in _NAMES if name != "private"]


def scores_values(scores: StoredScores) -> dict[str, Any]:
    """Return the values of a row by column. Raises StoreRefusal if a value cannot be stored exactly."""
    try:
        objects = {name: getattr(scores, name) for name in _OBJECTS}
        return {
            **{name: exact_text(getattr(scores, name), name, optional=False) for name in _TEXTS},
            **{name: exact_float(getattr(scores, name), name, optional=False) for name in ("created_at", "seconds")},
            **{name: exact_float(getattr(scores, name), name, optional=True) for name in _NUMBERS},
            **{name: None if item is None else exact_json(item, name).decode() for name, item in objects.items()},
        }
    except Inexact as fault:
        raise StoreRefusal(f"The scores of rollout {scores.rollout_id!r} were not stored: {fault}.") from None


def write_scores(connection: Connection, rows: Sequence[dict[str, Any]]) -> int:
    """Write rows and return their number. A row replaces an earlier failure of the same rollout and scorer.

    Raises StoreRefusal if the scorer has already scored one of the rollouts.
    """
    for row in rows:
        same = (SCORES.c.rollout_id == row["rollout_id"]) & (SCORES.c.scorer == row["scorer"])
        connection.execute(delete(SCORES).where(same & SCORES.c.scorecard.is_(None)))
        if connection.execute(select(SCORES.c.rollout_id).where(same)).first() is not None:
            raise StoreRefusal(
                f"Rollout {row['rollout_id']!r} already has scores of version {row['scorer']!r}, which cannot be replaced.",
                hint="Use a different version for the new scores.",
            )
        connection.execute(insert(SCORES).values(**row))
    return len(rows)


def read_scores(connection: Connection, scorer: str) -> dict[str, StoredScores]:
    """Return the scores of a version by rollout id, without the private column. Raises StoreError if they cannot be read."""
    rows = connection.execute(select(*_LISTED).where(SCORES.c.scorer == scorer))
    return {row.rollout_id: _scores(dict(row._mapping)) for row in rows}


def read_one(connection: Connection, rollout_id: str, scorer: str) -> StoredScores | None:
    """Return the scores of one rollout, or None if the version has not scored it. Raises StoreError if they cannot be read."""
    statement = select(SCORES).where(SCORES.c.rollout_id == rollout_id, SCORES.c.scorer == scorer)
    row = connection.execute(statement).first()
    return None if row is None else _scores(dict(row._mapping))


def read_scorers(connection: Connection) -> list[ScorerVersion]:
    """Return the scorer versions that have scores, newest first."""
    newest = func.max(SCORES.c.created_at)
    statement = select(SCORES.c.scorer, func.count(), newest).group_by(SCORES.c.scorer)
    return [ScorerVersion(*row) for row in connection.execute(statement.order_by(newest.desc(), SCORES.c.scorer))]


def _scores(row: dict[str, Any]) -> StoredScores:
    try:
        for name in _OBJECTS:
            text = row.get(name)
            row[name] = None if text is None else orjson.loads(text)
        row["private"] = row["private"] or {}
        return StoredScores(**row)
    except (ValueError, TypeError) as fault:
        raise unreadable(f"The scores of rollout {row['rollout_id']!r}", fault) from fault


def write_annotations(connection: Connection, annotations: Sequence[Annotation]) -> int:
    """Store annotations and return their number.

    An annotation replaces an earlier annotation of the same rollout, criterion and annotator.
    """
    key = (ANNOTATIONS.c.rollout_id, ANNOTATIONS.c.criterion, ANNOTATIONS.c.annotator)
    for item in annotations:
        row = asdict(item)
        connection.execute(delete(ANNOTATIONS).where(*(column == row[column.name] for column in key)))
        connection.execute(insert(ANNOTATIONS).values(**row))
    return len(annotations)


def read_annotations(connection: Connection, wanted: Mapping[str, str | None]) -> list[Annotation]:
    """Return the annotations of matching rollouts, oldest first.

    wanted: The filters `rollout_id`, `app` and `key_label`. A filter that is None matches all rollouts.
    """
    statement = select(*(ANNOTATIONS.c[item.name] for item in fields(Annotation))).join(
        ROLLOUTS, ROLLOUTS.c.rollout_id == ANNOTATIONS.c.rollout_id
    )
    for name, value in wanted.items():
        if value is not None:
            statement = statement.where(ROLLOUTS.c[name] == value)
    ordered = statement.order_by(ANNOTATIONS.c.created_at, ANNOTATIONS.c.rollout_id, ANNOTATIONS.c.criterion)
    return [Annotation(*row) for row in connection.execute(ordered)]


def prune_scores(connection: Connection) -> int:
    """Remove the scores and annotations of removed rollouts, and return the number of removed rows."""
    removed = 0
    for table in (SCORES, ANNOTATIONS):
        gone = except_(select(table.c.rollout_id), select(ROLLOUTS.c.rollout_id))
        removed += connection.execute(delete(table).where(table.c.rollout_id.in_(gone))).rowcount
    return removed
