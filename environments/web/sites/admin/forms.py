"""The changes that forms make to the books. Each change is logged, and invalid input changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .data import Books, Change, Contract, Customer, Machine, TableName
from .fields import FIELDS, Field
from .reading import Wrong
from .tables import TABLES, Table

MOST_RECORDS = 500


def log(books: Books, about: str, what: str) -> None:
    """Add to the list of changes."""
    books.changes.append(Change(len(books.changes) + 1, books.today, "You", about, what))


def read_fields(books: Books, fields: Sequence[Field], texts: Mapping[str, str]) -> dict[str, str | int]:
    """Return the values of a form. Raises Wrong with the messages of all fields that are wrong."""
    values: dict[str, str | int] = {}
    wrongs = []
    for field in fields:
        try:
            values[field.key] = field.read(texts[field.key], books)
        except Wrong as wrong:
            wrongs.append(str(wrong))
    if not wrongs and "start" in values and str(values["end"]) < str(values["start"]):
        wrongs.append("End: give a day that is not before the start.")
    if wrongs:
        raise Wrong(" ".join(wrongs))
    return values


def save_record(books: Books, name: TableName, id: str, values: Mapping[str, str | int]) -> bool:
    """Set the fields of a record; whether any is different now."""
    item = books.table(name)[id]
    different = [
        field for field in FIELDS[name] if field.key in values and getattr(item, field.key) != values[field.key]
    ]
    for field in different:
        setattr(item, field.key, values[field.key])
        log(books, TABLES[name].title, f"{_called(item)}: {field.label} set")
    return bool(different)


def add_record(books: Books, name: TableName, values: Mapping[str, str | int]) -> str:
    """Return the id of a new record."""
    held = books.table(name)
    if len(held) >= MOST_RECORDS:
        raise Wrong(f"There is no room for another {TABLES[name].one}.")
    letter, _, last = max(held, key=lambda each: int(each[2:])).partition("-")
    new = f"{letter}-{int(last) + 1}"
    given = {key: str(value) for key, value in values.items()}
    match name:
        case "machines":
            numbers = {key: int(values[key]) for key in ("rate", "hours", "year")}
            books.machines[new] = Machine(new, given["name"], given["depot"], given["state"], **numbers)
        case "customers":
            books.customers[new] = Customer(id=new, **given)
        case "contracts":
            given.pop("deposit")
            deposit = int(values["deposit"])
            books.contracts[new] = Contract(id=new, deposit=deposit, returned=False, reminded=False, **given)
    log(books, TABLES[name].title, f"{_called(books.table(name)[new])}: added")
    return new


def apply_action(books: Books, table: Table, action_name: str, ids: Sequence[str]) -> str:
    """Do an action to the records with these ids, to all or (Wrong) to none; returns the notice."""
    action = next((action for action in table.actions if action.name == action_name), None)
    held = books.machines if table.name == "machines" else books.contracts
    if action is None:
        raise Wrong("Choose an action for the selected rows.")
    if not ids or not held.keys() >= set(ids):
        raise Wrong("Select at least one row.")
    items = [held[each] for each in ids]
    if action.not_ended:
        ended = [item.id for item in items if isinstance(item, Contract) and item.returned]
        if ended:
            raise Wrong(f"Nothing was done: {', '.join(ended)} has ended.")
    for item in items:
        setattr(item, action.key, action.value)
        log(books, table.title, f"{_called(item)}: {action.name}")
    return f"{action.name}: done for {len(items)} {table.one if len(items) == 1 else table.name}."


def _called(item: Machine | Customer | Contract) -> str:
    return item.id if isinstance(item, Contract) else item.name
