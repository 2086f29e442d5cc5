"""`calendar/book`: book the only room that meets all conditions. Other rooms miss a condition, most of them narrowly."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import date

from ...view import View, give_up, say
from ..kind import Action, Kind, Level, Problem
from . import rules
from .data import SIZES, Booking, House, Room, make_house, make_rooms, record_of
from .days import GRID, clock, long
from .names import EQUIPMENT, FLOORS, FORMS, NOTES, TOPICS
from .site import Calendar
from .steps import fill_form, to_day

ITEMS: dict[Level, int] = {"easy": 1, "medium": 2, "hard": 2}


@dataclass(frozen=True)
class Wanted:
    """What the room must meet. `floor` is "" where any will do."""

    seats: int
    equipment: tuple[str, ...]
    floor: str
    day: date
    start: int
    length: int

    def met_by(self, room: Room, house: House) -> bool:
        """Return the room meets all conditions, that it is free then among them."""
        return (
            room.seats >= self.seats
            and set(self.equipment) <= set(room.equipment)
            and self.floor in ("", room.floor)
            and rules.free(house, room.name, self.day, self.start, self.length)
        )


def _fitting(room: Room, wanted: Wanted, seats: int) -> Room:
    """Return the room with all that is wanted."""
    has = set(room.equipment) | set(wanted.equipment)
    equipment = tuple(item for item in EQUIPMENT if item in has)
    return replace(room, seats=seats, equipment=equipment, floor=wanted.floor or room.floor)


def _failing(rng: random.Random, room: Room, wanted: Wanted, why: str) -> Room:
    """Return the room that meets all but one condition; a room that is taken meets all."""
    room = _fitting(room, wanted, wanted.seats + rng.choice((0, 2, 4)))
    if why == "seats":
        return replace(room, seats=wanted.seats - rng.choice((1, 2)))
    if why == "equipment":
        missing = rng.choice(wanted.equipment)
        return replace(room, equipment=tuple(item for item in room.equipment if item != missing))
    if why == "floor":
        return replace(room, floor=rng.choice([floor for floor in FLOORS if floor != wanted.floor]))
    return room


def _with_time(rng: random.Random, house: House, wanted: Wanted, taken: dict[str, bool]) -> House:
    """Return the house in which the wanted time is taken in these rooms and free in those."""
    changed: list[Booking] = []
    removed: list[int] = []
    number = max(booking.number for booking in house.bookings)
    for room, is_taken in taken.items():
        in_the_way = [one for one in rules.held(house, room, wanted.day) if one.overlaps(wanted.start, wanted.length)]
        if not is_taken:
            removed += [one.number for one in in_the_way]
        elif not in_the_way:
            number += 1
            title, who = f"{rng.choice(TOPICS)} {rng.choice(FORMS)}", rng.choice(house.people)
            last = wanted.start + wanted.length - GRID
            changed.append(Booking(number, title, who, 2, room, wanted.day, last, GRID, ""))
    return rules.with_bookings(house, changed, removed)


def _attempt(rng: random.Random, level: Level, feasible: bool) -> Problem | None:
    size = SIZES[level]
    draft = make_rooms(rng, level)
    length = rng.choice([length for length in size.lengths if 60 <= length <= 120])
    start = rng.randrange(size.opens + GRID, size.closes - length + 1, GRID)
    floor = rng.choice(FLOORS) if level == "hard" else ""
    seats, equipment = rng.choice((10, 12, 14, 18)), tuple(rng.sample(EQUIPMENT, ITEMS[level]))
    wanted = Wanted(seats, equipment, floor, date.min, start, length)
    order = list(draft)
    rng.shuffle(order)
    reasons = ["taken", "seats", "equipment", *(["floor"] if floor else [])]
    why = {room.name: reasons[n % len(reasons)] for n, room in enumerate(order[1:])}
    target = order[0].name
    if feasible:
        why[target] = ""
    else:
        why[target] = rng.choice(reasons)
    rooms = [_failing(rng, room, wanted, why[room.name]) for room in draft]
    rooms.sort(key=lambda room: (FLOORS.index(room.floor), room.name))
    house = make_house(rng, level, tuple(rooms))
    wanted = replace(wanted, day=rng.choice([one.day for one in rules.to_come(house, 0 if level == "easy" else 1)]))
    house = _with_time(rng, house, wanted, {name: reason == "taken" for name, reason in why.items()})
    fitting = [room.name for room in house.rooms if wanted.met_by(room, house)]
    if fitting != ([target] if feasible else []):
        return None
    participants = seats if level != "hard" else seats - rng.choice((2, 3, 4))
    title, organiser = f"{rng.choice(TOPICS)} {rng.choice(FORMS)}", rng.choice(house.people)
    notes = rng.choice(NOTES) if level == "hard" else ""
    new = Booking(10**6, title, organiser, participants, target, wanted.day, start, length, notes)
    after = rules.with_bookings(house, [new]) if feasible else house
    return Problem(
        goal=_goal(wanted, new),
        site=Calendar(house),
        expected=record_of(after.bookings),
        gold=_Gold(house, new, feasible),
        feasible=feasible,
    )


def _goal(wanted: Wanted, new: Booking) -> str:
    """Return the task as text."""
    items = " and ".join(f"a {item}" for item in wanted.equipment)
    floor = f" The room must be on the {wanted.floor.lower()}." if wanted.floor else ""
    notes = f'the notes "{new.notes}"' if new.notes else "no notes"
    return (
        f"Book a room with at least {wanted.seats} seats and with {items} on {long(new.day)} from {clock(new.start)} to "
        f'{clock(new.end)}.{floor} The title is "{new.title}", the organiser is {new.organiser}, there are '
        f"{new.participants} participants, and there are {notes}. Change no other booking."
    )


class _Gold:
    """Looks at the day, books the room; where none meets the conditions, looks at the day and at the rooms."""

    def __init__(self, house: House, new: Booking, feasible: bool) -> None:
        self._house, self._new, self._feasible = house, new, feasible

    def __call__(self, view: View) -> Action:
        new = self._new
        if not self._feasible:
            return self._look(view)
        if f'"{new.title}" is booked.' in view.text:
            return say("Done.")
        if view.path.startswith("/new"):
            wanted = {
                "Title": new.title,
                "Organiser": new.organiser,
                "Participants": str(new.participants),
                "Room": new.room,
                "Day": long(new.day),
                "Start": clock(new.start),
                "Length": f"{new.length} minutes",
            }
            if new.notes:
                wanted["Notes"] = new.notes
            return fill_form(view, wanted) or view.click("button", "Book")
        return to_day(view, self._house, new.day) or view.click("link", "New booking")

    def _look(self, view: View) -> Action:
        """Open the day from the table of rooms, so that seats and equipment have also been seen."""
        return to_day(view, self._house, self._new.day) or give_up("No room meets all conditions at that time.")


def make(rng: random.Random, level: Level, feasible: bool) -> Problem:
    """Return a time and conditions that exactly one room meets; where it is not feasible, none does."""
    while True:
        if (problem := _attempt(rng, level, feasible)) is not None:
            return problem


BOOK = Kind("calendar/book", "constraints", make, infeasible=True)
