"""Parses form fields. For an invalid field, a message describes the problem."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import date

LONGEST = 60


class Wrong(ValueError):
    """A field's text is not a value that the field may have; the message is for the page."""


def number(label: str, text: str, low: int, high: int) -> int:
    """Return an integer within inclusive bounds."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise Wrong(f"{label}: give a whole number from {low} to {high}.")
    return int(text)


def day(label: str, text: str) -> str:
    """Return a day as YYYY-MM-DD."""
    try:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            raise ValueError(text)
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise Wrong(f"{label}: give a day as YYYY-MM-DD.") from None


def words(label: str, text: str) -> str:
    """Return a text that is not empty and not too long."""
    if not text or len(text) > LONGEST or not text.isprintable():
        raise Wrong(f"{label}: give 1 to {LONGEST} characters.")
    return text


def email(label: str, text: str) -> str:
    """Return an e-mail address."""
    if len(text) > LONGEST or not re.fullmatch(r"[A-Za-z0-9._-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", text):
        raise Wrong(f"{label}: give an address such as office@name.test.")
    return text


def phone(label: str, text: str) -> str:
    """Return a phone number such as 555-1234."""
    if not re.fullmatch(r"[0-9]{3}-[0-9]{4}", text):
        raise Wrong(f"{label}: give a number such as 555-1234.")
    return text


def choice(label: str, text: str, choices: Collection[str]) -> str:
    """One of the options of a list."""
    if text not in choices:
        raise Wrong(f"{label}: choose one of the options.")
    return text


def reference(label: str, text: str, existing: Collection[str], of: str) -> str:
    """Return the name of something that exists."""
    if text not in existing:
        raise Wrong(f"{label}: there is no {of} with this name.")
    return text


def new_name(label: str, text: str, existing: Collection[str]) -> str:
    """Return a name that nothing has yet."""
    if text in existing:
        raise Wrong(f"{label}: this name is in use.")
    return words(label, text)
