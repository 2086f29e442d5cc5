"""The mail site's letters and tickets: what their forms do, and what they refuse."""

import random

import pytest

from environments.web.sites.mail.builder import Builder
from environments.web.sites.mail.site import MailSite
from tests.environments.web.sites.site_requests import get, post


def site(level="medium", seed=2):
    return MailSite(Builder(random.Random(seed), level).finish())


def open_ticket(on):
    return next(ticket for ticket in on.content.tickets if ticket.status != "Closed")


def as_it_is(ticket):
    return {"assignee": ticket.assignee, "priority": ticket.priority, "status": ticket.status, "note": ""}


def test_a_reply_goes_to_the_sender_though_not_in_the_address_book():
    on = site()
    message = on.content.messages[0]
    form = get(on, f"/message/{message.id}/reply").html
    assert f'value="{message.sender.address}"' in form
    assert f'value="Re: {message.subject}"' in form
    page = post(
        on,
        f"/message/{message.id}/reply",
        to=message.sender.address,
        subject=f"Re: {message.subject}",
        text=" Hi\r\nyou ",
    )
    assert page.location == f"/message/{message.id}"
    shown = get(on, page.location).html
    assert "Your reply was sent." in shown
    assert "Answered on" in shown
    assert on.record()["letters"][-1] == {
        "how": "reply",
        "about": message.id,
        "to": [message.sender.address],
        "subject": f"Re: {message.subject}",
        "text": "Hi you",
    }


def test_recipients_are_names_or_addresses_each_once():
    on = site()
    message = on.content.messages[0]
    first, second = on.content.contacts[:2]
    to = f" {second.name.upper()} ,{first.address};  {first.name}, "
    assert post(on, f"/message/{message.id}/forward", to=to, subject="x", text="y").location
    assert on.record()["letters"][-1]["to"] == sorted([first.address, second.address])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"to": ""}, "Write at least one recipient."),
        ({"to": " , ;"}, "Write at least one recipient."),
        ({"to": "Nobody Atall"}, "is not in the address book"),
        ({"to": "<b>x</b>"}, "&lt;b&gt;x&lt;/b&gt;” is not in the address book"),
        ({"to": ",".join("abcdef")}, "at most 5 recipients"),
        ({"subject": " "}, "Write a subject."),
        ({"subject": "x" * 121}, "at most 120 characters"),
        ({"text": ""}, "Write a text."),
        ({"text": "x" * 5000}, "at most 2000 characters"),
    ],
)
def test_a_wrong_letter_is_refused_and_what_was_typed_is_kept(changed, said):
    on = site()
    before = on.record()
    form = {"to": on.content.contacts[0].name, "subject": "A subject", "text": "Some text"} | changed
    page = post(on, "/write", **form)
    assert page.status == 422
    assert said in page.html
    kept = [value for name, value in form.items() if name not in changed]
    assert all(value in page.html for value in kept)
    assert on.record() == before


def test_a_sender_is_answered_but_not_written_to_otherwise():
    on = site()
    message = on.content.messages[0]
    assert post(on, f"/message/{message.id}/forward", to=message.sender.address, subject="x", text="y").status == 422


def test_ticket_filters_combine_and_invalid_filter_is_ignored():
    on = site()
    ticket = open_ticket(on)
    page = get(on, "/tickets", status=ticket.status, priority=ticket.priority, product=ticket.product)
    for other in on.content.tickets:
        fits = all(getattr(other, name) == getattr(ticket, name) for name in ("status", "priority", "product"))
        assert (f'"/tickets/{other.number}"' in page.html) == fits
    assert f"{len(on.content.tickets)} tickets" in get(on, "/tickets", status="<b>", page="x").html


def test_a_ticket_is_updated_and_its_history_says_so():
    on = site()
    ticket = open_ticket(on)
    assignee = next(name for name in on.content.team if name != ticket.assignee)
    form = as_it_is(ticket) | {"assignee": assignee, "status": "Closed", "note": "Sent  a\npart."}
    assert post(on, f"/tickets/{ticket.number}", **form).location == f"/tickets/{ticket.number}"
    html = get(on, f"/tickets/{ticket.number}").html
    for part in ("was updated.", f"Assignee set to {assignee}.", "Note: Sent a part.", "cannot be reassigned"):
        assert part in html
    entry = on.record()["tickets"][ticket.number]
    assert (entry["assignee"], entry["status"], entry["notes"]) == (assignee, "Closed", ["Sent a part."])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "Nothing was changed"),
        ({"status": "Closed"}, "closed with a note"),
        ({"status": "Gone"}, "Choose the status from the list."),
        ({"priority": ""}, "Choose the priority from the list."),
        ({"assignee": "Nobody Atall"}, "Choose the assignee from the list."),
        ({"note": "x" * 501}, "at most 500 characters"),
    ],
)
def test_a_wrong_update_is_refused(changed, said):
    on = site()
    before = on.record()
    ticket = open_ticket(on)
    page = post(on, f"/tickets/{ticket.number}", **(as_it_is(ticket) | changed))
    assert page.status == 422
    assert said in page.html
    assert on.record() == before


def test_a_closed_ticket_stays_as_it_is():
    on = site()
    before = on.record()
    ticket = next(ticket for ticket in on.content.tickets if ticket.status == "Closed")
    assert "Update ticket" not in get(on, f"/tickets/{ticket.number}").html
    page = post(on, f"/tickets/{ticket.number}", **(as_it_is(ticket) | {"status": "Open", "note": "x"}))
    assert page.status == 422
    assert "cannot be reassigned" in page.html
    assert on.record() == before


def test_one_ticket_is_opened_from_a_message():
    on = site()
    message = on.content.messages[0]
    form = {"subject": "A hinge", "product": on.content.products[0], "priority": "High", "assignee": "Unassigned"}
    page = post(on, f"/message/{message.id}/ticket", **form)
    number = page.location.rpartition("/")[2]
    assert number not in {ticket.number for ticket in on.content.tickets}
    assert f"Ticket {number} was opened." in get(on, page.location).html
    assert f"Ticket {number}" in get(on, f"/message/{message.id}").html
    assert on.record()["tickets"][number] == {**form, "status": "Open", "notes": [], "message": message.id}
    again = post(on, f"/message/{message.id}/ticket", **form)
    assert again.status == 422
    assert "already opened" in again.html


@pytest.mark.parametrize("changed", [{"subject": ""}, {"subject": "x" * 81}, {"product": ""}, {"assignee": "Nobody"}])
def test_a_wrong_new_ticket_is_refused(changed):
    on = site()
    before = on.record()
    form = {"subject": "A", "product": on.content.products[0], "priority": "High", "assignee": "Unassigned"} | changed
    page = post(on, f"/message/{on.content.messages[0].id}/ticket", **form)
    assert page.status == 422
    assert 'role="alert"' in page.html
    assert on.record() == before
