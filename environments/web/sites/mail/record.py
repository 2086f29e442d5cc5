"""The record of a mailbox, which contains everything that a task can change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..site import Json
from .data import Letter, Ticket


def record(
    folders: Mapping[int, str],
    labels: Mapping[int, tuple[str, ...]],
    letters: Iterable[Letter],
    tickets: Iterable[Ticket],
) -> dict[str, Json]:
    """Return the folder and labels of each message, the sent letters, and the tickets with their new notes."""
    return {
        "messages": {
            str(id_): {"folder": folder, "labels": sorted(labels[id_])} for id_, folder in sorted(folders.items())
        },
        "letters": [
            {"how": sent.how, "about": sent.about, "to": sorted(sent.to), "subject": sent.subject, "text": sent.text}
            for sent in letters
        ],
        "tickets": {
            ticket.number: {
                "subject": ticket.subject,
                "product": ticket.product,
                "status": ticket.status,
                "priority": ticket.priority,
                "assignee": ticket.assignee,
                "notes": list(ticket.notes),
                "message": ticket.message,
            }
            for ticket in tickets
        },
    }
