"""The initial contents of a mailbox. Nothing here changes; the site stores changes separately."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

ORIGIN = "https://mail.test"

FOLDERS = ("inbox", "archive", "spam")
"""The folders of received messages. `sent` and `all` are lists, not folders."""

STATUSES = ("Open", "Waiting", "Closed")
PRIORITIES = ("Low", "Normal", "High", "Urgent")
NOBODY = "Unassigned"

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


@dataclass(frozen=True)
class Person:
    """An entry of the address book."""

    name: str
    address: str
    department: str
    office: str


@dataclass(frozen=True)
class Customer:
    """A customer, who writes to the team. Customers may share a name, but never an address."""

    name: str
    company: str
    address: str


@dataclass(frozen=True)
class Facts:
    """The facts that a message states, as they appear in its text."""

    order: str
    amount: str
    day: str
    phone: str


@dataclass(frozen=True)
class Message:
    """A message that was received. No two of one sender have the same day."""

    id: int
    folder: str
    sender: Customer
    topic: str
    product: str
    sent: date
    time: str
    facts: Facts
    text: tuple[str, ...]
    """Paragraphs."""
    labels: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """The topic, then the product."""
        return f"{self.topic}: {self.product}"


@dataclass(frozen=True)
class Letter:
    """A message that the team sent. `about` is the message that it replies to or forwards."""

    how: str
    about: int | None
    to: tuple[str, ...]
    """Addresses, sorted."""
    subject: str
    text: str
    sent: date


@dataclass(frozen=True)
class Entry:
    """A line of a ticket's history."""

    day: date
    who: str
    text: str


@dataclass(frozen=True)
class Ticket:
    """A ticket. `notes` are those that were added since the start; the history has all of them."""

    number: str
    subject: str
    customer: Customer
    product: str
    town: str
    status: str
    priority: str
    assignee: str
    opened: date
    history: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()
    message: int | None = None
    """The message from which the ticket was opened."""


@dataclass(frozen=True)
class Content:
    """A whole mailbox."""

    company: str
    today: date
    contacts: tuple[Person, ...]
    team: tuple[str, ...]
    """Names of people to whom tickets can be assigned."""
    labels: tuple[str, ...]
    products: tuple[str, ...]
    messages: tuple[Message, ...]
    """Newest first."""
    letters: tuple[Letter, ...]
    tickets: tuple[Ticket, ...]
    """Sorted by number."""
    rows: int
    """Number of rows on one page of a list."""


def day_text(day: date) -> str:
    """Return a day as all pages show it: `3 March 2027`."""
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"
