"""The tickets of the mailbox, and the actions on tickets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date

from ..site import Request
from .data import NOBODY, PRIORITIES, STATUSES, Content, Entry, Message, Ticket
from .letters import Refused

NOTE_LENGTH = 500
SUBJECT_LENGTH = 80
FILTERS = ("status", "priority", "assignee", "product")


def chosen(field: str, value: str, options: tuple[str, ...]) -> str:
    """Return the value, if the drop-down list offers it. Raises Refused."""
    if value not in options:
        raise Refused(f"Choose the {field} from the list.")
    return value


class Desk:
    """The tickets as they are now."""

    def __init__(self, content: Content) -> None:
        self._team = content.team
        self._products = content.products
        self._today = content.today
        self.tickets = {ticket.number: ticket for ticket in content.tickets}

    @property
    def options(self) -> dict[str, tuple[str, ...]]:
        """What each drop-down list offers."""
        return {
            "status": STATUSES,
            "priority": PRIORITIES,
            "assignee": (NOBODY, *self._team),
            "product": self._products,
        }

    def listed(self, filters: Mapping[str, str]) -> list[Ticket]:
        """Return the tickets that pass all filters, by number; an empty filter lets all pass."""
        return [
            ticket
            for ticket in self.tickets.values()
            if all(not wanted or getattr(ticket, name) == wanted for name, wanted in filters.items())
        ]

    def update(self, ticket: Ticket, request: Request) -> str:
        """Change a ticket according to its form, and return a description. Raises Refused."""
        if ticket.status == "Closed":
            raise Refused(f"Ticket {ticket.number} is closed. A closed ticket cannot be reassigned or changed.")
        options = self.options
        new = {
            field: chosen(field, request.value(field), options[field]) for field in ("assignee", "priority", "status")
        }
        note = " ".join(request.value("note").split())
        if len(note) > NOTE_LENGTH:
            raise Refused(f"A note can have at most {NOTE_LENGTH} characters.")
        if new["status"] == "Closed" and not note:
            raise Refused("A ticket is closed with a note: write what was done.")
        changes = [
            f"{field.capitalize()} set to {value}." for field, value in new.items() if value != getattr(ticket, field)
        ]
        if not changes and not note:
            raise Refused("Nothing was changed: choose another value or write a note.")
        entries = [Entry(self._today, "You", text) for text in changes]
        if note:
            entries.append(Entry(self._today, "You", f"Note: {note}"))
        self.tickets[ticket.number] = replace(
            ticket,
            assignee=new["assignee"],
            priority=new["priority"],
            status=new["status"],
            history=(*ticket.history, *entries),
            notes=(*ticket.notes, note) if note else ticket.notes,
        )
        return f"Ticket {ticket.number} was updated."

    def open(self, message: Message, request: Request, today: date) -> Ticket:
        """Return a new ticket about a message. Raises Refused."""
        if (known := self.of_message(message.id)) is not None:
            raise Refused(f"Ticket {known.number} was already opened from this message.")
        options = self.options
        new = {
            field: chosen(field, request.value(field), options[field]) for field in ("product", "priority", "assignee")
        }
        subject = " ".join(request.value("subject").split())
        if not subject:
            raise Refused("Write a subject.")
        if len(subject) > SUBJECT_LENGTH:
            raise Refused(f"The subject can have at most {SUBJECT_LENGTH} characters.")
        number = f"T-{int(max(self.tickets, key=lambda number: int(number[2:]))[2:]) + 1}"
        ticket = Ticket(
            number=number,
            subject=subject,
            customer=message.sender,
            product=new["product"],
            town="",
            status="Open",
            priority=new["priority"],
            assignee=new["assignee"],
            opened=today,
            history=(Entry(today, "You", "Ticket opened from a message."),),
            message=message.id,
        )
        self.tickets[number] = ticket
        return ticket

    def of_message(self, message: int) -> Ticket | None:
        """Return the ticket that was opened from a message, if any."""
        return next((ticket for ticket in self.tickets.values() if ticket.message == message), None)
