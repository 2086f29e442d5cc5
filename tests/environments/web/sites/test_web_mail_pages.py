"""The mail site's lists: folders, search, paging, marked messages, the address book, and what is not there."""

import random

import pytest

from environments.web.sites.mail.builder import Builder
from environments.web.sites.mail.data import day_text
from environments.web.sites.mail.site import MailSite
from tests.environments.web.sites.site_requests import get, post


def site(level="hard", seed=1):
    return MailSite(Builder(random.Random(seed), level).finish())


def in_folder(on, folder):
    return [message for message in on.content.messages if message.folder == folder]


def test_a_folder_has_its_messages_newest_first_in_pages():
    on = site()
    inbox = in_folder(on, "inbox")
    rows = on.content.rows
    first, second = get(on, "/"), get(on, "/folder/inbox", page="2")
    for index, message in enumerate(inbox):
        link = f'href="/message/{message.id}"'
        assert (link in first.html) == (index < rows)
        assert (link in second.html) == (rows <= index < 2 * rows)
    assert "Next page" in first.html
    assert "Previous page" not in first.html


@pytest.mark.parametrize("page", ["0", "-1", "x", "9" * 50, "", "999"])
def test_a_page_number_that_is_not_there_shows_the_nearest(page):
    assert get(site(), "/folder/inbox", page=page).status == 200


def test_all_mail_leaves_spam_out():
    on = site()
    for message in on.content.messages:
        found = get(on, "/folder/all", q=f"{message.sender.address} {message.facts.order}")
        assert (f'href="/message/{message.id}"' in found.html) == (message.folder != "spam")


def test_search_needs_every_word_and_looks_into_the_text():
    on = site()
    message = in_folder(on, "inbox")[0]
    assert f'"/message/{message.id}"' in get(on, "/folder/inbox", q=message.facts.phone.upper()).html
    nothing = get(on, "/folder/inbox", q=f"{message.facts.phone} zzzz")
    assert "No message has all these words." in nothing.html


def test_what_is_searched_for_is_shown_as_text():
    page = get(site(), "/folder/inbox", q='<script>"x"</script>')
    assert "<script>" not in page.html
    assert "&lt;script&gt;" in page.html


def test_a_message_shows_what_it_says():
    on = site()
    for message in on.content.messages:
        html = get(on, f"/message/{message.id}").html
        for part in (message.facts.order, message.facts.amount, message.facts.day, message.facts.phone):
            assert part in html
        assert message.sender.company in html
        assert day_text(message.sent) in html


def test_marked_messages_move_and_the_next_page_says_so_once():
    on = site()
    first, second, third = (message.id for message in in_folder(on, "inbox")[:3])
    page = post(on, "/folder/inbox", {"q": "a", "page": "1"}, message=(str(first), str(second)), action="Move to Spam")
    assert page.location == "/folder/inbox?q=a&page=1"
    assert "2 messages were moved to Spam." in get(on, "/").html
    assert "2 messages were" not in get(on, "/").html
    messages = on.record()["messages"]
    assert [messages[str(id_)]["folder"] for id_ in (first, second, third)] == ["spam", "spam", "inbox"]


def test_labels_are_added_once_and_removed():
    on = site()
    message = next(message for message in on.content.messages if not message.labels)
    label = on.content.labels[0]
    for _ in range(2):
        post(on, "/folder/inbox", message=str(message.id), action=f"Add label {label}")
    assert on.record()["messages"][str(message.id)]["labels"] == [label]
    assert post(on, f"/message/{message.id}", unlabel=label).location == f"/message/{message.id}"
    assert on.record()["messages"][str(message.id)]["labels"] == []
    assert post(on, f"/message/{message.id}", unlabel=label).status == 422


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"action": "Move to Spam"}, "Mark at least one message."),
        ({"action": "Move to Spam", "message": "7"}, "Mark at least one message."),
        ({"action": "", "message": "first"}, "Choose what to do"),
        ({"action": "Move to Sent", "message": "first"}, "Choose what to do"),
        ({"action": "Add label Nope", "message": "first"}, "Choose what to do"),
    ],
)
def test_a_wrong_action_is_refused_and_changes_nothing(form, said):
    on = site()
    before = on.record()
    first = str(in_folder(on, "inbox")[0].id)
    page = post(on, "/folder/inbox", **{name: first if value == "first" else value for name, value in form.items()})
    assert page.status == 422
    assert said in page.html
    assert on.record() == before


def test_a_message_is_moved_from_its_own_page():
    on = site()
    message = in_folder(on, "inbox")[0]
    assert post(on, f"/message/{message.id}", action="Move to Archive").location == f"/message/{message.id}"
    assert "Folder: Archive" in get(on, f"/message/{message.id}").html
    assert post(on, f"/message/{message.id}", action="").status == 422


def test_the_address_book_is_searched_by_all_that_it_shows():
    on = site()
    person = on.content.contacts[3]
    for query in (person.name, person.address, f"{person.department} {person.office}"):
        assert person.address in get(on, "/contacts", q=query).html
    assert "Nobody in the address book fits." in get(on, "/contacts", q="zzzz").html


def test_sent_messages_can_be_read():
    on = site()
    assert on.content.letters[0].text in get(on, "/sent/1").html
    assert 'href="/sent/1"' in get(on, "/sent").html
