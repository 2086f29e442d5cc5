"""The columns and filters of the lists, and the actions for selected rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .data import GROUPS, STATES, Books, Change, Contract, Customer, Machine, Record

Cells = Mapping[str, str | int]
"""The values of a row by column, including the values that only the record's page shows."""


@dataclass(frozen=True)
class Column:
    """A column of a list. A wide one is left out where a company is small."""

    key: str
    title: str
    number: bool = False
    wide: bool = False


@dataclass(frozen=True)
class Filter:
    """A drop-down list above a table."""

    key: str
    label: str
    options: Callable[[Books], tuple[str, ...]]


@dataclass(frozen=True)
class BulkAction:
    """What can be done with the selected rows: it sets one field to one value, which a column then shows."""

    name: str
    key: str
    value: str | bool
    shown_in: str
    shown: str
    not_ended: bool = False
    """Whether the action refuses contracts that have ended."""


@dataclass(frozen=True)
class Table:
    """A list of the site. The first column links to the record. `one` is the name of a record."""

    name: str
    title: str
    one: str
    columns: tuple[Column, ...]
    filters: tuple[Filter, ...]
    actions: tuple[BulkAction, ...] = ()


CONTRACT_STATES = ("Open", "Overdue", "Ended")

MACHINES = Table(
    "machines",
    "Machines",
    "machine",
    (
        Column("name", "Name"),
        Column("depot", "Depot"),
        Column("state", "State"),
        Column("rate", "Rate per day", number=True),
        Column("hours", "Hours run", number=True, wide=True),
    ),
    (Filter("depot", "Depot", lambda books: books.depots), Filter("state", "State", lambda books: STATES)),
    (
        BulkAction("Make available", "state", "Available", "state", "Available"),
        BulkAction("Send to repair", "state", "In repair", "state", "In repair"),
        BulkAction("Stop", "state", "Stopped", "state", "Stopped"),
    ),
)
CONTRACTS = Table(
    "contracts",
    "Contracts",
    "contract",
    (
        Column("id", "Number"),
        Column("customer", "Customer"),
        Column("machine", "Machine", wide=True),
        Column("end", "End"),
        Column("deposit", "Deposit", number=True),
        Column("state", "State"),
        Column("reminder", "Reminder"),
    ),
    (Filter("state", "State", lambda books: CONTRACT_STATES),),
    (
        BulkAction("Send a reminder", "reminded", True, "reminder", "Sent", not_ended=True),
        BulkAction("Mark as returned", "returned", True, "state", "Ended", not_ended=True),
    ),
)
CUSTOMERS = Table(
    "customers",
    "Customers",
    "customer",
    (Column("name", "Name"), Column("town", "Town"), Column("group", "Group"), Column("phone", "Phone")),
    (Filter("group", "Group", lambda books: GROUPS),),
)
CHANGES = Table(
    "changes",
    "Changes",
    "change",
    (Column("number", "No.", number=True), Column("day", "Day"), Column("who", "By"), Column("what", "Change")),
    (
        Filter("who", "By", lambda books: (*books.staff, "You")),
        Filter("about", "About", lambda books: ("Machines", "Contracts", "Customers", "Settings")),
    ),
)
TABLES: dict[str, Table] = {table.name: table for table in (MACHINES, CONTRACTS, CUSTOMERS, CHANGES)}


def cells(books: Books, item: Record | Change) -> Cells:
    """Return what the site shows of one record."""
    keys: tuple[str, ...]
    match item:
        case Machine():
            keys = ("id", "name", "depot", "state", "rate", "hours", "year")
        case Customer():
            keys = ("id", "name", "town", "group", "email", "phone")
        case Contract():
            keys = ("id", "customer", "machine", "start", "end", "deposit", "contact")
        case Change():
            keys = ("number", "day", "who", "about", "what")
    values: dict[str, str | int] = {key: getattr(item, key) for key in keys}
    if isinstance(item, Contract):
        values |= {"state": books.state_of(item), "reminder": "Sent" if item.reminded else "None"}
    return values


def rows_of(books: Books, table: Table) -> list[Cells]:
    """Return all rows of a list in its first order: the newest change first, the others as they were added."""
    match table.name:
        case "machines":
            return [cells(books, item) for item in books.machines.values()]
        case "contracts":
            return [cells(books, item) for item in books.contracts.values()]
        case "customers":
            return [cells(books, item) for item in books.customers.values()]
        case _:
            return [cells(books, change) for change in reversed(books.changes)]
