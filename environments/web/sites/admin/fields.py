"""The fields of the records: their labels, how they are shown, and how text in a form is parsed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from . import reading
from .data import GROUPS, STATES, Books, TableName


@dataclass(frozen=True)
class Field:
    """A field of a form. `choices` makes it a drop-down list."""

    key: str
    label: str
    read: Callable[[str, Books], str | int]
    """Parses a text with the books, and returns the value. Raises reading.Wrong if the text is invalid."""
    choices: Callable[[Books], tuple[str, ...]] | None = None
    hint: str = ""
    only_new: bool = False
    """Whether the field is set when the record is added, and cannot be changed later."""
    locked_at_end: bool = False
    """Whether the field cannot be changed after the contract has ended."""


def _plain(key: str, label: str, read: Callable[[str, str], str], hint: str = "") -> Field:
    return Field(key, label, lambda text, books: read(label, text), hint=hint)


def _number(key: str, label: str, low: int, high: int) -> Field:
    return Field(key, label, lambda text, books: reading.number(label, text, low, high))


def _list(key: str, label: str, choices: Callable[[Books], tuple[str, ...]]) -> Field:
    return Field(key, label, lambda text, books: reading.choice(label, text, choices(books)), choices)


def _new_name(table: TableName) -> Field:
    def read(text: str, books: Books) -> str:
        held = books.machines if table == "machines" else books.customers
        return reading.new_name("Name", text, {item.name for item in held.values()})

    return Field("name", "Name", read, only_new=True)


def _reference(key: str, label: str, table: TableName) -> Callable[..., Field]:
    def read(text: str, books: Books) -> str:
        held = books.machines if table == "machines" else books.customers
        return reading.reference(label, text, {item.name for item in held.values()}, table[:-1])

    return partial(Field, key, label, read)


def _year(text: str, books: Books) -> int:
    return reading.number("Year built", text, 1990, int(books.today[:4]))


def _locked(field: Field) -> Field:
    return Field(field.key, field.label, field.read, field.choices, field.hint, field.only_new, locked_at_end=True)


FIELDS: dict[TableName, tuple[Field, ...]] = {
    "machines": (
        _new_name("machines"),
        _list("depot", "Depot", lambda books: books.depots),
        _list("state", "State", lambda books: STATES),
        _number("rate", "Rate per day", 5, 900),
        _number("hours", "Hours run", 0, 20000),
        Field("year", "Year built", _year),
    ),
    "customers": (
        _new_name("customers"),
        _plain("town", "Town", reading.words),
        _list("group", "Group", lambda books: GROUPS),
        _plain("email", "E-mail", reading.email),
        _plain("phone", "Phone", reading.phone),
    ),
    "contracts": (
        _reference("customer", "Customer", "customers")(only_new=True),
        _reference("machine", "Machine", "machines")(locked_at_end=True),
        _locked(_plain("start", "Start", reading.day, "as YYYY-MM-DD")),
        _locked(_plain("end", "End", reading.day, "as YYYY-MM-DD")),
        _locked(_number("deposit", "Deposit", 0, 5000)),
        _plain("contact", "Contact", reading.words),
    ),
}


def field_of(table: TableName, key: str) -> Field:
    """Return the field with this key."""
    return next(field for field in FIELDS[table] if field.key == key)
