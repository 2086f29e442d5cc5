"""Random conditions on rows: a given number of rows satisfy all conditions, and other rows miss exactly one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .data import Books
from .tables import TABLES, Cells, rows_of


@dataclass(frozen=True)
class Condition:
    """What a row must be. `filter` is (parameter, drop-down list, option) where a list above the table has it."""

    words: str
    """Follows a noun in the goal, such as `at the depot North Gate`."""
    holds: Callable[[Cells], bool]
    filter: tuple[str, str, str] | None = None
    search: str = ""
    """A search that finds the rows that satisfy the condition, and possibly other rows."""


Maker = Callable[[random.Random, Sequence[Cells]], Condition]
"""Receives a generator and rows, and returns a condition on a value in one of the rows."""


@dataclass(frozen=True)
class Drawn:
    """Conditions with the rows that satisfy all of them."""

    table: str
    conditions: tuple[Condition, ...]
    rows: tuple[Cells, ...]

    def let_through(self, rows: Sequence[Cells]) -> int:
        """Return how many rows the filters and the search of the list leave."""
        listed = [condition for condition in self.conditions if condition.filter or condition.search]
        return len(satisfying(rows, listed))

    @property
    def words(self) -> str:
        """Return the conditions as text."""
        *first, last = [condition.words for condition in self.conditions]
        return f"{', '.join(first)} and {last}" if first else last


def satisfying(rows: Sequence[Cells], conditions: Sequence[Condition]) -> list[Cells]:
    """Return the rows that satisfy all."""
    return [row for row in rows if all(condition.holds(row) for condition in conditions)]


def draw(
    random_: random.Random, books: Books, table: str, count: int, most: int, least: int = 1, only: Sequence[str] = ()
) -> Drawn | None:
    """`count` conditions that `least` to `most` rows satisfy; for each, another row satisfies all the others but not it.

    `only` limits which conditions are drawn. None where a hundred attempts found nothing.
    """
    rows = rows_of(books, TABLES[table])
    makers = {key: maker for key, maker in MAKERS[table].items() if not only or key in only}
    for _ in range(100):
        conditions = [
            makers[key](random_, rows) for key in sorted(random_.sample(list(makers), count), key=list(makers).index)
        ]
        found = satisfying(rows, conditions)
        near = [[other for other in conditions if other is not left_out] for left_out in conditions]
        if least <= len(found) <= most and all(len(satisfying(rows, others)) > len(found) for others in near):
            return Drawn(table, tuple(conditions), tuple(found))
    return None


def _equal(key: str, words: str, filter: str = "", search: bool = False) -> Maker:
    def make(random_: random.Random, rows: Sequence[Cells]) -> Condition:
        value = str(random_.choice(rows)[key])
        listed = (key, filter, value) if filter else None
        return Condition(words.format(value), lambda row: str(row[key]) == value, listed, value if search else "")

    return make


def _at_least(key: str, words: str) -> Maker:
    def make(random_: random.Random, rows: Sequence[Cells]) -> Condition:
        bound = int(random_.choice(rows)[key])
        return Condition(words.format(bound), lambda row: int(row[key]) >= bound)

    return make


def _below(key: str, words: str) -> Maker:
    def make(random_: random.Random, rows: Sequence[Cells]) -> Condition:
        bound = int(random_.choice(rows)[key])
        return Condition(words.format(bound), lambda row: int(row[key]) < bound)

    return make


def _before(key: str, words: str) -> Maker:
    def make(random_: random.Random, rows: Sequence[Cells]) -> Condition:
        bound = str(random_.choice(rows)[key])
        return Condition(words.format(bound), lambda row: str(row[key]) < bound)

    return make


def _type(random_: random.Random, rows: Sequence[Cells]) -> Condition:
    kind = str(random_.choice(rows)["name"]).split()[0]
    return Condition(f"of the type {kind}", lambda row: str(row["name"]).split()[0] == kind, search=kind)


def _address(random_: random.Random, rows: Sequence[Cells]) -> Condition:
    value = str(random_.choice(rows)["email"]).partition("@")[0]
    words = f'with an e-mail address that begins with "{value}@"'
    return Condition(words, lambda row: str(row["email"]).startswith(f"{value}@"))


MAKERS: Mapping[str, Mapping[str, Maker]] = {
    "machines": {
        "depot": _equal("depot", "at the depot {}", "Depot"),
        "state": _equal("state", 'in the state "{}"', "State"),
        "type": _type,
        "dear": _at_least("rate", "with a rate per day of at least {}"),
        "cheap": _below("rate", "with a rate per day below {}"),
        "worn": _at_least("hours", "with at least {} hours run"),
        "year": _equal("year", "built in the year {}"),
    },
    "contracts": {
        "state": _equal("state", 'in the state "{}"', "State"),
        "customer": _equal("customer", "of the customer {}", search=True),
        "machine": _equal("machine", "for the machine {}", search=True),
        "large": _at_least("deposit", "with a deposit of at least {}"),
        "small": _below("deposit", "with a deposit below {}"),
        "early": _before("end", "with an end before {}"),
        "start": _equal("start", "with the start {}"),
    },
    "customers": {
        "town": _equal("town", "in the town {}", search=True),
        "group": _equal("group", 'of the group "{}"', "Group"),
        "address": _address,
    },
    "changes": {
        "who": _equal("who", "by {}", "By"),
        "about": _equal("about", 'about "{}"', "About"),
        "late": _before("day", "dated before {}"),
    },
}
