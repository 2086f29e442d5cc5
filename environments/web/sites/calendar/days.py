"""Formats days and times of day for the site and the goals. A time of day is the number of minutes since midnight."""

from __future__ import annotations

from datetime import date, timedelta

GRID = 30
"""Bookings begin and end at multiples of this number of minutes."""
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def long(day: date) -> str:
    """Such as `Tuesday 18 March 2031`."""
    return f"{WEEKDAYS[day.weekday()]} {day.day} {MONTHS[day.month - 1]} {day.year}"


def short(day: date) -> str:
    """Such as `Tue 18 Mar`."""
    return f"{WEEKDAYS[day.weekday()][:3]} {day.day} {MONTHS[day.month - 1][:3]}"


def clock(minutes: int) -> str:
    """Such as `09:30`."""
    return f"{minutes // 60:02}:{minutes % 60:02}"


def monday(day: date) -> date:
    """Return the Monday of the day's week."""
    return day - timedelta(days=day.weekday())


def working_week(first: date) -> tuple[date, ...]:
    """Monday to Friday of the week that begins with this Monday."""
    return tuple(first + timedelta(days=n) for n in range(5))
