"""`calendar/cancel`: cancel all bookings of a person on one day, or on the hard level in a part of the day."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from ...view import View, say
from ..kind import Action, Kind, Level, Problem
from . import rules
from .data import Booking, House, make_house, record_of
from .days import clock, long
from .site import Calendar
from .steps import to_booking, to_day

NOON = 12 * 60
COUNT: dict[Level, int] = {"easy": 2, "medium": 3, "hard": 3}


def _assigned(rng: random.Random, house: House, bookings: Sequence[Booking], person: str, his: set[int]) -> House:
    """Return the house in which these bookings are the person's where the set has them, and someone else's where not."""
    others = [other for other in house.people if other != person]
    alike = [other for other in others if set(other.split()) & set(person.split())] or others
    changed = []
    for booking in bookings:
        if booking.number in his:
            changed.append(replace(booking, organiser=person))
        elif booking.organiser == person or rng.random() < 0.3:
            changed.append(replace(booking, organiser=rng.choice(alike)))
    return rules.with_bookings(house, changed)


def _attempt(rng: random.Random, level: Level) -> Problem | None:
    house = make_house(rng, level)
    day = rng.choice([one.day for one in rules.to_come(house, 0 if level == "easy" else 1)])
    person = rng.choice(house.people)
    early = rng.random() < 0.5

    def asked(one: Booking) -> bool:
        """It is in the part of the day that the goal is about."""
        return level != "hard" or (one.start < NOON) == early

    that_day = [one for one in house.bookings if one.day == day]
    inside, outside = [one for one in that_day if asked(one)], [one for one in that_day if not asked(one)]
    if len(inside) < COUNT[level] + 1 or (level == "hard" and len(outside) < 2):
        return None
    doomed = rng.sample(inside, COUNT[level])
    kept = rng.sample(outside, 2) if level == "hard" else []
    house = _assigned(rng, house, that_day, person, {one.number for one in (*doomed, *kept)})
    cancelled = [one for one in house.bookings if one.day == day and one.organiser == person and asked(one)]
    if len(cancelled) != COUNT[level]:
        return None
    part = ""
    if level == "hard":
        part = f" and that begin before {clock(NOON)}" if early else f" and that begin at {clock(NOON)} or later"
    goal = f"Cancel all bookings that {person} organises on {long(day)}{part}. Cancel and change no other booking."

    def gold(view: View) -> Action:
        for one in cancelled:
            if view.path == f"/bookings/{one.number}":
                return view.click("link", "Cancel booking")
            if view.path == f"/bookings/{one.number}/cancel":
                return view.click("button", "Yes, cancel it")
        if (step := to_day(view, house, day)) is not None:
            return step
        for one in cancelled:
            if view.has("link", f"{one.times} {one.title}", view.group(one.room)):
                return to_booking(view, house, one, by_day=True) or say("Done.")
        return say("Done.")

    after = rules.with_bookings(house, [], [one.number for one in cancelled])
    return Problem(goal, Calendar(house), record_of(after.bookings), gold)


def make(rng: random.Random, level: Level, _feasible: bool) -> Problem:
    """Return a person with two or three bookings to cancel among others of the day."""
    while True:
        if (problem := _attempt(rng, level)) is not None:
            return problem


CANCEL = Kind("calendar/cancel", "change", make)
