"""Every action does what it says, on a small page; one that cannot be done says why, and the page is as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from environments.web.acting import Acting
from environments.web.browser import Browser
from environments.web.tree import MAX_CHARACTERS
from taskapp_kit import InvalidAction
from tests.environments.web.pages import ORIGIN, PageWindow, pages

LOG = """<p id=log>log:</p><script>
const log = document.getElementById("log");
function note(word) { log.textContent += " " + word; }
</script>"""

ACTIONS = f"""<title>Actions</title><style>body {{ margin: 0 }} #far {{ margin-top: 900px }}
#pad {{ position: absolute; left: 400px; top: 200px; width: 200px; height: 200px }}</style>{LOG}
<div id=pad onmousemove="this.seen ||= note('move') || 1" onclick="note('pad-click')" ondblclick="note('pad-double')"
 onauxclick="note('pad-aux' + event.button)" onmousedown="this.at = event.clientX" onmouseup="note('dragged' + (event.clientX - this.at))"></div>
<button onclick="note('click')" ondblclick="note('double')" oncontextmenu="note('context'); return false" onmouseenter="note('over')">Try</button>
<label>Name <input onkeydown="note('key-' + event.key)" onchange="note('changed')"></label>
<label>Size <select><option value=s>Small<option value=l>Large</select></label>
<label>Agree <input type=checkbox></label>
<a draggable=true href="#" ondragstart="note('drag-' + this.textContent)">Card</a>
<button ondragover="return false" ondrop="note('drop'); return false">Box</button>
<a href="/next">Next</a>
<p id=far>far</p><script>addEventListener("scroll", () => note("scrolled" + scrollY))</script>"""

REFUSALS = """<title>Refusals</title>
<style>#cover { position: absolute; inset: 0 0 auto; height: 120px; background: #eee } form { margin-top: 140px }</style>
<button>Under</button><div id=cover>cover</div>
<form><button disabled>Off</button><button>On</button><label>Fixed <input readonly value=1></label>
<label>Size <select><option>Small</select></label><a href="/next">Next</a></form>"""

BODIES = {
    "/": ACTIONS,
    "/next": '<title>Next page</title><h1>Next</h1><a href="/">Back</a>',
    "/refusals": REFUSALS,
    "/long": "<title>Long</title>" + "<p>some words in a paragraph</p>" * 1000 + "<button>Last</button>",
}


@pytest.fixture(scope="module")
def shared_page(browser: Browser) -> Iterator[PageWindow]:
    with PageWindow(browser, pages(BODIES)) as page:
        yield page


@pytest.fixture
def page(shared_page: PageWindow) -> PageWindow:
    """The page of all actions, afresh."""
    shared_page.do("goto", url=ORIGIN + "/")
    return shared_page


@pytest.fixture
def refusals(shared_page: PageWindow) -> PageWindow:
    shared_page.do("goto", url=ORIGIN + "/refusals")
    return shared_page


def log(page: PageWindow) -> list[str]:
    """What the page noted so far."""
    return page.view.find("paragraph").value.split()[1:]


def refused(page: PageWindow, name: str, **arguments: object) -> str:
    """The reason for which the action is refused; the numbers that were seen stay valid."""
    before = page.text
    with pytest.raises(InvalidAction) as found:
        page.do(name, **arguments)
    assert page.do("noop") is not None
    assert page.text.partition("Page:")[2] == before.partition("Page:")[2]
    return str(found.value)


def test_click_and_its_buttons(page: PageWindow) -> None:
    page.on("click", "button", "Try")
    assert log(page) == ["over", "click"]
    page.on("click", "button", "Try", button="right")
    assert log(page) == ["over", "click", "context"]


def test_dblclick(page: PageWindow) -> None:
    page.on("dblclick", "button", "Try")
    assert log(page) == ["over", "click", "click", "double"]


def test_hover(page: PageWindow) -> None:
    page.on("hover", "button", "Try")
    assert log(page) == ["over"]


def test_fill_replaces_and_clear_empties(page: PageWindow) -> None:
    page.on("fill", "textbox", "Name", value="tea")
    view = page.on("fill", "textbox", "Name", value='a "cup" \\ of')
    field = view.find("textbox", "Name")
    assert field.value == 'a "cup" \\ of'
    assert f"Focused: [{field.bid}]" in page.text
    assert page.on("clear", "textbox", "Name").find("textbox", "Name").value == ""


def test_select_option_by_the_words_that_are_shown(page: PageWindow) -> None:
    assert page.on("select_option", "combobox", "Size", options=["Large"]).selected("Size") == "Large"


def test_a_check_box_is_clicked(page: PageWindow) -> None:
    assert not page.view.checked("checkbox", "Agree")
    assert page.on("click", "checkbox", "Agree").checked("checkbox", "Agree")


def test_press_in_an_element(page: PageWindow) -> None:
    page.on("press", "textbox", "Name", key_comb="x")
    assert page.view.find("textbox", "Name").value == "x"
    page.on("press", "textbox", "Name", key_comb="Enter")
    assert log(page) == ["key-x", "key-Enter", "changed"]


def test_focus_and_keys_wherever_the_focus_is(page: PageWindow) -> None:
    field = page.on("focus", "textbox", "Name").find("textbox", "Name")
    assert f"Focused: [{field.bid}]" in page.text
    page.do("keyboard_type", text="ab")
    assert page.do("keyboard_press", key="Backspace").find("textbox", "Name").value == "a"
    box = page.do("keyboard_press", key="Tab").find("combobox", "Size")
    assert f"Focused: [{box.bid}]" in page.text


def test_drag_and_drop(page: PageWindow) -> None:
    view = page.view
    page.do("drag_and_drop", from_bid=view.find("link", "Card").bid, to_bid=view.find("button", "Box").bid)
    assert log(page) == ["drag-Card", "drop"]


def test_scroll(page: PageWindow) -> None:
    page.do("scroll", delta_x=0, delta_y=200)
    page.do("noop")
    assert log(page)[-1] == "scrolled200"


def test_the_mouse_at_a_place(page: PageWindow) -> None:
    page.do("mouse_move", x=500, y=300)
    assert log(page) == ["move"]
    page.do("mouse_click", x=500, y=300)
    assert log(page)[1:] == ["dragged0", "pad-click"]
    page.do("mouse_click", x=500, y=300, button="middle")
    assert log(page)[3:] == ["dragged0", "pad-aux1"]
    page.do("mouse_drag_and_drop", from_x=450, from_y=250, to_x=550, to_y=260)
    assert "dragged100" in log(page)
    page.do("mouse_dblclick", x=500, y=300)
    assert log(page)[-1] == "pad-double"


def test_back_and_forward(page: PageWindow) -> None:
    assert page.on("click", "link", "Next").url == ORIGIN + "/next"
    assert page.do("go_back").url == ORIGIN + "/"
    view = page.do("go_forward")
    assert (view.url, view.has("heading", "Next")) == (ORIGIN + "/next", True)
    page.do("go_forward")
    assert page.view.url == ORIGIN + "/next"  # there is nothing after: it stays


def test_tabs(page: PageWindow) -> None:
    page.do("new_tab")
    assert "Tab 0: Actions https://page.test/\nTab 1 (active): Untitled about:blank\n" in page.text
    assert page.do("goto", url=ORIGIN + "/next").url == ORIGIN + "/next"
    assert page.do("tab_focus", index=0).has("button", "Try")
    assert "Tab 1: Next page" in page.text
    assert "the tabs are 0 to 1" in refused(page, "tab_focus", index=2)
    page.do("tab_focus", index=1)
    assert page.do("tab_close").has("button", "Try")
    assert "Tab 1" not in page.text


def test_the_last_tab_is_replaced(page: PageWindow) -> None:
    assert page.do("tab_close").url == "about:blank"
    assert page.do("goto", url=ORIGIN + "/").has("button", "Try")


def test_tabs_are_limited(page: PageWindow) -> None:
    for _ in range(7):
        page.do("new_tab")
    with pytest.raises(InvalidAction, match="8 tabs already"):
        page.do("new_tab")
    for _ in range(7):
        page.do("tab_close")


def test_a_page_that_is_not_there_is_a_page(page: PageWindow) -> None:
    assert page.do("goto", url=ORIGIN + "/lost").has("heading", "Not found")


def test_an_unknown_number_names_the_nearest(page: PageWindow) -> None:
    last = page.view.find("link", "Next").bid
    assert last is not None
    message = refused(page, "click", bid=last + 10)
    assert f"no element [{last + 10}]" in message
    assert f'[{last}] link "Next".' in message
    assert f"no element [{last + 1}]" in refused(page, "drag_and_drop", from_bid=1, to_bid=last + 1)


def test_numbers_of_a_blank_tab(page: PageWindow) -> None:
    page.do("new_tab")
    assert refused(page, "click", bid=1) == "The page has no element [1]."
    page.do("tab_close")


def bid(page: PageWindow, role: str, name: str) -> int:
    found = page.view.find(role, name).bid
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("role", "element", "action", "arguments", "reason"),
    [
        ("button", "Off", "click", {}, 'button "Off" is disabled.'),
        ("button", "Under", "click", {}, "another element covers it"),
        ("textbox", "Fixed", "fill", {"value": "2"}, "it is read-only"),
        ("combobox", "Size", "select_option", {"options": ["Huge"]}, "it has no such option"),
        ("button", "On", "fill", {"value": "2"}, "it is not a field"),
        ("button", "On", "select_option", {"options": ["Small"]}, "it is not a drop-down list"),
        ("button", "On", "press", {"key_comb": "Control+Nope"}, "there is no such key"),
    ],
)
def test_what_an_element_does_not_take_is_refused_with_the_reason(
    refusals: PageWindow, role: str, element: str, action: str, arguments: dict[str, object], reason: str
) -> None:
    assert reason in refused(refusals, action, bid=bid(refusals, role, element), **arguments)


def test_an_unknown_key_is_refused(refusals: PageWindow) -> None:
    assert "there is no such key" in refused(refusals, "keyboard_press", key="Enterr")
    with pytest.raises(InvalidAction):
        refusals.do("keyboard_press", key="Control+")


def test_a_combination_that_is_refused_holds_no_key_down(page: PageWindow) -> None:
    for act in (
        lambda: page.do("keyboard_press", key="Control+Nope"),
        lambda: page.do("press", bid=1, key_comb="Shift+Nope"),
    ):
        with pytest.raises(InvalidAction):
            act()
    page.on("click", "link", "Next")  # with Control, it would be opened in another tab
    assert page.view.url == ORIGIN + "/next"


def test_after_a_refusal_the_numbers_act_on_what_they_did(refusals: PageWindow) -> None:
    number = bid(refusals, "link", "Next")
    with pytest.raises(InvalidAction):
        refusals.do("click", bid=bid(refusals, "button", "Under"))
    assert refusals.do("click", bid=number).url == ORIGIN + "/next"


def test_characters_of_all_kinds_are_typed(page: PageWindow) -> None:
    for value in ("\ufffe", "\x00\x07", "\u2028", "𝔘 é", "a\u202eb"):
        page.on("fill", "textbox", "Name", value=value)
        page.text.encode()
        assert page.view.has("button", "Try")


def test_a_long_page_is_cut_and_its_later_numbers_stay_valid(page: PageWindow) -> None:
    page.do("goto", url=ORIGIN + "/long")
    assert page.text.endswith(f"… (cut off after {MAX_CHARACTERS} characters)")
    assert page.do("click", bid=1).url == ORIGIN + "/long"


def test_pictures_only_where_they_are_wanted(browser: Browser, page: PageWindow) -> None:
    assert page.pictures == []
    with PageWindow(browser, pages(BODIES), screenshot=True) as seeing:
        seeing.on("fill", "textbox", "Name", value="tea")
        assert len(seeing.pictures) == 2
        assert seeing.pictures[0] != seeing.pictures[1]
        assert seeing.view.find("textbox", "Name").value == "tea"


def test_ends_say_what_was_sent() -> None:
    sent = Acting().send_msg_to_user("4.50")
    assert (sent.terminated, sent.info) == (True, {"message": "4.50"})
    reported = Acting().report_infeasible("none left")
    assert (reported.terminated, reported.info) == (True, {"infeasible": "none left"})
