"""The problems, read from their words by rules of the tests' own, and solved by requests."""

import re

import pytest

from environments.web.sites.admin.kinds import BULK, COUNT, EDIT, SETTINGS, SWITCH
from environments.web.sites.admin.options import settings_of
from environments.web.sites.kind import LEVELS, Problem
from tests.environments.web.sites.site_requests import get, post, problems_of

CONDITIONS = (
    (r"at the depot (\w+ \w+)", lambda row, depot: row["depot"] == depot),
    (r'in the state "([\w ]+)"', lambda row, state: row["state"] == state),
    (r"of the type (\w+)", lambda row, type_: row["name"].startswith(f"{type_} ")),
    (r"with a rate per day of at least (\d+)", lambda row, bound: row["rate"] >= int(bound)),
    (r"with a rate per day below (\d+)", lambda row, bound: row["rate"] < int(bound)),
    (r"with at least (\d+) hours run", lambda row, bound: row["hours"] >= int(bound)),
    (r"built in the year (\d+)", lambda row, year: row["year"] == int(year)),
    (r"of the customer (\w+ \w+)", lambda row, name: row["customer"] == name),
    (r"for the machine (\w+ \d+)", lambda row, name: row["machine"] == name),
    (r"with a deposit of at least (\d+)", lambda row, bound: row["deposit"] >= int(bound)),
    (r"with a deposit below (\d+)", lambda row, bound: row["deposit"] < int(bound)),
    (r"with an end before ([\d-]+)", lambda row, day: row["end"] < day),
    (r"with the start ([\d-]+)", lambda row, day: row["start"] == day),
    (r"in the town (\w+)", lambda row, town: row["town"] == town),
    (r'of the group "(\w+)"', lambda row, group: row["group"] == group),
    (r'with an e-mail address that begins with "(\w+@)"', lambda row, begin: row["email"].startswith(begin)),
    (r"\bby (\w+ \w+)", lambda row, who: row["who"] == who),
    (r'about "(\w+)"', lambda row, about: row["about"] == about),
    (r"dated before ([\d-]+)", lambda row, day: row["day"] < day),
)


def rows_of(problem: Problem, table: str) -> list[dict]:
    books = problem.site.books
    if table == "changes":
        return [vars(change) for change in books.changes]
    rows = [dict(row) for row in problem.site.record()[table].values()]
    if table == "contracts":
        for row in rows:
            row["state"] = "Ended" if row["returned"] else "Overdue" if row["end"] < books.today else "Open"
    return rows


def meant(problem: Problem) -> tuple[str, list[dict], list[list[dict]]]:
    """The table, the rows that satisfy all that the goal says, and for each condition those that satisfy the others."""
    table = re.search(r"\b(machine|contract|customer|change)", problem.goal).group(1) + "s"
    text = problem.goal.split(", and set its")[0]
    found = [(holds, match) for words, holds in CONDITIONS for match in re.findall(words, text)]
    rows = rows_of(problem, table)

    def satisfying(conditions):
        return [row for row in rows if all(holds(row, value) for holds, value in conditions)]

    return table, satisfying(found), [satisfying(found[:place] + found[place + 1 :]) for place in range(len(found))]


@pytest.mark.parametrize("level", LEVELS)
def test_the_answer_is_what_the_words_of_the_question_say(level):
    asked = set()
    for problem in problems_of(COUNT, level):
        _, rows, near = meant(problem)
        assert all(len(some) > len(rows) for some in near)
        if problem.goal.startswith("How many"):
            answer = str(len(rows))
        elif problem.goal.startswith("What is the sum"):
            answer = str(sum(row["rate" if "rates" in problem.goal.split(" of all")[0] else "deposit"] for row in rows))
        else:
            key = "rate" if "highest rate" in problem.goal else "deposit"
            [largest] = [row for row in rows if row[key] == max(row[key] for row in rows)]
            answer = largest["name"] if key == "rate" else largest["id"]
            pages = [get(problem.site, f"/{name}/{answer}") for name in ("machines", "contracts")]
            assert key == "rate" or 200 in [page.status for page in pages]
        assert problem.answer == answer, problem.goal
        asked.add(problem.goal.split()[0])
    assert len(asked) == 3


@pytest.mark.parametrize("level", LEVELS)
def test_one_record_is_meant_and_posting_the_fields_gives_what_is_expected(level):
    tables = set()
    for problem in problems_of(EDIT, level):
        table, rows, near = meant(problem)
        tables.add(table)
        [row] = rows
        assert all(len(some) > 1 for some in near)
        first, last = problem.site.record()[table][row["id"]], problem.expected[table][row["id"]]
        values = dict(re.findall(r'"([\w -]+)" to (.+?)(?= and "|\. Change)', problem.goal))
        assert len(values) == sum(first[key] != last[key] for key in first) > 0
        form = {key: str(value) for key, value in last.items()}
        assert post(problem.site, f"/{table}/{row['id']}/edit", **form).location
        assert problem.site.record() == problem.expected
    assert tables == {"machines", "contracts", "customers"}


@pytest.mark.parametrize("level", LEVELS)
def test_what_cannot_be_done_is_not_there_or_is_locked(level):
    reasons = set()
    for problem in problems_of(EDIT, level, feasible=False):
        table, rows, near = meant(problem)
        if rows:
            [row] = rows
            assert (table, row["state"]) == ("contracts", "Ended")
            page = get(problem.site, f"/contracts/{row['id']}/edit")
            assert "Its machine, days and deposit are locked." in page.html
            assert re.search(r'"(Machine|End|Deposit)" to', problem.goal)
        assert all(len(some) > len(rows) for some in near)
        reasons.add(bool(rows))
    assert reasons == {True, False}


@pytest.mark.parametrize("level", LEVELS)
def test_an_action_for_exactly_the_rows_that_are_meant_gives_what_is_expected(level):
    for problem in problems_of(BULK, level):
        table, rows, near = meant(problem)
        assert len(rows) > 1
        assert all(len(some) > len(rows) for some in near)
        action = re.match(r'Do "([\w ]+)"', problem.goal).group(1)
        changed = [id for id, row in problem.site.record()[table].items() if row != problem.expected[table][id]]
        assert sorted(changed) == sorted(row["id"] for row in rows)
        assert post(problem.site, f"/{table}", row=tuple(changed), action=action).location
        assert problem.site.record() == problem.expected


@pytest.mark.parametrize("level", LEVELS)
def test_settings_posted_page_by_page_give_what_is_expected(level):
    for problem in problems_of(SETTINGS, level):
        books, wanted = problem.site.books, problem.expected["settings"]
        settings = settings_of(level, books.depots)
        changed = [each for each in settings if wanted[each.key] != books.settings[each.key]]
        assert len(changed) == {"easy": 2, "medium": 4, "hard": 6}[level]
        for each in changed:
            value = wanted[each.key]
            assert (
                f'"{each.label}" {("on" if value else "off") if each.shape == "check" else f"to {value}"}'
                in problem.goal
            )
        for section in {each.section for each in settings}:
            here = {each.key: wanted[each.key] for each in settings if each.section == section}
            form = {key: str(value) for key, value in here.items() if value is not False}
            assert post(problem.site, f"/settings/{section.lower()}", **form).location
        assert problem.site.record() == problem.expected


@pytest.mark.parametrize(("level", "count"), [("easy", 3), ("medium", 5), ("hard", 8)])
def test_one_click_stops_the_machine_and_places_vary(level, count):
    places = set()
    for problem in problems_of(SWITCH, level):
        name = re.fullmatch(r"Stop the machine (\w+ \d)\.", problem.goal).group(1)
        machines = list(problem.site.record()["machines"])
        assert len(set(machines)) == count
        places.add(machines.index(name))
        assert post(problem.site, "/", machine=name).location
        assert problem.site.record() == problem.expected
    assert len(places) > 2
