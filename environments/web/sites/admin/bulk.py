"""`admin/bulk`: apply an action to exactly the rows that satisfy several conditions."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping

from ...view import Element, View, say
from ..kind import Action, Kind, Level, Problem
from . import walk
from .conditions import Drawn, draw
from .data import make_books
from .site import AdminSite
from .tables import TABLES, BulkAction

CONDITIONS: dict[Level, int] = {"easy": 1, "medium": 2, "hard": 3}
MOST: dict[Level, int] = {"easy": 4, "medium": 5, "hard": 7}
ON_THE_LIST: Mapping[str, tuple[str, ...]] = {
    "machines": ("depot", "type", "dear", "cheap", "worn"),
    "contracts": ("customer", "large", "small", "early"),
}
"""Conditions in addition to the state, which is always a condition on the medium and hard levels."""


def make(random_: random.Random, level: Level, feasible: bool) -> Problem:
    """Every row that is meant is changed by the action."""
    assert feasible
    name = random_.choice(("machines", "contracts"))
    table = TABLES[name]
    action = random_.choice(table.actions)
    while True:
        books = make_books(random_, level)
        only = tuple(key for key in ON_THE_LIST[name] if level != "easy" or key != "worn")
        if level != "easy" or name == "contracts":
            only = ("state", *only)
        drawn = draw(random_, books, name, CONDITIONS[level], most=MOST[level], least=2, only=only)
        if drawn and _suits(drawn, action):
            break
    site = AdminSite(books)
    expected = copy.deepcopy(site.record())
    for row in drawn.rows:
        expected[name][row["id"]][action.key] = action.value
    return Problem(
        goal=f'Do "{action.name}" for all {table.name} {drawn.words}, and for no others.',
        site=site,
        expected=expected,
        gold=_gold(drawn, action),
    )


def _suits(drawn: Drawn, action: BulkAction) -> bool:
    shown = [str(row[action.shown_in]) for row in drawn.rows]
    return action.shown not in shown and not (
        action.not_ended and "Ended" in shown + [row["state"] for row in drawn.rows]
    )


def _gold(drawn: Drawn, action: BulkAction) -> Callable[[View], Action]:
    key = TABLES[drawn.table].columns[0].key
    names = [str(row[key]) for row in drawn.rows]

    def gold(view: View) -> Action:
        if moving := walk.to_list(view, drawn.table, drawn.conditions):
            return moving
        rows = {name: row for name in names if (row := walk.row_of(view, name))}
        left = [name for name, row in rows.items() if not _shows(view, row, action)]
        if not left:
            return walk.next_page(view) or say("Done.")
        for name in left:
            if not view.checked("checkbox", f"Select {name}"):
                return view.click("checkbox", f"Select {name}")
        if view.selected("Selected rows") != action.name:
            return view.select("Selected rows", action.name)
        return view.click("button", "Apply")

    return gold


def _shows(view: View, row: Element, action: BulkAction) -> bool:
    return any(action.shown in (cell.name, cell.value) for cell in view.all("cell", inside=row))


BULK = Kind("admin/bulk", "constraints", make)
