"""The calendar's pages and forms, asked for without a browser."""

from __future__ import annotations

import html
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from environments.web.sites.calendar import days
from environments.web.sites.calendar.data import Booking, House, make_house, record_of
from environments.web.sites.calendar.site import Calendar
from environments.web.sites.site import Request
from tests.environments.web.sites.site_requests import get, post


@pytest.fixture
def house() -> House:
    return make_house(random.Random(5), "medium")


@pytest.fixture
def site(house: House) -> Calendar:
    return Calendar(house)


def coming(house: House) -> Booking:
    """A booking of after today that does not begin with the house's opening, so that it can go elsewhere."""
    return next(one for one in house.bookings if one.day > house.today and one.length == 60)


def fields(house: House, booking: Booking, **changed: str) -> dict[str, str]:
    return {
        "title": booking.title,
        "organiser": booking.organiser,
        "participants": str(booking.participants),
        "room": house.room(booking.room).slug,
        "day": booking.day.isoformat(),
        "start": days.clock(booking.start),
        "length": str(booking.length),
        "notes": booking.notes,
        **changed,
    }


def a_free_place(house: House) -> dict[str, str]:
    """A new booking's fields that the site accepts."""
    day, room = house.days_to_come[1], house.rooms[0]
    for start in range(house.opens, house.closes, 30):
        held = [one for one in house.bookings if one.room == room.name and one.day == day]
        if not any(one.overlaps(start, 30) for one in held):
            return {
                "title": "Owl watching",
                "organiser": house.people[0],
                "participants": "2",
                "room": room.slug,
                "day": day.isoformat(),
                "start": days.clock(start),
                "length": "30",
                "notes": "",
            }
    raise AssertionError("the day is full")


def test_the_first_page_has_every_room_with_what_it_offers(house: House, site: Calendar) -> None:
    page = get(site, "/")
    assert page.status == 200
    for room in house.rooms:
        assert f'<a href="/rooms/{room.slug}">{room.name}</a>' in page.html
    assert days.long(house.today) in page.html


def test_a_week_has_all_its_bookings_of_the_room_and_links_to_its_neighbours(house: House, site: Calendar) -> None:
    room, first = house.rooms[2], house.mondays[1]
    page = get(site, f"/rooms/{room.slug}", week=first.isoformat())
    for booking in house.bookings:
        shown = booking.room == room.name and days.monday(booking.day) == first
        assert (f'"/bookings/{booking.number}"' in page.html) == shown
    assert f"?week={house.mondays[0].isoformat()}" in page.html
    assert f"?week={house.mondays[2].isoformat()}" in page.html


def test_the_first_and_last_week_lead_no_further(house: House, site: Calendar) -> None:
    path = f"/rooms/{house.rooms[0].slug}"
    assert "Previous week" not in get(site, path, week=house.mondays[0].isoformat()).html
    assert "Next week" not in get(site, path, week=house.mondays[-1].isoformat()).html


def test_a_booking_that_lasts_says_so_in_each_later_hour(house: House, site: Calendar) -> None:
    long = next(one for one in house.bookings if one.length == 120 and one.start % 60 == 0)
    slug = house.room(long.room).slug
    page = get(site, f"/rooms/{slug}", week=days.monday(long.day).isoformat()).html
    assert f"until {days.clock(long.end)}" in page


def test_a_day_has_all_its_bookings_with_their_organisers(house: House, site: Calendar) -> None:
    day = house.days[7]
    page = get(site, f"/days/{day.isoformat()}").html
    for booking in house.bookings:
        assert (f'"/bookings/{booking.number}"' in page) == (booking.day == day)
    for booking in (one for one in house.bookings if one.day == day):
        assert f'{booking.times} {booking.title}</a> <span class="muted">{booking.organiser}' in page


def test_friday_is_followed_by_monday(house: House, site: Calendar) -> None:
    friday, monday = house.days[4], house.days[5]
    assert monday - friday == timedelta(days=3)
    assert f'<a href="/days/{monday.isoformat()}">Next day</a>' in get(site, f"/days/{friday.isoformat()}").html
    assert "Previous day" not in get(site, f"/days/{house.days[0].isoformat()}").html


def test_a_new_booking_is_kept_and_its_page_says_so_once(house: House, site: Calendar) -> None:
    before = site.record()["bookings"]
    wanted = a_free_place(house)
    page = post(site, "/new", **wanted)
    assert page.location is not None
    assert "&#34;Owl watching&#34; is booked." in get(site, page.location).html
    assert "is booked" not in get(site, page.location).html
    [new] = [one for one in site.record()["bookings"] if one not in before]
    assert new == {
        "title": "Owl watching",
        "organiser": house.people[0],
        "participants": 2,
        "room": house.rooms[0].name,
        "day": wanted["day"],
        "start": wanted["start"],
        "length": 30,
        "notes": "",
    }


def test_the_new_form_begins_with_the_room_that_it_was_opened_from(house: House, site: Calendar) -> None:
    slug = house.rooms[1].slug
    assert f'<option value="{slug}" selected>' in get(site, "/new", room=slug).html
    assert "selected" not in get(site, "/new", room='"><script>').html


WRONG = [
    ("title", "", "Please give the booking a title."),
    ("title", "   ", "Please give the booking a title."),
    ("title", "x" * 61, "A title has at most 60 characters"),
    ("title", "a\x07b", "all of them printable"),
    ("organiser", "", "Please give the full name of an organiser"),
    ("organiser", "Nobody", "Please give the full name of an organiser"),
    ("participants", "", "Please give the number of participants"),
    ("participants", "0", "Please give the number of participants"),
    ("participants", "-2", "Please give the number of participants"),
    ("participants", "2.5", "Please give the number of participants"),
    ("participants", "²", "Please give the number of participants"),
    ("participants", "9" * 5000, "Please give the number of participants"),
    ("participants", "999", "999 participants do not fit."),
    ("room", "", "Please choose a room."),
    ("room", "cellar", "Please choose a room."),
    ("day", "", "Please choose a day from today on."),
    ("day", "2031-02-30", "Please choose a day from today on."),
    ("start", "", "Please choose when the booking starts."),
    ("start", "09:10", "Please choose when the booking starts."),
    ("start", "23:00", "Please choose when the booking starts."),
    ("length", "", "Please choose how long the booking is."),
    ("length", "45", "Please choose how long the booking is."),
    ("notes", "n" * 301, "Notes have at most 300 characters."),
]


@pytest.mark.parametrize(
    ("name", "value", "message"), WRONG, ids=[f"{name}-{n}" for n, (name, _, _) in enumerate(WRONG)]
)
def test_invalid_field_changes_nothing_and_is_reported(
    house: House, site: Calendar, name: str, value: str, message: str
) -> None:
    before = site.record()
    page = post(site, "/new", **{**a_free_place(house), name: value})
    assert page.status == 422
    assert message in html.unescape(page.html)
    assert 'role="alert"' in page.html
    assert site.record() == before


def test_what_was_typed_is_still_there_after_a_refusal(house: House, site: Calendar) -> None:
    page = post(
        site, "/new", **{**a_free_place(house), "title": '<b>"tea"</b>', "organiser": "", "notes": "</textarea>"}
    )
    assert 'value="&lt;b&gt;&#34;tea&#34;&lt;/b&gt;"' in page.html
    assert "&lt;/textarea&gt;" in page.html


def test_a_past_day_is_refused(house: House, site: Calendar) -> None:
    page = post(site, "/new", **{**a_free_place(house), "day": house.days[0].isoformat()})
    assert "Please choose a day from today on." in page.html


def test_a_booking_ends_before_the_house_closes(house: House, site: Calendar) -> None:
    page = post(site, "/new", **{**a_free_place(house), "start": days.clock(house.closes - 30), "length": "60"})
    assert f"The house closes at {days.clock(house.closes)}" in page.html


@pytest.mark.parametrize("shift", [-30, 0, 30])
def test_a_time_that_is_partly_taken_is_refused(house: House, site: Calendar, shift: int) -> None:
    taken = next(
        one
        for one in house.bookings
        if one.day > house.today and one.length == 60 and house.opens < one.start < 15 * 60
    )
    start = days.clock(taken.start + shift)
    wanted = fields(house, taken, title="Owl watching", start=start, participants="1")
    page = post(site, "/new", **wanted)
    assert page.status == 422
    assert f"{taken.room} is taken on {days.long(taken.day)}" in page.html


def test_bookings_may_follow_each_other_at_once(house: House) -> None:
    taken = coming(house)
    only = Calendar(replace(house, bookings=(taken,)))
    for start, length in ((taken.start - 30, "30"), (taken.end, "30")):
        if house.opens <= start <= house.closes - 30:
            page = post(only, "/new", **fields(house, taken, start=days.clock(start), length=length))
            assert page.location is not None


def test_the_organiser_is_found_whatever_the_case(house: House, site: Calendar) -> None:
    wanted = {**a_free_place(house), "organiser": f"  {house.people[0].upper().replace(' ', '   ')} "}
    assert post(site, "/new", **wanted).location is not None
    assert house.people[0] in {one["organiser"] for one in site.record()["bookings"] if one["title"] == "Owl watching"}


def test_a_booking_changes_and_may_overlap_its_own_old_time(house: House) -> None:
    booking = coming(house)
    only = Calendar(replace(house, bookings=(booking,)))
    later = booking.start + 30 if booking.end + 30 <= house.closes else booking.start - 30
    page = post(only, f"/bookings/{booking.number}/change", **fields(house, booking, start=days.clock(later)))
    assert page.location == f"/bookings/{booking.number}"
    assert "The changes are saved." in get(only, page.location).html
    [record] = only.record()["bookings"]
    assert record == {**record_of([booking])["bookings"][0], "start": days.clock(later)}


def test_saving_an_unchanged_booking_changes_nothing(house: House, site: Calendar) -> None:
    before = site.record()
    for booking in (one for one in house.bookings if one.day >= house.today):
        page = post(site, f"/bookings/{booking.number}/change", **fields(house, booking))
        assert page.location == f"/bookings/{booking.number}"
    assert "Nothing was changed." in get(site, page.location or "").html
    assert site.record() == before


def test_notes_keep_their_lines(house: House, site: Calendar) -> None:
    booking = coming(house)
    post(site, f"/bookings/{booking.number}/change", **fields(house, booking, notes="one\r\ntwo"))
    assert "one\ntwo" in {one["notes"] for one in site.record()["bookings"]}
    assert "one\ntwo</textarea>" in get(site, f"/bookings/{booking.number}/change").html


def test_cancelling_asks_first_and_then_shows_the_day(house: House, site: Calendar) -> None:
    booking = coming(house)
    before = site.record()["bookings"]
    assert "Yes, cancel it" in get(site, f"/bookings/{booking.number}/cancel").html
    assert site.record()["bookings"] == before
    page = post(site, f"/bookings/{booking.number}/cancel")
    assert page.location == f"/days/{booking.day.isoformat()}"
    assert "is cancelled." in get(site, page.location).html
    left = record_of(one for one in house.bookings if one != booking)
    assert site.record() == left
    assert post(site, f"/bookings/{booking.number}/cancel").status == 404
    assert site.record() == left


def test_what_is_over_stays_as_it_was(house: House, site: Calendar) -> None:
    past = next(one for one in house.bookings if one.day < house.today)
    before = site.record()
    page = get(site, f"/bookings/{past.number}").html
    assert "cannot be changed" in page
    assert "Change booking" not in page
    for way in ("change", "cancel"):
        for method in ("GET", "POST"):
            answer = site.handle(Request(method, f"/bookings/{past.number}/{way}"))
            assert answer.location == f"/bookings/{past.number}"
            assert "stays as it was" in get(site, answer.location).html
    assert site.record() == before


@pytest.mark.parametrize("week", ["", "x", "2031-13-01", "1999-01-04"])
def test_a_week_that_the_calendar_does_not_cover_is_unknown(house: House, site: Calendar, week: str) -> None:
    assert get(site, f"/rooms/{house.rooms[0].slug}", week=week).status == 404


def test_pages_that_only_show_take_no_form(house: House, site: Calendar) -> None:
    for path in ("/", f"/rooms/{house.rooms[0].slug}", f"/days/{house.today}", f"/bookings/{house.bookings[0].number}"):
        assert post(site, path).status == 404
