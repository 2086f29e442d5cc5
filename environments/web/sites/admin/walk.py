"""How a scripted solver navigates the back office: with the links, filters and page links of the lists."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

from ...view import Element, View
from ..kind import Action
from .conditions import Condition
from .tables import TABLES


def to_list(view: View, table: str, conditions: Sequence[Condition] = ()) -> Action | None:
    """Return the next action towards a list with its filters and search set; None where it is shown."""
    at = urlsplit(view.path)
    if at.path != f"/{table}":
        return view.click("link", TABLES[table].title)
    shown = {key: values[0] for key, values in parse_qs(at.query).items()}
    wanted = {}
    for condition in conditions:
        if condition.filter:
            key, label, option = condition.filter
            wanted[key] = option
            if view.selected(label) != option:
                return view.select(label, option)
    if search := next((condition.search for condition in conditions if condition.search), ""):
        wanted["q"] = search
        if view.find("textbox", "Search").value != search:
            return view.fill("Search", search)
    if any(shown.get(key) != value for key, value in wanted.items()):
        return view.click("button", "Show")
    return None


def sorted_down(view: View, column: str, key: str) -> Action | None:
    """Return the click that sorts a list by a column, the largest first; None where it is sorted so."""
    query = parse_qs(urlsplit(view.path).query)
    if query.get("sort") == [key] and query.get("order") == ["down"]:
        return None
    return view.click("link", column)


def next_page(view: View) -> Action | None:
    """Return the click that turns the page; None on the last one."""
    return view.click("link", "Next page") if view.has("link", "Next page") else None


def row_of(view: View, name: str) -> Element | None:
    """Return the row of the table whose link has this name."""
    return next((row for row in view.all("row") if view.has("link", name, row)), None)
