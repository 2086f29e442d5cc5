"""The records that tasks expect: the initial record with the requested change."""

from __future__ import annotations

from ..site import Json
from .data import Content
from .record import record


def first_record(content: Content) -> dict[str, Json]:
    """Return the record before anything was done."""
    return record(
        {message.id: message.folder for message in content.messages},
        {message.id: message.labels for message in content.messages},
        content.letters,
        content.tickets,
    )
