"""`calendar/find`: find the organizer, time or room of a booking, or the first free time of a room."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date

from ...view import View, say
from ..kind import Action, Kind, Level, Problem
from . import rules
from .data import Booking, House, make_house, record_of
from .days import clock, long, monday, working_week
from .site import Calendar
from .steps import to_booking, to_day, to_week

WEEKS_AHEAD: dict[Level, int] = {"easy": 0, "medium": 1, "hard": 1}


def _problem(house: House, goal: str, answer: str, way: Callable[[View], Action | None]) -> Problem:
    """Nothing of the record is to change: the way leads to the page that shows the answer."""
    return Problem(
        goal=goal,
        site=Calendar(house),
        expected=record_of(house.bookings),
        gold=lambda view: way(view) or say(answer),
        answer=answer,
    )


def _organiser(rng: random.Random, house: House, level: Level) -> Problem | None:
    target = rng.choice(rules.to_come(house, WEEKS_AHEAD[level]))

    def meant(one: Booking) -> bool:
        return (one.title, one.room, one.day) == (target.title, target.room, target.day)

    if level != "easy":
        house = rules.echo(
            rng, house, target.title, 4, lambda one: (one.room == target.room) != (one.day == target.day)
        )
    if rules.count_of(house, meant) != 1:
        return None
    goal = (
        f'Who organises the booking "{target.title}" in {target.room} on {long(target.day)}? '
        "Answer with the full name only."
    )
    return _problem(house, goal, target.organiser, lambda view: to_booking(view, house, target, by_day=False))


def _time(rng: random.Random, house: House, level: Level) -> Problem | None:
    target = rng.choice(rules.to_come(house, WEEKS_AHEAD[level]))
    week = monday(target.day)

    def meant(one: Booking) -> bool:
        return (one.title, one.room, monday(one.day)) == (target.title, target.room, week)

    if level != "easy":
        house = rules.echo(
            rng, house, target.title, 4, lambda one: (one.room == target.room) != (monday(one.day) == week)
        )
    if rules.count_of(house, meant) != 1:
        return None
    goal = (
        f'When does the booking "{target.title}" in {target.room} in the week of {long(week)} begin? '
        "Answer with its day and time only, in the form 2031-12-30 09:00."
    )
    answer = f"{target.day.isoformat()} {clock(target.start)}"
    return _problem(house, goal, answer, lambda view: to_week(view, house, target.room, week))


def _room(rng: random.Random, house: House, level: Level) -> Problem | None:
    target = rng.choice(rules.to_come(house, WEEKS_AHEAD[level]))

    def meant(one: Booking) -> bool:
        return (one.title, one.day, one.start) == (target.title, target.day, target.start)

    if level != "easy":
        house = rules.echo(
            rng, house, target.title, 4, lambda one: (one.start == target.start) != (one.day == target.day)
        )
    if rules.count_of(house, meant) != 1:
        return None
    goal = (
        f'In which room is the booking "{target.title}" on {long(target.day)} that begins at {clock(target.start)}? '
        "Answer with the room's name only."
    )
    return _problem(house, goal, target.room, lambda view: to_day(view, house, target.day))


def _whose(rng: random.Random, house: House, level: Level) -> Problem | None:
    """Return the week has several bookings of the title; only the day pages and the bookings' own say whose they are."""
    target = rng.choice(rules.to_come(house, WEEKS_AHEAD[level]))
    week = monday(target.day)

    def meant(one: Booking) -> bool:
        return (one.title, one.organiser, monday(one.day)) == (target.title, target.organiser, week)

    def near(one: Booking) -> bool:
        return monday(one.day) == week and one.organiser != target.organiser and one.room != target.room

    house = rules.echo(rng, house, target.title, 3, near)
    house = rules.echo(
        rng, house, target.title, 2, lambda one: monday(one.day) != week and one.organiser == target.organiser
    )
    several = rules.count_of(house, lambda one: one.title == target.title and monday(one.day) == week) > 2
    if rules.count_of(house, meant) != 1 or not several:
        return None
    goal = (
        f'In the week of {long(week)} there are several bookings called "{target.title}". In which room is the one '
        f"that {target.organiser} organises? Answer with the room's name only."
    )
    return _problem(house, goal, target.room, lambda view: to_day(view, house, target.day))


def _slot(rng: random.Random, house: House, level: Level) -> Problem | None:
    """Return the first free time of a day: after a shorter gap where there is one, never right at the opening."""
    room, day = rng.choice(house.rooms), rng.choice([one.day for one in rules.to_come(house, WEEKS_AHEAD[level])])
    length = rng.choice((60, 90, 120))
    start, any_gap = rules.first_free(house, room.name, day, length), rules.first_free(house, room.name, day, 30)
    if start is None or start == house.opens or start == any_gap:
        return None
    goal = (
        f"When does the first free time of at least {length} minutes begin in {room.name} on {long(day)}? The house is "
        f"open from {clock(house.opens)} to {clock(house.closes)}. Answer with the time only, in the form 09:00."
    )
    return _problem(house, goal, clock(start), lambda view: to_day(view, house, day))


def _slot_of_week(rng: random.Random, house: House, _level: Level) -> Problem | None:
    """Return the first free time of a week that is on none of its first days."""
    room, first = rng.choice(house.rooms), rng.choice([week for week in house.mondays if week > house.today])
    length = rng.choice((120, 150, 180, 210, 240))
    found: list[tuple[date, int]] = []
    for day in working_week(first):
        start = rules.first_free(house, room.name, day, length)
        if start is not None:
            found.append((day, start))
    if not found or found[0][0] == first:
        return None
    day, start = found[0]
    goal = (
        f"In the week of {long(first)}, when does the first free time of at least {length} minutes begin in "
        f"{room.name}? It has to be on one day, and the house is open from {clock(house.opens)} to "
        f"{clock(house.closes)}. Answer with its day and time only, in the form 2031-12-30 09:00."
    )
    answer = f"{day.isoformat()} {clock(start)}"
    return _problem(house, goal, answer, lambda view: to_week(view, house, room.name, first))


QUESTIONS: dict[Level, tuple[Callable[[random.Random, House, Level], Problem | None], ...]] = {
    "easy": (_organiser, _time, _room),
    "medium": (_organiser, _time, _room, _slot),
    "hard": (_whose, _slot, _slot_of_week),
}


def make(rng: random.Random, level: Level, _feasible: bool) -> Problem:
    """Return a question with one answer."""
    ask = rng.choice(QUESTIONS[level])
    while True:
        if (problem := ask(rng, make_house(rng, level), level)) is not None:
            return problem


FIND = Kind("calendar/find", "find", make)
