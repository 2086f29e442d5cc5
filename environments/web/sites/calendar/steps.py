"""Steps to a page of the calendar, for several scripted solvers. Each returns None if the page is already open."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from ...view import View
from ..kind import Action
from .data import Booking, House
from .days import long, monday, short, working_week

TEXT_FIELDS = ("Title", "Organiser", "Participants", "Notes")


def to_rooms(view: View) -> Action | None:
    """To the table of all rooms."""
    return None if view.path == "/" else view.click("link", "Rooms")


def to_week(view: View, house: House, room: str, first: date) -> Action | None:
    """To the room's page of the week that begins on that day."""
    if view.path.startswith("/rooms/") and view.has("heading", room):
        shown = next(week for week in house.mondays if view.has("heading", f"Week of {long(week)}"))
        if shown == first:
            return None
        return view.click("link", "Next week" if shown < first else "Previous week")
    return to_rooms(view) or view.click("link", room)


def to_day(view: View, house: House, day: date) -> Action | None:
    """To the page of all rooms on a day: from a neighbouring day of the week, or by the week of the first room."""
    if view.path.startswith("/days/"):
        if view.has("heading", long(day)):
            return None
        shown = [one for one in working_week(monday(day)) if view.has("heading", long(one))]
        if shown:
            return view.click("link", "Next day" if shown[0] < day else "Previous day")
    return to_week(view, house, house.rooms[0].name, monday(day)) or view.click("link", short(day))


def to_booking(view: View, house: House, booking: Booking, by_day: bool) -> Action | None:
    """To the booking's own page, by the page of its day or by the week of its room."""
    if view.path == f"/bookings/{booking.number}":
        return None
    if by_day:
        link = f"{booking.times} {booking.title}"
        return to_day(view, house, booking.day) or view.click("link", link, view.group(booking.room))
    week = to_week(view, house, booking.room, monday(booking.day))
    return week or view.click("link", f"{short(booking.day)[:3]} {booking.times} {booking.title}")


def fill_form(view: View, wanted: Mapping[str, str]) -> Action | None:
    """Return the next field of the form, by its label, that does not show what is wanted."""
    for label, value in wanted.items():
        if label in TEXT_FIELDS:
            if view.find("textbox", label).value != value:
                return view.fill(label, value)
        elif view.selected(label) != value:
            return view.select(label, value)
    return None
