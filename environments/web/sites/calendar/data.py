"""The content of the calendar, generated from a seed: a house with rooms, people, and the bookings of a few weeks."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cached_property

from ..kind import Level
from ..site import Json
from . import names
from .days import GRID, clock, monday, working_week


@dataclass(frozen=True)
class Room:
    """A room that can be booked."""

    name: str
    floor: str
    seats: int
    equipment: tuple[str, ...]

    @property
    def slug(self) -> str:
        """The name as a part of a path."""
        return self.name.lower().replace(" ", "-")


@dataclass(frozen=True)
class Booking:
    """A room held on a day from `start` for `length` minutes. `room` is the room's name."""

    number: int
    title: str
    organiser: str
    participants: int
    room: str
    day: date
    start: int
    length: int
    notes: str

    @property
    def end(self) -> int:
        """The time of day at which it ends."""
        return self.start + self.length

    @property
    def times(self) -> str:
        """Such as `09:00–10:30`."""
        return f"{clock(self.start)}–{clock(self.end)}"

    def overlaps(self, start: int, length: int) -> bool:
        """Some minute of it lies in that time of the day."""
        return self.start < start + length and start < self.end


@dataclass(frozen=True)
class House:
    """The content of a site. `mondays` are the weeks that the calendar covers."""

    name: str
    today: date
    mondays: tuple[date, ...]
    opens: int
    closes: int
    lengths: tuple[int, ...]
    rooms: tuple[Room, ...]
    people: tuple[str, ...]
    bookings: tuple[Booking, ...]

    @property
    def days(self) -> tuple[date, ...]:
        """All days of the calendar: Monday to Friday of each week."""
        return tuple(day for first in self.mondays for day in working_week(first))

    @property
    def days_to_come(self) -> tuple[date, ...]:
        """The days that can be booked: today and later."""
        return tuple(day for day in self.days if day >= self.today)

    @cached_property
    def by_room_and_day(self) -> dict[tuple[str, date], list[Booking]]:
        """The bookings of each room's day in order."""
        found: dict[tuple[str, date], list[Booking]] = {}
        for booking in sorted(self.bookings, key=lambda booking: booking.start):
            found.setdefault((booking.room, booking.day), []).append(booking)
        return found

    def room(self, name: str) -> Room:
        """Return the room of that name, which is one of the house."""
        return next(room for room in self.rooms if room.name == name)


@dataclass(frozen=True)
class Size:
    """How much there is on a level."""

    rooms: int
    people: int
    weeks_before: int
    weeks_after: int
    opens: int
    closes: int
    lengths: tuple[int, ...]
    kept: float
    """The share of possible bookings that the calendar contains."""


SIZES: dict[Level, Size] = {
    "easy": Size(4, 6, 0, 1, 9 * 60, 14 * 60, (30, 60, 90, 120), 0.6),
    "medium": Size(6, 10, 1, 2, 9 * 60, 17 * 60, (30, 60, 90, 120), 0.75),
    "hard": Size(9, 16, 1, 3, 8 * 60, 18 * 60, (30, 60, 90, 120, 150, 180), 0.75),
}


def make_rooms(rng: random.Random, level: Level) -> tuple[Room, ...]:
    """Rooms with names of which none begins with another; on the hard level pairs share their first word."""
    count = SIZES[level].rooms
    stems = rng.sample(names.ROOMS, count)
    if level == "hard":
        stems = stems[: count - 3] + stems[:3]
    rooms: list[Room] = []
    for stem in stems:
        taken = {room.name for room in rooms}
        name = rng.choice([f"{stem} {end}" for end in names.ROOM_ENDINGS if f"{stem} {end}" not in taken])
        equipment = tuple(item for item in names.EQUIPMENT if rng.random() < 0.4)
        rooms.append(Room(name, rng.choice(names.FLOORS), rng.choice((6, 8, 10, 12, 16, 20, 24)), equipment))
    return tuple(sorted(rooms, key=lambda room: (names.FLOORS.index(room.floor), room.name)))


def make_people(rng: random.Random, level: Level) -> tuple[str, ...]:
    """Full names, all different; above the easy level some share a first or a last name."""
    count = SIZES[level].people
    different = count if level == "easy" else count // 2 + 1
    first, last = rng.sample(names.FIRST_NAMES, different), rng.sample(names.LAST_NAMES, different)
    people = [f"{one} {other}" for one, other in zip(first, last, strict=True)]
    while len(people) < count:
        name = f"{rng.choice(first)} {rng.choice(last)}"
        if name not in people:
            people.append(name)
    return tuple(sorted(people))


def make_house(rng: random.Random, level: Level, rooms: tuple[Room, ...] | None = None) -> House:
    """Return a house of the level's size, with these `rooms` if given."""
    size = SIZES[level]
    rooms = rooms or make_rooms(rng, level)
    people = make_people(rng, level)
    this_week = monday(date(2031, 1, 6) + timedelta(weeks=rng.randrange(150)))
    mondays = tuple(this_week + timedelta(weeks=n) for n in range(-size.weeks_before, size.weeks_after + 1))
    drafts: list[Booking] = []
    for day in (day for first in mondays for day in working_week(first)):
        for room in rooms:
            drafts += _bookings_of(rng, size, room, day, people)
    numbers = rng.sample(range(100, 100 + len(drafts)), len(drafts))
    return House(
        name=f"{rng.choice(names.HOUSES)} House",
        today=this_week + timedelta(days=rng.randrange(3)),
        mondays=mondays,
        opens=size.opens,
        closes=size.closes,
        lengths=size.lengths,
        rooms=rooms,
        people=people,
        bookings=tuple(replace(draft, number=number) for number, draft in zip(numbers, drafts, strict=True)),
    )


def _bookings_of(rng: random.Random, size: Size, room: Room, day: date, people: tuple[str, ...]) -> list[Booking]:
    """Return the bookings of one room on one day, without overlap. Their number is not given yet."""
    found = []
    at = size.opens + GRID * rng.choice((0, 0, 1, 2))
    while at < size.closes:
        length = rng.choice([length for length in size.lengths if at + length <= size.closes])
        if rng.random() < size.kept:
            title = f"{rng.choice(names.TOPICS)} {rng.choice(names.FORMS)}"
            notes = rng.choice(names.NOTES) if rng.random() < 0.4 else ""
            participants = rng.randint(2, room.seats)
            found.append(Booking(0, title, rng.choice(people), participants, room.name, day, at, length, notes))
        at += length + GRID * rng.choice((0, 1, 1, 2, 3))
    return found


def record_of(bookings: Iterable[Booking]) -> dict[str, Json]:
    """Return the bookings sorted by day, start and room. Their numbers are omitted, because no task mentions them."""
    ordered = sorted(bookings, key=lambda booking: (booking.day, booking.start, booking.room))
    return {
        "bookings": [
            {
                "title": booking.title,
                "organiser": booking.organiser,
                "participants": booking.participants,
                "room": booking.room,
                "day": booking.day.isoformat(),
                "start": clock(booking.start),
                "length": booking.length,
                "notes": booking.notes,
            }
            for booking in ordered
        ]
    }
