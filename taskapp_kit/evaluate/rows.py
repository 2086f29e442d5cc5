"""Short public fields of a task's row, by which rollouts are selected and grouped. Private fields are excluded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.errors import ConfigError, closest
from taskapp_kit.records.content import Json

LONGEST_TEXT = 100
"""The maximum length of a string. Longer strings are questions or answers, which are useless for grouping."""
LARGEST = 2**53
MOST_WORDS = 32
MOST_FIELDS = 32
ROWS_REMEMBERED = 1024
TAG, SEED = "tag", "seed"


def short_fields(row: Mapping[str, Any]) -> dict[str, Json]:
    """Return the numbers, booleans, short strings, and lists of at most MOST_WORDS short strings of a public row."""
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
    """The short fields of an app's rows, by environment, split and seed. A split of None is the first split."""

    def __init__(self, spec: AppSpec) -> None:
        self._spec = spec
        self.of = lru_cache(maxsize=ROWS_REMEMBERED)(self._of)

    def _of(self, environment: str, split: str | None, seed: int) -> dict[str, Json]:
        """Return the fields of a row. The result is empty if the environment has no rows or the seed has no row."""
        spec = self._spec.environments[environment]
        if spec.tasks is None:
            return {}
        rows = spec.tasks.rows(split or spec.split_names[0])
        return short_fields(spec.tasks.public(rows[seed])) if seed < len(rows) else {}


def chosen(row: Mapping[str, Json], difficulty: Sequence[str], tags: Sequence[str]) -> bool:
    """Return whether a row has one of these difficulties and all of these tags. An empty list matches every row."""
    return (not difficulty or str(row.get("difficulty")) in difficulty) and set(tags) <= set(tags_of(row))


def tags_of(row: Mapping[str, Json]) -> list[str]:
    """Return the row's tags. A single tag may be written without a list."""
    tags = row.get("tags")
    return [tags] if isinstance(tags, str) else list(tags) if isinstance(tags, list) else []


def groups_of(by: str, row: Mapping[str, Json], seed: int) -> list[Json]:
    """Return the groups of a rollout: the value of the field `by`, or all tags if `by` is `tag`.

    If the row has no value for `by`, return [None].
    """
    if by == SEED:
        return [seed]
    if by == TAG:
        return list(tags_of(row)) or [None]
    value = row.get(by)
    return [", ".join(value)] if isinstance(value, list) else [value]


def check_by(by: Iterable[str], rows: Iterable[Mapping[str, Json]]) -> None:
    """Raise ConfigError if a field of `--by` is in no row. For the field `seed`, no rows are read."""
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
            f"--by {name[:80]} is invalid: no row of these seeds has a short public field {field[:80]!r}.",
            hint=f"Did you mean {close!r}?" if close else f"The fields are {', '.join([*known, SEED])}.",
        )
