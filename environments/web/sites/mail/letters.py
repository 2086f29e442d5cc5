"""Messages that the team sends: the allowed recipients, and the required fields of the form."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from ..site import Request
from .data import Content, Letter, Message

SUBJECT_LENGTH = 120
TEXT_LENGTH = 2000
RECIPIENTS = 5


class Refused(ValueError):
    """A form cannot be accepted; the message is shown above it."""


@dataclass(frozen=True)
class Draft:
    """The fields of the form as they were typed."""

    to: str = ""
    subject: str = ""
    text: str = ""


def first_draft(how: str, message: Message | None) -> Draft:
    """Return what the form holds when it is opened."""
    if message is None:
        return Draft()
    if how == "reply":
        return Draft(to=message.sender.address, subject=f"Re: {message.subject}")
    return Draft(subject=f"Fwd: {message.subject}")


def typed(request: Request) -> Draft:
    """Return the fields of a sent form, cut where they are far too long to be shown again."""
    return Draft(
        request.value("to")[:500],
        request.value("subject")[: SUBJECT_LENGTH + 1],
        request.value("text")[: TEXT_LENGTH + 1],
    )


def letter(content: Content, how: str, message: Message | None, draft: Draft, today: date) -> Letter:
    """Return the letter of a completed form. Raises Refused."""
    to = recipients(content, draft.to, message.sender.address if how == "reply" and message else "")
    if not draft.subject:
        raise Refused("Write a subject.")
    if len(draft.subject) > SUBJECT_LENGTH:
        raise Refused(f"The subject can have at most {SUBJECT_LENGTH} characters.")
    if not draft.text:
        raise Refused("Write a text.")
    if len(draft.text) > TEXT_LENGTH:
        raise Refused(f"The text can have at most {TEXT_LENGTH} characters.")
    return Letter(
        how, message.id if message else None, to, " ".join(draft.subject.split()), " ".join(draft.text.split()), today
    )


def recipients(content: Content, typed_names: str, sender: str) -> tuple[str, ...]:
    """Return the addresses of names or addresses between commas; the sender of a message can always be answered."""
    known = {person.name.lower(): person.address for person in content.contacts}
    known |= {person.address: person.address for person in content.contacts}
    if sender:
        known[sender] = sender
    asked = [" ".join(part.split()) for part in typed_names.replace(";", ",").split(",") if part.strip()]
    if not asked:
        raise Refused("Write at least one recipient.")
    if len(asked) > RECIPIENTS:
        raise Refused(f"A message can have at most {RECIPIENTS} recipients.")
    for part in asked:
        if part.lower() not in known:
            raise Refused(f"“{part[:80]}” is not in the address book. Messages go only to people who are in it.")
    return tuple(sorted({known[part.lower()] for part in asked}))
