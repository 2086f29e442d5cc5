"""One page of a list: the rows that match the search and the filters, in the selected order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from .data import Books
from .reading import LONGEST
from .tables import Cells, Column, Table, rows_of


@dataclass(frozen=True)
class Listing:
    """What a list page shows. `chosen` are the parameters of its address that mean something, without the page."""

    table: Table
    columns: tuple[Column, ...]
    rows: tuple[Cells, ...]
    total: int
    page: int
    pages: int
    chosen: Mapping[str, str]
    large: bool

    def path(self, page: int | None = None, **other: str) -> str:
        """Return the list's path, on another page or with other parameters."""
        values = {**self.chosen, **other, **({"page": str(page)} if page and page > 1 else {})}
        return f"/{self.table.name}" + (f"?{urlencode(values)}" if values else "")

    @property
    def sortable(self) -> tuple[Column, ...]:
        """Return the columns by which the list can be sorted: columns of numbers, or all columns of a large company."""
        return tuple(column for column in self.columns if column.number or self.large)

    @property
    def here(self) -> str:
        """The path of this very page."""
        return self.path(self.page)

    def sorting(self, column: Column) -> str:
        """Return the path that a column's title leads to: upwards at first, downwards where it is sorted upwards."""
        upwards = self.chosen.get("sort") == column.key and self.chosen.get("order") == "up"
        return self.path(sort=column.key, order="down" if upwards else "up")


def listing(books: Books, table: Table, query: Mapping[str, str]) -> Listing:
    """Return the page that an address asks for; parameters that mean nothing are left out."""
    large = books.level != "easy"
    columns = tuple(column for column in table.columns if not column.wide or large)
    chosen: dict[str, str] = {}
    rows = rows_of(books, table)
    if search := query.get("q", "").strip()[:LONGEST]:
        chosen["q"] = search
        shown = [column.key for column in table.columns if not column.number]
        rows = [row for row in rows if any(search.lower() in str(row[key]).lower() for key in shown)]
    for each in table.filters:
        if (value := query.get(each.key, "")) in each.options(books):
            chosen[each.key] = value
            rows = [row for row in rows if row[each.key] == value]
    if (key := query.get("sort", "")) in {column.key for column in columns}:
        chosen |= {"sort": key, "order": "down" if query.get("order") == "down" else "up"}
        rows.sort(key=lambda row: _order(row[key]), reverse=chosen["order"] == "down")
    pages = max(1, -(-len(rows) // books.rows))
    asked = query.get("page", "")
    page = min(max(int(asked), 1), pages) if re.fullmatch(r"[0-9]{1,6}", asked) else 1
    first = (page - 1) * books.rows
    return Listing(table, columns, tuple(rows[first : first + books.rows]), len(rows), page, pages, chosen, large)


def _order(value: str | int) -> list[tuple[int, str, int]]:
    """Return a sort key that compares numbers inside strings by value: Pump 3 before Pump 12."""
    parts = re.split(r"([0-9]+)", str(value).lower())
    return [(0, "", int(part)) if part.isdecimal() else (1, part, 0) for part in parts if part]
