"""Short public fields of a task's row: what rollouts are chosen and grouped by. Private fields are never among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.errors import ConfigError, closest
from taskapp_kit.records.content import Json

LONGEST_TEXT = 100
"""A longer text is a question or an answer, not something to group by."""
LARGEST = 2**53
MOST_WORDS = 32
MOST_FIELDS = 32
ROWS_REMEMBERED = 1024
TAG, SEED = "tag", "seed"


def short_fields(row: Mapping[str, Any]) -> dict[str, Json]:
    """The fields of a public row that are numbers, yes or no, short texts, or lists of at most MOST_WORDS short texts."""
    found: dict[str, Json] = {}
    for name, value in row.items():
        if not _is_word(name):
            continue
        if _is_short(value) or (isinstance(value, list) and len(value) <= MOST_WORDS and all(map(_is_word, value))):
            found[name] = value
        if len(found) == MOST_FIELDS:
            break
    return found


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT and value.isprintable()


def _is_short(value: Any) -> bool:
    return _is_word(value) or (isinstance(value, bool | int | float) and abs(value) < LARGEST)


class RowFields:
    """The fields of an app's rows, by environment, split (None: the first) and seed."""

    def __init__(self, spec: AppSpec) -> None:
        self._spec = spec
        self.of = lru_cache(maxsize=ROWS_REMEMBERED)(self._of)

    def _of(self, environment: str, split: str | None, seed: int) -> dict[str, Json]:
        """Empty for an environment without rows, and for a seed that no row has."""
        spec = self._spec.environments[environment]
        if spec.tasks is None:
            return {}
        rows = spec.tasks.rows(split or spec.split_names[0])
        return short_fields(spec.tasks.public(rows[seed])) if seed < len(rows) else {}


def chosen(row: Mapping[str, Json], difficulty: Sequence[str], tags: Sequence[str]) -> bool:
    """Whether a row has one of these difficulties and all of these tags; an empty list asks for nothing."""
    return (not difficulty or str(row.get("difficulty")) in difficulty) and set(tags) <= set(tags_of(row))


def tags_of(row: Mapping[str, Json]) -> list[str]:
    """The row's tags; a single one may be written without a list."""
    tags = row.get("tags")
    return [tags] if isinstance(tags, str) else list(tags) if isinstance(tags, list) else []


def groups_of(by: str, row: Mapping[str, Json], seed: int) -> list[Json]:
    """The values of the groups to which a rollout belongs: one, but for `tag` one for each tag; [None] without any."""
    if by == SEED:
        return [seed]
    if by == TAG:
        return list(tags_of(row)) or [None]
    value = row.get(by)
    return [", ".join(value)] if isinstance(value, list) else [value]


def check_by(by: Iterable[str], rows: Iterable[Mapping[str, Json]]) -> None:
    """Raises ConfigError for a `--by` that no row has; nothing is read for `seed`."""
    missing = {"tags" if name == TAG else name: name for name in by if name != SEED}
    known: dict[str, None] = {}
    for row in rows if missing else ():
        known |= dict.fromkeys(row)
        missing = {field: name for field, name in missing.items() if field not in row}
        if not missing:
            return
    for field, name in missing.items():
        close = closest(field, known)
        raise ConfigError(
            f"--by {name[:80]}: no row of these seeds has a short public field {field[:80]!r}.",
            hint=f"Did you mean {close!r}?" if close else f"There are {', '.join([*known, SEED])}.",
        )
