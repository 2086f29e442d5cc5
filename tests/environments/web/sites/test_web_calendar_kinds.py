"""The calendar's tasks: made again alike, one right solution (found here from goal and pages), and it gives the record."""

from __future__ import annotations

import html
import re
from datetime import date, datetime, timedelta
from typing import Any

import pytest

from environments.web.sites.calendar.kinds import KINDS
from environments.web.sites.kind import LEVELS, Level, Problem
from tests.environments.web.sites.site_requests import get, post, problems_of

DAY = r"\w+day (\d+) (\w+) (\d{4})"


def iso(found: tuple[str, ...]) -> str:
    return datetime.strptime(" ".join(found[-3:]), "%d %B %Y").date().isoformat()


def minutes(clock: str) -> int:
    return int(clock[:2]) * 60 + int(clock[3:])


def page(problem: Problem, path: str, **query: str) -> str:
    return html.unescape(get(problem.site, path, **query).html)


def rooms(problem: Problem) -> dict[str, dict[str, Any]]:
    """Slug, floor, seats and equipment of each room, as the first page shows them."""
    row = r'<a href="/rooms/([^"]+)">([^<]+)</a></td>\s*<td>([^<]+)</td>\s*<td class="number">(\d+)</td>\s*<td>([^<]+)</td>'
    return {
        name: {"slug": slug, "floor": floor, "seats": int(seats), "equipment": equipment.split(", ")}
        for slug, name, floor, seats, equipment in re.findall(row, page(problem, "/"))
    }


def week_of(day: str) -> str:
    found = date.fromisoformat(day)
    return (found - timedelta(days=found.weekday())).isoformat()


def is_free(bookings: list[dict[str, Any]], room: str, day: str, start: int, length: int) -> bool:
    return not any(
        one["room"] == room
        and one["day"] == day
        and minutes(one["start"]) < start + length
        and start < minutes(one["start"]) + one["length"]
        for one in bookings
    )


def answers(problem: Problem) -> set[str]:
    """All answers to the goal of a find task, found from the record."""
    goal, bookings = problem.goal, problem.site.record()["bookings"]
    if found := re.match(rf'Who organises the booking "(.+)" in (.+) on {DAY}\?', goal):
        key = (found[1], found[2], iso(found.groups()))
        return {one["organiser"] for one in bookings if (one["title"], one["room"], one["day"]) == key}
    if found := re.match(rf'When does the booking "(.+)" in (.+) in the week of {DAY} begin\?', goal):
        key = (found[1], found[2], iso(found.groups()))
        meant = [one for one in bookings if (one["title"], one["room"], week_of(one["day"])) == key]
        return {f"{one['day']} {one['start']}" for one in meant}
    if found := re.match(rf'In which room is the booking "(.+)" on {DAY} that begins at (.+)\?', goal):
        key = (found[1], iso(found.groups()[:-1]), found.groups()[-1])
        return {one["room"] for one in bookings if (one["title"], one["day"], one["start"]) == key}
    if found := re.match(rf'In the week of {DAY} there .* called "(.+)"\. In .* one that (.+) organises\?', goal):
        key = (iso(found.groups()[:3]), found[4], found[5])
        meant = [one for one in bookings if (week_of(one["day"]), one["title"], one["organiser"]) == key]
        assert len(meant) == 1
        return {one["room"] for one in meant}
    opens, closes = (minutes(found) for found in re.search(r"open from (.{5}) to (.{5})", goal).groups())  # type: ignore[union-attr]
    if found := re.match(rf"When does the first free time of at least (\d+) minutes begin in (.+) on {DAY}\?", goal):
        length, room, day = int(found[1]), found[2], iso(found.groups())
        free = [at for at in range(opens, closes - length + 1, 10) if is_free(bookings, room, day, at, length)]
        return {f"{free[0] // 60:02}:{free[0] % 60:02}"}
    found = re.match(rf"In the week of {DAY}, when .* at least (\d+) minutes begin in (.+)\? It has", goal)
    assert found is not None, goal
    first, length, room = iso(found.groups()[:3]), int(found[4]), found[5]
    week = sorted({one["day"] for one in bookings if week_of(one["day"]) == first})
    assert len(week) == 5
    free_then = [
        (day, at)
        for day in week
        for at in range(opens, closes - length + 1, 10)
        if is_free(bookings, room, day, at, length)
    ]
    day, at = free_then[0]
    return {f"{day} {at // 60:02}:{at % 60:02}"}


@pytest.mark.parametrize("level", LEVELS)
def test_a_question_has_one_answer_and_pages_show_it(level: Level) -> None:
    for problem in problems_of(KINDS[0], level):
        assert answers(problem) == {problem.answer}
        assert problem.answer is not None
        day, _, clock = problem.answer.rpartition(" ")
        if re.fullmatch(r"\d{4}-\d\d-\d\d", day):
            assert clock in page(problem, f"/days/{day}")
        else:
            held = sorted({one["day"] for one in problem.site.record()["bookings"]})
            assert any(problem.answer in page(problem, path) for path in ("/", *(f"/days/{day}" for day in held)))


def meant_by(problem: Problem) -> list[dict[str, Any]]:
    """The bookings that the description of a move task fits."""
    goal, bookings = problem.goal, problem.site.record()["bookings"]
    if found := re.match(rf'Move the booking "(.+?)" in (.+?) in the week of {DAY} to ', goal):
        key = (found[1], found[2], iso(found.groups()))
        return [one for one in bookings if (one["title"], one["room"], week_of(one["day"])) == key]
    if found := re.match(rf'Move the booking "(.+?)" in (.+?) on {DAY} to ', goal):
        key = (found[1], found[2], iso(found.groups()))
        return [one for one in bookings if (one["title"], one["room"], one["day"]) == key]
    found = re.match(rf'Move the booking "(.+?)" that (.+?) organises on {DAY} to ', goal)
    assert found is not None, goal
    key = (found[1], found[2], iso(found.groups()))
    return [one for one in bookings if (one["title"], one["organiser"], one["day"]) == key]


def target_of(problem: Problem, old: dict[str, Any]) -> dict[str, Any]:
    """The booking as the goal wants it."""
    found = re.search(
        rf" to (the same time|\d\d:\d\d) on (?:the same day|{DAY}) in (the same room|the only room [^.]+|[^.]+)\."
        r'(?: Its new title is "(.+)"\.)? Change nothing else',
        problem.goal,
    )
    assert found is not None, problem.goal
    new = dict(old)
    if found[1] != "the same time":
        new["start"] = found[1]
    if found[2]:
        new["day"] = iso(found.groups()[1:4])
    if only := re.match("the only room of the (.+) with a (.+)", found[5]):
        [new["room"]] = [
            name
            for name, room in rooms(problem).items()
            if room["floor"].lower() == only[1] and only[2] in room["equipment"]
        ]
    elif found[5] != "the same room":
        new["room"] = found[5]
    if found[6]:
        new["title"] = found[6]
    return new


def send(problem: Problem, path: str, wanted: dict[str, Any]) -> int:
    """Sends the booking's form; the answer's status."""
    form = {name: str(value) for name, value in wanted.items()}
    form["room"] = rooms(problem)[wanted["room"]]["slug"]
    return post(problem.site, path, **form).status


def path_of(problem: Problem, booking: dict[str, Any]) -> str:
    """The booking's page, by the page of its day."""
    row = page(problem, f"/days/{booking['day']}").partition(f">{booking['room']}</a>")[2]
    found = re.search(rf'"(/bookings/\d+)">{booking["start"]}', row)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("feasible", [True, False])
def test_one_booking_is_meant_and_moving_it_gives_the_record(level: Level, feasible: bool) -> None:
    for problem in problems_of(KINDS[1], level, feasible):
        [old] = meant_by(problem)
        new = target_of(problem, old)
        assert new != old
        status = send(problem, path_of(problem, old) + "/change", new)
        assert status == (200 if feasible else 422)
        assert problem.site.record() == problem.expected


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("feasible", [True, False])
def test_one_room_meets_all_conditions_and_booking_it_gives_the_record(level: Level, feasible: bool) -> None:
    for problem in problems_of(KINDS[2], level, feasible):
        found = re.match(
            rf"Book a room with at least (\d+) seats and with (.+) on {DAY} from (.{{5}}) to (.{{5}})\."
            r"(?: The room must be on the (.+?)\.)? The title is \"(.+)\", the organiser is (.+), there are (\d+) "
            r'participants, and there are (?:no notes|the notes "(.+)")\. Change',
            problem.goal,
        )
        assert found is not None, problem.goal
        items = {item.removeprefix("a ") for item in found[2].split(" and ")}
        day, start, end = iso(found.groups()[2:5]), minutes(found[6]), minutes(found[7])
        bookings = problem.site.record()["bookings"]
        failed = {
            name: [
                what
                for what, met in {
                    "seats": room["seats"] >= int(found[1]),
                    "equipment": items <= set(room["equipment"]),
                    "floor": found[8] in (None, room["floor"].lower()),
                    "free": is_free(bookings, name, day, start, end - start),
                }.items()
                if not met
            ]
            for name, room in rooms(problem).items()
        }
        fitting = [name for name, wrong in failed.items() if not wrong]
        assert len(fitting) == (1 if feasible else 0)
        assert all(len(wrong) <= 1 for wrong in failed.values()), "each distractor meets all but one"
        assert len({wrong[0] for wrong in failed.values() if wrong}) >= (2 if level == "easy" else 3)
        for name in fitting:
            new = {
                "title": found[9], "organiser": found[10], "participants": int(found[11]), "room": name, "day": day,
                "start": found[6], "length": end - start, "notes": found[12] or "",
            }  # fmt: skip
            assert send(problem, "/new", new) == 200
        assert problem.site.record() == problem.expected


@pytest.mark.parametrize("level", LEVELS)
def test_cancelling_what_is_meant_gives_the_record(level: Level) -> None:
    kept_of_the_same_person = 0
    for problem in problems_of(KINDS[3], level):
        found = re.match(
            rf"Cancel all bookings that (\w+ \w+) organises on {DAY}( and that begin before 12:00| and that begin at "
            r"12:00 or later)?\. Cancel",
            problem.goal,
        )
        assert found is not None, problem.goal
        day = iso(found.groups()[1:4])
        bookings = [
            one for one in problem.site.record()["bookings"] if (one["organiser"], one["day"]) == (found[1], day)
        ]
        doomed = [
            one
            for one in bookings
            if not found[5] or (minutes(one["start"]) < 720) == found[5].endswith("before 12:00")
        ]
        assert len(doomed) >= 2
        kept_of_the_same_person += len(bookings) - len(doomed)
        for one in doomed:
            post(problem.site, path_of(problem, one) + "/cancel")
        assert problem.site.record() == problem.expected
    assert (kept_of_the_same_person > 0) == (level == "hard")


def test_the_names_of_rooms_do_not_begin_with_one_another() -> None:
    for problem in problems_of(KINDS[1], "hard"):
        names = list(rooms(problem))
        assert len(names) == 9
        assert not [(one, other) for one in names for other in names if one != other and other.startswith(one)]


def test_both_parts_of_a_day_are_asked_for() -> None:
    goals = [problem.goal for problem in problems_of(KINDS[3], "hard")]
    assert {"before" in goal for goal in goals} == {True, False}
