"""Queries that several kinds of tasks share: which times are free, and which booking matches a description."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date
from typing import TypeVar

from .data import Booking, House
from .days import GRID, monday

T = TypeVar("T")


def pick(rng: random.Random, items: Iterable[T], fits: Callable[[T], bool]) -> T | None:
    """One of the items that fit, each as likely as another."""
    shuffled = list(items)
    rng.shuffle(shuffled)
    return next((item for item in shuffled if fits(item)), None)


def held(house: House, room: str, day: date) -> list[Booking]:
    """Return the room's bookings of the day in order."""
    return house.by_room_and_day.get((room, day), [])


def free(house: House, room: str, day: date, start: int, length: int, but: int | None = None) -> bool:
    """Return the house is open and nothing is in the way, apart from the booking of the number `but`."""
    open_then = house.opens <= start and start + length <= house.closes
    return open_then and all(one.number == but or not one.overlaps(start, length) for one in held(house, room, day))


def first_free(house: House, room: str, day: date, length: int) -> int | None:
    """When the first time of that length begins in which the room is free."""
    return next((at for at in range(house.opens, house.closes, GRID) if free(house, room, day, at, length)), None)


def to_come(house: House, weeks_ahead: int = 0) -> list[Booking]:
    """Return the bookings after today, starting a number of weeks after today's week."""
    first = house.mondays[house.mondays.index(monday(house.today)) + weeks_ahead]
    return [booking for booking in house.bookings if booking.day > house.today and booking.day >= first]


def with_bookings(house: House, changed: Iterable[Booking], removed: Iterable[int] = ()) -> House:
    """Return the house with some bookings in another form (or new ones), and without the removed numbers."""
    all_of_them = {booking.number: booking for booking in house.bookings}
    all_of_them.update({booking.number: booking for booking in changed})
    for number in removed:
        del all_of_them[number]
    return replace(house, bookings=tuple(all_of_them.values()))


def echo(rng: random.Random, house: House, title: str, count: int, where: Callable[[Booking], bool]) -> House:
    """Return the house with this number of distractors: other bookings with the same title."""
    others = [booking for booking in house.bookings if where(booking) and booking.title != title]
    chosen = rng.sample(others, min(count, len(others)))
    return with_bookings(house, [replace(booking, title=title) for booking in chosen])


def count_of(house: House, fits: Callable[[Booking], bool]) -> int:
    """Return how many bookings fit a description."""
    return sum(1 for booking in house.bookings if fits(booking))
