"""The statements that list stored rollouts with filters and an order. They are written to use an index."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Select, or_, select, tuple_

from taskapp_kit.records.protocols import LISTED, RolloutQuery, RowOrder
from taskapp_kit.store.rows import SOURCE_COLUMNS
from taskapp_kit.store.schema import ROLLOUTS

_COLUMN_OF = {"policy": "policy_name", "boundary": "failure_boundary"}
_EQUAL = ("app", "environment", "policy", "status", "boundary", "run_id", "group_id", "key_label")
_UNINDEXED = ("environment", "policy", "status", "boundary", "reward_above", "reward_below")
"""The filters whose columns are not the first column of an index."""

NEWEST_FIRST = (ROLLOUTS.c.created_at.desc(), ROLLOUTS.c.rollout_id.desc())
QUERIED = ("rollout_id", *LISTED)
SUMMARY = select(*(ROLLOUTS.c[_COLUMN_OF.get(name, name)] for name in QUERIED)).order_by(*NEWEST_FIRST)
_ROWS = select(*(ROLLOUTS.c[name] for name in SOURCE_COLUMNS))
_ORDERS: dict[RowOrder, ColumnElement[Any]] = {
    "worst": ROLLOUTS.c.reward,
    "best": ROLLOUTS.c.reward.desc(),
    "cost": ROLLOUTS.c.cost.desc(),
    "tokens": ROLLOUTS.c.tokens.desc(),
    "seconds": ROLLOUTS.c.seconds.desc(),
    "length": ROLLOUTS.c.length.desc(),
}
_AT_EQUAL_VALUES = tuple(ROLLOUTS.c[name] for name in ("environment", "split", "seed", "created_at", "rollout_id"))


def ordered_rows(wanted: RolloutQuery, order: RowOrder) -> Select[Any]:
    """Return the statement that selects `SOURCE_COLUMNS` of the matching rows, in the given order."""
    if order == "newest":
        return matching(_ROWS.order_by(*NEWEST_FIRST), wanted, policy_is_model=True)
    column = ROLLOUTS.c["reward" if order in ("worst", "best") else order]
    sorting = (_ORDERS[order], *_AT_EQUAL_VALUES)
    # This takes two steps: sort using only columns of an index, then read only the rows that are returned.
    ids = select(ROLLOUTS.c.rollout_id).where(column.is_not(None)).order_by(*sorting)
    ids = matching(ids, replace(wanted, before=None), policy_is_model=True, scan=True)
    return _ROWS.where(ROLLOUTS.c.rollout_id.in_(ids)).order_by(*sorting)


def matching(
    statement: Select[Any], wanted: RolloutQuery, *, policy_is_model: bool = False, scan: bool = False
) -> Select[Any]:
    """Add the filters to a statement and return it.

    Args:
        statement: A selection from `ROLLOUTS`.
        wanted: The filters.
        policy_is_model: Whether `wanted.policy` may also be a model's name.
        scan: Whether the rows are sorted by a column other than the time.
    """
    statement = statement.limit(wanted.limit)
    of_few = wanted.run_id is not None or wanted.group_id is not None
    # `rollouts_listed` contains the columns of all filters. With another index, SQLite would read each row.
    scan = scan or any(getattr(wanted, name) is not None for name in _UNINDEXED)
    for name in _EQUAL:
        value = getattr(wanted, name)
        if value is None:
            continue
        column: ColumnElement[Any] = ROLLOUTS.c[_COLUMN_OF.get(name, name)]
        if name == "policy" and policy_is_model:
            statement = statement.where(or_(column == value, ROLLOUTS.c.model == value))
            continue
        if (of_few or scan) and name not in ("run_id", "group_id"):
            column = column.concat("")  # disables the column's index
        statement = statement.where(column == value)
    if wanted.reward_above is not None:
        statement = statement.where(ROLLOUTS.c.reward > wanted.reward_above)
    if wanted.reward_below is not None:
        statement = statement.where(ROLLOUTS.c.reward < wanted.reward_below)
    if wanted.before is not None:
        # Compare both columns. Otherwise rollouts with equal times at the end of a page would be skipped or repeated.
        statement = statement.where(tuple_(ROLLOUTS.c.created_at, ROLLOUTS.c.rollout_id) < tuple_(*wanted.before))
    return statement
