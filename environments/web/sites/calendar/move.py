"""`calendar/move`: move a booking to another time, day or room. On the hard level, the title may also change."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import date

from ...view import View, give_up, say
from ..kind import Action, Kind, Level, Problem
from . import rules
from .data import Booking, House, Room, make_house, record_of
from .days import GRID, clock, long, monday
from .names import FORMS, TOPICS
from .site import Calendar
from .steps import fill_form, to_booking

CHANGES: dict[Level, tuple[tuple[str, ...], ...]] = {
    "easy": (("start",), ("day",), ("room",)),
    "medium": (("start", "day"), ("start", "room"), ("day", "room")),
    "hard": (("start", "day", "room"),),
}


def _described(house: House, booking: Booking, level: Level) -> str | None:
    """Describe the booking, less directly on a higher level. Return None if the description also fits other bookings."""
    if level == "hard":
        words = f'the booking "{booking.title}" that {booking.organiser} organises on {long(booking.day)}'
        count = rules.count_of(
            house,
            lambda one: (one.title, one.organiser, one.day) == (booking.title, booking.organiser, booking.day),
        )
    elif level == "medium":
        week = monday(booking.day)
        words = f'the booking "{booking.title}" in {booking.room} in the week of {long(week)}'
        count = rules.count_of(
            house, lambda one: (one.title, one.room, monday(one.day)) == (booking.title, booking.room, week)
        )
    else:
        words = f'the booking "{booking.title}" in {booking.room} on {long(booking.day)}'
        count = rules.count_of(
            house, lambda one: (one.title, one.room, one.day) == (booking.title, booking.room, booking.day)
        )
    return words if count == 1 else None


def _room_in_words(house: House, room: Room, level: Level) -> str:
    """By floor and one piece of equipment where that means one room, on the hard level; else by its name."""
    if level == "hard":
        for item in room.equipment:
            if [one for one in house.rooms if one.floor == room.floor and item in one.equipment] == [room]:
                return f"the only room of the {room.floor.lower()} with a {item}"
    return room.name


def _place(rng: random.Random, house: House, booking: Booking, changes: tuple[str, ...], feasible: bool) -> Booking:
    """Return the booking at another time or room that is free or taken, as requested. Raises LookupError."""
    rooms = [room for room in house.rooms if (room.name != booking.room) == ("room" in changes)]
    week = monday(booking.day)
    days: list[date] = [day for day in house.days_to_come if monday(day) == week]
    days = [day for day in days if (day != booking.day) == ("day" in changes)]
    last = house.closes - booking.length
    starts = [at for at in range(house.opens, last + 1, GRID) if (at != booking.start) == ("start" in changes)]

    def fits(place: tuple[Room, date, int]) -> bool:
        room, day, start = place
        is_free = rules.free(house, room.name, day, start, booking.length, booking.number)
        return room.seats >= booking.participants and is_free == feasible

    found = rules.pick(rng, [(room, day, start) for room in rooms for day in days for start in starts], fits)
    if found is None:
        raise LookupError("no such place")
    return replace(booking, room=found[0].name, day=found[1], start=found[2])


def _attempt(rng: random.Random, level: Level, feasible: bool) -> Problem | None:
    house = make_house(rng, level)
    old = rng.choice(rules.to_come(house, 0 if level == "easy" else 1))
    week = monday(old.day)
    if level == "medium":
        house = rules.echo(rng, house, old.title, 3, lambda one: monday(one.day) == week and one.room != old.room)
    if level == "hard":
        house = rules.echo(rng, house, old.title, 3, lambda one: one.day == old.day and one.organiser != old.organiser)
    words = _described(house, old, level)
    changes = rng.choice(CHANGES[level])
    try:
        new = _place(rng, house, old, changes, feasible)
    except LookupError:
        return None
    if words is None:
        return None
    title = ""
    if level == "hard" and rng.random() < 0.5:
        new = replace(new, title=rng.choice([name for name in _titles() if name != old.title]))
        title = f' Its new title is "{new.title}".'
    at = clock(new.start) if "start" in changes else "the same time"
    day = long(new.day) if "day" in changes else "the same day"
    room = _room_in_words(house, house.room(new.room), level) if "room" in changes else "the same room"
    goal = f"Move {words} to {at} on {day} in {room}.{title} Change nothing else and no other booking."
    wanted = {"Title": new.title, "Room": new.room, "Day": long(new.day), "Start": clock(new.start)}

    def gold(view: View) -> Action:
        if "The changes are saved." in view.text:
            return say("Done.")
        if view.path == f"/bookings/{old.number}/change":
            if f"{new.room} is taken" in view.text:
                return give_up("Another booking holds the room at that time.")
            return fill_form(view, wanted) or view.click("button", "Save changes")
        booking = to_booking(view, house, old, by_day=level == "hard")
        return booking or view.click("link", "Change booking")

    after = rules.with_bookings(house, [new]) if feasible else house
    return Problem(goal, Calendar(house), record_of(after.bookings), gold, feasible=feasible)


def _titles() -> list[str]:
    return [f"{topic} {form}" for topic in TOPICS for form in FORMS]


def make(rng: random.Random, level: Level, feasible: bool) -> Problem:
    """Return a booking and a slot to which it can be moved. If the task is infeasible, another booking holds the slot."""
    while True:
        if (problem := _attempt(rng, level, feasible)) is not None:
            return problem


MOVE = Kind("calendar/move", "change", make, infeasible=True)
