"""The calendar's pages and forms."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

from ..site import Json, Page, Pages, Request
from . import days
from .data import Booking, House, Room, record_of
from .form import Fields, Refused, read, starts

PAGES = Pages(Path(__file__).parent / "templates")
"""All calendars share these pages, so that a process compiles each template only once."""


class Calendar:
    """The calendar of one house. What was booked, changed and cancelled is in its record."""

    origin = "https://calendar.test"

    def __init__(self, house: House) -> None:
        self._house = house
        self._bookings = {booking.number: booking for booking in house.bookings}
        self._next = max(self._bookings, default=99) + 1
        self._notice = ""

    def record(self) -> dict[str, Json]:
        """Return all bookings."""
        return record_of(self._bookings.values())

    def handle(self, request: Request) -> Page:
        """Return the requested page."""
        parts = [part for part in request.path.split("/") if part]
        post = request.method == "POST"
        if request.method not in ("GET", "POST"):
            return self._missing()
        match parts:
            case [] if not post:
                return self._home()
            case ["rooms", slug] if not post:
                return self._week(slug, request.query.get("week"))
            case ["days", iso] if not post:
                return self._day(iso)
            case ["new"]:
                return self._add(request) if post else self._new(request)
            case ["bookings", digits, *rest]:
                booking = self._booking(digits)
                if booking is None:
                    return self._missing()
                match rest:
                    case [] if not post:
                        return self._one(booking)
                    case ["change"]:
                        return self._change(booking, request)
                    case ["cancel"]:
                        return self._cancel(booking, post)
        return self._missing()

    def _booking(self, digits: str) -> Booking | None:
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 6):
            return None
        return self._bookings.get(int(digits))

    def _render(self, template: str, title: str, problem: str = "", status: int = 200, **values: Any) -> Page:
        """Return a page with the notice that the last change left, which is shown once."""
        notice, self._notice = self._notice, ""
        return PAGES.render(
            template,
            status,
            title=title,
            site_name=self._house.name,
            house=self._house,
            notice=notice,
            problem=problem,
            clock=days.clock,
            long=days.long,
            short=days.short,
            **values,
        )

    def _missing(self) -> Page:
        return self._render("missing.html", "Page not found", status=404)

    def _of(self, room: Room, day: date) -> list[Booking]:
        found = [held for held in self._bookings.values() if held.room == room.name and held.day == day]
        return sorted(found, key=lambda held: held.start)

    def _home(self) -> Page:
        today = {room.name: len(self._of(room, self._house.today)) for room in self._house.rooms}
        return self._render("home.html", "Rooms", today=today)

    def _week(self, slug: str, week: str | None) -> Page:
        room = next((room for room in self._house.rooms if room.slug == slug), None)
        shown = days.monday(self._house.today).isoformat() if week is None else week
        first = next((first for first in self._house.mondays if first.isoformat() == shown), None)
        if room is None or first is None:
            return self._missing()
        week_days = days.working_week(first)
        held = {day: self._of(room, day) for day in week_days}
        hours = [
            (hour, [(day, [one for one in held[day] if one.overlaps(hour, 60)]) for day in week_days])
            for hour in range(self._house.opens, self._house.closes, 60)
        ]
        return self._render(
            "room.html",
            room.name,
            room=room,
            first=first,
            days=week_days,
            hours=hours,
            earlier=_within(first - timedelta(weeks=1), self._house.mondays),
            later=_within(first + timedelta(weeks=1), self._house.mondays),
        )

    def _day(self, iso: str) -> Page:
        all_days = self._house.days
        day = next((day for day in all_days if day.isoformat() == iso), None)
        if day is None:
            return self._missing()
        at = all_days.index(day)
        return self._render(
            "day.html",
            days.long(day),
            day=day,
            rooms=[(room, self._of(room, day)) for room in self._house.rooms],
            earlier=all_days[at - 1] if at else None,
            later=all_days[at + 1] if at + 1 < len(all_days) else None,
        )

    def _one(self, booking: Booking) -> Page:
        return self._render(
            "booking.html",
            booking.title,
            booking=booking,
            room=self._house.room(booking.room),
            week=days.monday(booking.day),
            over=booking.day < self._house.today,
        )

    def _form(self, title: str, fields: Fields, number: int | None, problem: str = "") -> Page:
        return self._render(
            "form.html",
            title,
            problem=problem,
            status=422 if problem else 200,
            fields=fields,
            number=number,
            starts=starts(self._house),
        )

    def _new(self, request: Request) -> Page:
        return self._form("New booking", Fields(room=request.query.get("room", "")), None)

    def _add(self, request: Request) -> Page:
        fields = Fields.typed(request)
        try:
            booking = read(fields, self._house, self._bookings.values(), self._next)
        except Refused as why:
            return self._form("New booking", fields, None, str(why))
        self._bookings[booking.number] = booking
        self._next += 1
        self._notice = f'"{booking.title}" is booked.'
        return Page(location=f"/bookings/{booking.number}")

    def _change(self, booking: Booking, request: Request) -> Page:
        page = f"/bookings/{booking.number}"
        if booking.day < self._house.today:
            self._notice = "This booking is over and stays as it was."
            return Page(location=page)
        if request.method != "POST":
            return self._form("Change booking", Fields.of(booking, self._house), booking.number)
        fields = Fields.typed(request)
        try:
            changed = read(fields, self._house, self._bookings.values(), booking.number)
        except Refused as why:
            return self._form("Change booking", fields, booking.number, str(why))
        self._notice = "Nothing was changed." if changed == booking else "The changes are saved."
        self._bookings[booking.number] = changed
        return Page(location=page)

    def _cancel(self, booking: Booking, post: bool) -> Page:
        if booking.day < self._house.today:
            self._notice = "This booking is over and stays as it was."
            return Page(location=f"/bookings/{booking.number}")
        if not post:
            return self._render("cancel.html", "Cancel booking", booking=booking)
        del self._bookings[booking.number]
        self._notice = f'"{booking.title}" in {booking.room}, {booking.times}, is cancelled.'
        return Page(location=f"/days/{booking.day.isoformat()}")


def _within(day: date, among: tuple[date, ...]) -> date | None:
    return day if day in among else None
