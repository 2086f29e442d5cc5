"""`admin/edit`: change fields of the one record that is described. Infeasible if no record matches, or a field is locked."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from typing import cast

from ...view import View, give_up, say
from ..kind import Action, Kind, Level, Problem
from ..site import Json
from . import walk
from .conditions import Drawn, draw
from .data import GROUPS, Books, TableName, make_books
from .fields import Field, field_of
from .names import people, word
from .site import AdminSite
from .tables import TABLES, Cells

PROPERTIES: Mapping[Level, Mapping[TableName, tuple[str, ...]]] = {
    "easy": {
        "machines": ("depot", "state", "type"),
        "contracts": ("customer", "state"),
        "customers": ("town", "group"),
    },
    "medium": {
        "machines": ("depot", "state", "type", "worn"),
        "contracts": ("customer", "state", "machine", "large"),
        "customers": ("town", "group", "address"),
    },
    "hard": {
        "machines": ("depot", "state", "type", "worn", "year"),
        "contracts": ("customer", "state", "machine", "start", "early"),
        "customers": ("town", "group", "address"),
    },
}
CONDITIONS: dict[Level, int] = {"easy": 2, "medium": 2, "hard": 3}
CHANGES: dict[Level, int] = {"easy": 1, "medium": 2, "hard": 3}
EDITABLE: Mapping[TableName, tuple[str, ...]] = {
    "machines": ("depot", "rate", "hours", "year"),
    "contracts": ("end", "deposit", "contact", "machine"),
    "customers": ("town", "group", "email", "phone"),
}


def make(random_: random.Random, level: Level, feasible: bool) -> Problem:
    """Infeasible: no record has all the properties, or it is a contract that has ended and a field is locked."""
    locked = not feasible and random_.random() < 0.5
    name: TableName = "contracts" if locked else random_.choice(("machines", "contracts", "customers"))
    there = feasible or locked
    while True:
        books = make_books(random_, level)
        wanted = int(there)
        only = PROPERTIES[level][name]
        drawn = draw(random_, books, name, CONDITIONS[level], most=wanted, least=wanted, only=only)
        if drawn and (keys := _keys(random_, drawn, level, locked)):
            break
    target = drawn.rows[0] if there else None
    values = {key: _new_value(random_, books, name, key, target) for key in keys}
    site = AdminSite(books)
    expected = copy.deepcopy(site.record())
    if feasible and target:
        expected[name][target["id"]].update(values)
    fields = {field_of(name, key): str(value) for key, value in values.items()}
    sets = " and ".join(f'"{field.label}" to {value}' for field, value in fields.items())
    return Problem(
        goal=f"Find the {TABLES[name].one} {drawn.words}, and set its {sets}. Change nothing else.",
        site=site,
        expected=cast("Mapping[str, Json]", expected),
        gold=_gold(name, drawn, target, fields),
        feasible=feasible,
    )


def _keys(random_: random.Random, drawn: Drawn, level: Level, locked: bool) -> list[str]:
    """Return the fields to set; none where the drawn record does not suit: only a contract that has ended is locked."""
    name = cast("TableName", drawn.table)
    ended = name == "contracts" and bool(drawn.rows) and drawn.rows[0]["state"] == "Ended"
    if locked and not ended:
        return []
    fields = [field_of(name, key) for key in EDITABLE[name]]
    if ended and not locked:
        fields = [field for field in fields if not field.locked_at_end]
    chosen = random_.sample(fields, min(CHANGES[level], len(fields)))
    if locked and not any(field.locked_at_end for field in chosen):
        return []
    return [field.key for field in fields if field in chosen]


def _new_value(random_: random.Random, books: Books, name: TableName, key: str, target: Cells | None) -> str | int:
    """Return a value that the field may have and the record does not have."""
    old = target[key] if target else None
    start = str(target["start"]) if target and name == "contracts" else books.today
    draws: Mapping[str, Callable[[], str | int]] = {
        "depot": lambda: random_.choice(books.depots),
        "rate": lambda: random_.randint(10, 250),
        "hours": lambda: random_.randint(100, 9000),
        "year": lambda: int(books.today[:4]) - random_.randint(0, 20),
        "end": lambda: (
            f"{int(max(start, books.today)[:4]) + 1}-{random_.randint(1, 12):02}-{random_.randint(1, 28):02}"
        ),
        "deposit": lambda: random_.randint(10, 900),
        "contact": lambda: people(random_, 1)[0],
        "machine": lambda: random_.choice([machine.name for machine in books.machines.values()]),
        "town": lambda: word(random_),
        "group": lambda: random_.choice(GROUPS),
        "email": lambda: f"{random_.choice(('desk', 'team', 'yard'))}@{word(random_).lower()}.test",
        "phone": lambda: f"555-{random_.randint(1000, 9999)}",
    }
    while (value := draws[key]()) == old:
        pass
    return value


def _gold(name: TableName, drawn: Drawn, target: Cells | None, fields: Mapping[Field, str]) -> Callable[[View], Action]:
    title = str(target["id" if name == "contracts" else "name"]) if target else ""
    path = f"/{name}/{target['id']}" if target else ""

    def gold(view: View) -> Action:
        if target and view.path == f"{path}/edit":
            return _fill(view, fields)
        if target and view.path == path:
            if view.has("status"):  # this notice appears after saving
                return say("Done.")
            return view.click("link", "Edit")
        moving = walk.to_list(view, name, drawn.conditions)
        if moving is None and title and (row := walk.row_of(view, title)):
            moving = view.click("link", title, row)
        return moving or walk.next_page(view) or give_up(f"There is no {TABLES[name].one} {drawn.words}.")

    return gold


def _fill(view: View, fields: Mapping[Field, str]) -> Action:
    for field, value in fields.items():
        label = f"{field.label} ({field.hint})" if field.hint else field.label
        element = view.find("combobox" if field.choices else "textbox", label)
        if "disabled" in element.states:
            return give_up("The contract has ended and the field is locked.")
        if field.choices and view.selected(label) != value:
            return view.select(label, value)
        if not field.choices and element.value != value:
            return view.fill(label, value)
    return view.click("button", "Save")


EDIT = Kind("admin/edit", "change", make, infeasible=True)
