"""Steps that several scripted solvers share. Each step depends only on the current page.

A function returns None if its goal is already reached.
"""

from __future__ import annotations

from ...view import Element, View, give_up
from ..kind import Action
from .data import Message, day_text

MARKED = "With marked messages"


def page(view: View) -> str:
    """Return the path without its query."""
    return view.path.partition("?")[0].rstrip("/")


def field(view: View, name: str, value: str) -> Action | None:
    """Fill a text field unless it holds the value."""
    return None if view.find("textbox", name).value == value else view.fill(name, value)


def choice(view: View, name: str, value: str) -> Action | None:
    """Choose an option unless it is chosen."""
    return None if view.selected(name) == value else view.select(name, value)


def search(view: View, title: str, label: str, query: str) -> Action | None:
    """Search on the page with that title; None once it shows what was found."""
    if not view.has("heading", title):
        for link in (title, "Mail"):
            if view.has("link", link):
                return view.click("link", link)
    if f"found in {label} for “{query}”" in view.text:
        return None
    if view.find("searchbox", f"Search in {label}").value != query:
        return view.fill(f"Search in {label}", query, role="searchbox")
    return view.click("button", "Search")


def next_page(view: View) -> Action | None:
    """Turn to the list's next page; None on the last."""
    return view.click("link", "Next page") if view.has("link", "Next page") else None


def mark(message: Message) -> str:
    """Return the name of the check box in a message's row: no two messages of a sender have the same day."""
    return f"Mark {message.sender.name}, {message.sender.company}, {day_text(message.sent)}"


def row(view: View, message: Message) -> Element | None:
    """Return the row of a message, if this page has it."""
    return next((found for found in view.all("row") if view.has("checkbox", mark(message), found)), None)


def open_message(view: View, title: str, message: Message) -> Action | None:
    """Look for a message by its sender's name; None once its page is shown."""
    if page(view) == f"/message/{message.id}":
        return None
    if (action := search(view, title, title, message.sender.name)) is not None:
        return action
    if (found := row(view, message)) is not None:
        return view.click("link", message.subject, found)
    return next_page(view) or give_up("The message is not in the list.")


def look_through(view: View, title: str, query: str, reason: str) -> Action:
    """Look at all that a search finds in a list of messages, then gives up."""
    return search(view, title, title, query) or next_page(view) or give_up(reason)


def look_for_person(view: View, query: str, reason: str) -> Action:
    """Look at all that a search finds in the address book, then gives up."""
    return search(view, "Address book", "the address book", query) or next_page(view) or give_up(reason)
