import random

import pytest

from environments.web.sites.admin.data import Books, make_books
from environments.web.sites.admin.listing import listing
from environments.web.sites.admin.site import AdminSite
from environments.web.sites.admin.switch import SwitchSite
from environments.web.sites.admin.tables import CONTRACTS, MACHINES, TABLES, rows_of
from environments.web.sites.kind import LEVELS
from tests.environments.web.sites.site_requests import get, post


def site_of(level: str = "medium", seed: int = 1) -> AdminSite:
    return AdminSite(make_books(random.Random(seed), level))


def form_of(books: Books, id: str, **other: str) -> dict[str, str]:
    machine = books.machines[id]
    return {**{key: str(getattr(machine, key)) for key in ("depot", "state", "rate", "hours", "year")}, **other}


@pytest.mark.parametrize("level", LEVELS)
def test_every_page_that_a_list_leads_to_is_there(level):
    site = site_of(level)
    for path in (
        "/",
        "/settings",
        "/machines/add",
        "/contracts/add",
        "/customers/add",
        *(f"/{name}" for name in TABLES),
    ):
        assert get(site, path).status == 200, path
    for name in ("machines", "contracts", "customers"):
        for id in site.books.table(name):
            assert get(site, f"/{name}/{id}").status == 200
            assert get(site, f"/{name}/{id}/edit").status == 200


def test_the_pages_of_a_list_have_every_row_once():
    books = site_of("hard").books
    for table in TABLES.values():
        rows = rows_of(books, table)
        pages = listing(books, table, {}).pages
        shown = [row for page in range(1, pages + 1) for row in listing(books, table, {"page": str(page)}).rows]
        assert shown == rows
        assert pages > 1


def test_search_filters_and_sorting_hold_together_and_survive_the_next_page():
    books = site_of("hard").books
    depot = max(books.depots, key=lambda depot: sum(machine.depot == depot for machine in books.machines.values()))
    shown = listing(books, MACHINES, {"depot": depot, "sort": "rate", "order": "down", "page": "2"})
    first = listing(books, MACHINES, {"depot": depot, "sort": "rate", "order": "down"})
    assert (first.page, shown.page) == (1, 2)
    rates = [row["rate"] for row in (*first.rows, *shown.rows)]
    assert rates == sorted(rates, reverse=True)
    assert {row["depot"] for row in first.rows} == {depot}
    assert f"depot={depot.replace(' ', '+')}" in first.path(2)
    some = listing(books, CONTRACTS, {"q": books.contracts[min(books.contracts)].customer.upper()})
    assert 0 < some.total < len(books.contracts)


def test_numbers_inside_names_sort_by_size():
    books = site_of("hard").books
    names = [row["name"] for row in listing(books, MACHINES, {"sort": "name", "order": "up"}).rows]
    assert names == sorted(names, key=lambda name: (name.split()[0], int(name.split()[1])))


@pytest.mark.parametrize(
    "query",
    [
        {"page": "99999"},
        {"page": "-1"},
        {"page": "²"},
        {"sort": "id"},
        {"order": "x"},
        {"depot": "<b>"},
        {"q": "<script>" * 90},
    ],
)
def test_an_address_that_means_nothing_gives_a_page(query):
    page = get(site_of(), "/machines", **query)
    assert page.status == 200
    assert "<script>" not in page.html


def test_saving_a_record_changes_it_and_says_so_once():
    site = site_of()
    id = next(iter(site.books.machines))
    before = site.record()
    page = post(site, f"/machines/{id}/edit", **form_of(site.books, id, rate="77"))
    assert page.location == f"/machines/{id}"
    assert "Saved." in get(site, page.location).html
    assert "Saved." not in get(site, page.location).html
    before["machines"][id]["rate"] = 77
    assert site.record() == before
    assert "Rate per day set" in get(site, "/changes").html


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("rate", "4", "Rate per day: give a whole number"),
        ("rate", "٣٣", "Rate per day"),
        ("rate", "9" * 5000, "Rate per day"),
        ("hours", "-1", "Hours run"),
        ("year", "3000", "Year built"),
        ("depot", "Moon", "Depot: choose"),
        ("state", "", "State: choose"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_changes(field, value, words):
    site = site_of()
    id = next(iter(site.books.machines))
    before = site.record()
    page = post(site, f"/machines/{id}/edit", **form_of(site.books, id, **{field: value}))
    assert page.location is None
    assert words in page.html
    assert site.record() == before


def test_contracts_check_references_days_and_their_order():
    site = site_of()
    contract = next(item for item in site.books.contracts.values() if not item.returned)
    good = {
        "machine": contract.machine,
        "start": contract.start,
        "end": contract.end,
        "deposit": "50",
        "contact": "Ida",
    }
    wrong = {"machine": "Pump 999", "start": "2031-02-30", "end": "1999-01-01", "deposit": "x", "contact": ""}
    before = site.record()
    for field, value in wrong.items():
        assert 'role="alert"' in post(site, f"/contracts/{contract.id}/edit", **{**good, field: value}).html, field
    assert site.record() == before
    assert post(site, f"/contracts/{contract.id}/edit", **good).location


def test_a_contract_that_has_ended_keeps_its_locked_fields_whatever_is_sent():
    site = site_of()
    contract = next(item for item in site.books.contracts.values() if item.returned)
    page = get(site, f"/contracts/{contract.id}/edit")
    assert "are locked" in page.html
    assert page.html.count(" disabled>") == 4
    before = site.record()
    form = {"machine": "x", "start": "x", "end": "x", "deposit": "1", "contact": "Ida Orvane"}
    assert post(site, f"/contracts/{contract.id}/edit", **form).location
    before["contracts"][contract.id]["contact"] = "Ida Orvane"
    assert site.record() == before


def test_records_can_be_added_and_names_are_unique():
    site = site_of()
    form = {
        "name": "Pump 500",
        "depot": site.books.depots[0],
        "state": "Available",
        "rate": "9",
        "hours": "0",
        "year": "2020",
    }
    page = post(site, "/machines/add", **form)
    assert page.location and get(site, page.location).status == 200
    assert site.record()["machines"][page.location.split("/")[-1]]["name"] == "Pump 500"
    assert "this name is in use" in post(site, "/machines/add", **form).html
    customer = {"name": "Orvane", "town": "Tellum", "group": "Trade", "email": "a@b.test", "phone": "555-1000"}
    assert post(site, "/customers/add", **customer).location
    for field, value in (("email", "a@b"), ("phone", "1"), ("town", "\n"), ("name", "")):
        wrong = {**customer, "name": "Other", field: value}
        assert 'role="alert"' in post(site, "/customers/add", **wrong).html, field
    contract = {
        "customer": "Orvane",
        "machine": "Pump 500",
        "start": "2031-01-01",
        "end": "2031-01-02",
        "deposit": "5",
        "contact": "X",
    }
    assert post(site, "/contracts/add", **contract).location


def test_an_action_is_done_for_the_selected_rows_and_keeps_the_place_in_the_list():
    site = site_of()
    ids = tuple(site.books.machines)[:2]
    before = site.record()
    page = post(site, "/machines", {"sort": "rate", "order": "down", "page": "2"}, row=(*ids, ids[0]), action="Stop")
    assert page.location == "/machines?sort=rate&order=down&page=2"
    assert "Stop: done for 2 machines." in get(site, "/machines").html
    for id in ids:
        before["machines"][id]["state"] = "Stopped"
    assert site.record() == before


def test_an_action_without_rows_or_name_or_for_what_has_ended_does_nothing():
    site = site_of()
    open_ = next(id for id, item in site.books.contracts.items() if not item.returned)
    ended = next(id for id, item in site.books.contracts.items() if item.returned)
    before = site.record()
    for form, words in (
        ({"action": "Send a reminder"}, "Select at least one row"),
        ({"row": (open_,)}, "Choose an action"),
        ({"row": (open_,), "action": "Stop"}, "Choose an action"),
        ({"row": ("C-0",), "action": "Send a reminder"}, "Select at least one row"),
        ({"row": (open_, ended), "action": "Send a reminder"}, f"{ended} has ended"),
    ):
        assert words in post(site, "/contracts", **form).html
    assert "Choose an action" in post(site, "/customers", row="K-1", action="Stop").html
    assert site.record() == before


def test_settings_are_saved_page_by_page_and_checked():
    site = site_of("hard")
    before = site.record()
    form = {"depot": "x", "week": "Monday", "longest": "6"}
    page = post(site, "/settings/lending", **form)
    assert "Default depot: choose" in page.html
    assert site.record() == before
    form = {"depot": site.books.depots[0], "week": "Monday", "longest": "8", "weekend": "on"}
    assert post(site, "/settings/lending", **form).location == "/settings/lending"
    new = {"depot": site.books.depots[0], "week": "Monday", "longest": 8, "weekend": True, "new_deposit": False}
    assert site.record()["settings"] == {**before["settings"], **new}


def test_what_is_typed_is_escaped():
    site = site_of()
    id = next(iter(site.books.customers))
    form = {"town": "<b>x</b>", "group": "Trade", "email": "a@b.test", "phone": "555-1000"}
    assert post(site, f"/customers/{id}/edit", **form).location
    assert "<b>x</b>" not in get(site, f"/customers/{id}").html


def test_a_switch_stops_one_machine_and_nothing_else_can_be_sent():
    site = SwitchSite(["Pump 1", "Pump 2"])
    for form in ({}, {"machine": "Pump 3"}):
        assert "Choose a machine" in post(site, "/", **form).html
    assert site.record() == {"machines": {"Pump 1": "Running", "Pump 2": "Running"}}
    assert post(site, "/", machine="Pump 2").location == "/"
    assert "Pump 2 is stopped." in get(site, "/").html
    assert site.record() == {"machines": {"Pump 1": "Running", "Pump 2": "Stopped"}}
    assert get(site, "/x").status == 404
