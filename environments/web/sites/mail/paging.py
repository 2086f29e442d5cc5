"""Pages of a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode


def number(text: str) -> int | None:
    """Return a small number in digits; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else None


@dataclass(frozen=True)
class PageOfList:
    """Some items of a list. `previous` and `next` are paths, empty at the ends; `here` is the page's own."""

    items: Sequence[Any]
    total: int
    at: int
    last: int
    previous: str
    next: str
    here: str


def page_of_list(items: Sequence[Any], rows: int, at: int, path: str, query: Mapping[str, str]) -> PageOfList:
    """Return this page of the list, or the nearest existing page."""
    last = max(1, -(-len(items) // rows))
    at = min(max(at, 1), last)

    def to(page: int) -> str:
        return path + "?" + urlencode({name: value for name, value in query.items() if value} | {"page": str(page)})

    return PageOfList(
        items=items[(at - 1) * rows : at * rows],
        total=len(items),
        at=at,
        last=last,
        previous=to(at - 1) if at > 1 else "",
        next=to(at + 1) if at < last else "",
        here=to(at),
    )
