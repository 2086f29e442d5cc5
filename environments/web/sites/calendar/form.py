"""The booking form: its fields, and the booking that they describe, or the reason why they are invalid."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..site import Request
from .data import Booking, House
from .days import GRID, clock, long

TITLE_LIMIT = 60
NOTES_LIMIT = 300
_READ = 1000
"""How many characters of a field are read. The rest is ignored."""


class Refused(ValueError):
    """The form is invalid. The message is the reason."""


@dataclass(frozen=True)
class Fields:
    """What the form shows, all of it text."""

    title: str = ""
    organiser: str = ""
    participants: str = ""
    room: str = ""
    day: str = ""
    start: str = ""
    length: str = ""
    notes: str = ""

    @classmethod
    def typed(cls, request: Request) -> Fields:
        """Return the fields of a POST, with Unix line endings."""
        return cls(**{name: request.value(name)[:_READ].replace("\r\n", "\n") for name in cls.__dataclass_fields__})

    @classmethod
    def of(cls, booking: Booking, house: House) -> Fields:
        """Return a booking's fields."""
        return cls(
            booking.title,
            booking.organiser,
            str(booking.participants),
            house.room(booking.room).slug,
            booking.day.isoformat(),
            clock(booking.start),
            str(booking.length),
            booking.notes,
        )


def starts(house: House) -> tuple[int, ...]:
    """Return the times at which a booking can begin."""
    return tuple(range(house.opens, house.closes, GRID))


def read(fields: Fields, house: House, bookings: Iterable[Booking], number: int) -> Booking:
    """Return the booking with that number that the fields mean. Raises Refused for the first thing that is wrong.

    A booking with the same number does not conflict with it, because it is the booking that changes.
    """
    title = " ".join(fields.title.split())
    if not title:
        raise Refused("Please give the booking a title.")
    if len(title) > TITLE_LIMIT or not title.isprintable():
        raise Refused(f"A title has at most {TITLE_LIMIT} characters, all of them printable.")
    name = " ".join(fields.organiser.split()).casefold()
    organiser = next((person for person in house.people if person.casefold() == name), None)
    if organiser is None:
        raise Refused("Please give the full name of an organiser who belongs to the house.")
    digits = fields.participants
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 4 and int(digits) > 0):
        raise Refused("Please give the number of participants, such as 4.")
    room = next((room for room in house.rooms if room.slug == fields.room), None)
    if room is None:
        raise Refused("Please choose a room.")
    day = next((day for day in house.days_to_come if day.isoformat() == fields.day), None)
    if day is None:
        raise Refused("Please choose a day from today on.")
    start = next((start for start in starts(house) if clock(start) == fields.start), None)
    if start is None:
        raise Refused("Please choose when the booking starts.")
    length = next((length for length in house.lengths if str(length) == fields.length), None)
    if length is None:
        raise Refused("Please choose how long the booking is.")
    if len(fields.notes) > NOTES_LIMIT:
        raise Refused(f"Notes have at most {NOTES_LIMIT} characters.")
    if start + length > house.closes:
        raise Refused(f"The house closes at {clock(house.closes)}; the booking would end at {clock(start + length)}.")
    if int(digits) > room.seats:
        raise Refused(f"{room.name} has {room.seats} seats: {int(digits)} participants do not fit.")
    for other in bookings:
        in_the_way = other.number != number and other.room == room.name and other.day == day
        if in_the_way and other.overlaps(start, length):
            raise Refused(f'{room.name} is taken on {long(day)}, {other.times}: "{other.title}".')
    return Booking(number, title, organiser, int(digits), room.name, day, start, length, fields.notes)
