"""A solver reads the page that was written: numbers, names, states, values and what stands inside what."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.web.tree import FIELDS, Node, page_text
from environments.web.view import Element, NotOnPage, View, give_up, say

PAGE = """\
Goal: Buy a mug.
Tab 0: Other https://other.test/
Tab 1 (active): Mugs · Willow & Oak https://shop.test/c/mugs?page=2
Focused: none
Page:
heading "Mugs" [level=1]
[1] textbox "Search": tea
[2] checkbox "In stock" [checked]
[3] combobox "Sort"
  option "Price"
  option "Name" [selected]
table
  row
    columnheader "Name"
  row
    cell: Blue
      [4] link "mug"
    cell: 4.50
      [5] button "Add" [disabled]
  row
    cell: Red
      [6] link "mug"
    cell: 5.50
      [7] button "Add"
"""


def test_address_and_path_are_those_of_the_active_tab() -> None:
    view = View(PAGE)
    assert view.url == "https://shop.test/c/mugs?page=2"
    assert view.path == "/c/mugs?page=2"


def test_elements_are_found_by_role_name_and_place() -> None:
    view = View(PAGE)
    red = view.group("Red", "5.50")
    assert view.find("button", "Add").bid == 5
    assert view.find("button", "Add", red).bid == 7
    assert view.find("button", "Add").states == ("disabled",)
    assert len(view.all("row")) == 3
    assert view.has("link", "mug")
    assert not view.has("link", "cup")
    assert view.text.startswith("Mugs Search tea In stock Sort Price Name")


def test_what_is_not_there_is_said_with_what_is() -> None:
    view = View(PAGE)
    with pytest.raises(NotOnPage, match="no button Buy at https://shop.test/c/mugs.*Mugs Search"):
        view.find("button", "Buy")
    with pytest.raises(NotOnPage, match="Red and 4.50"):
        view.group("Red", "4.50")


def test_actions_are_made_of_what_is_shown() -> None:
    view = View(PAGE)
    assert view.click("link", "mug", view.group("Red")) == {"click": {"bid": 6}}
    assert view.fill("Search", "cup") == {"fill": {"bid": 1, "value": "cup"}}
    assert view.select("Sort", "Price") == {"select_option": {"bid": 3, "options": ["Price"]}}
    assert view.selected("Sort") == "Name"
    assert view.checked("checkbox", "In stock")
    assert say("4.50") == {"send_msg_to_user": {"text": "4.50"}}
    assert give_up("none left") == {"report_infeasible": {"reason": "none left"}}


# names and values hold whatever playwright passes on: quotes, backslashes, brackets, control characters
words = st.text(
    st.characters(codec="utf-8", exclude_characters="\u2028\u2029\ufeff\ufffe\uffff"), max_size=12
) | st.sampled_from(['"', "\\", "\\n", "a\nb", "[1]", "x]: y", "\x85", "Page:\n", "- a: b"])
plain = words.map(str.strip).filter(bool)
roles = st.sampled_from(("button", "link", "cell", "row", "heading", "graphics-symbol"))
states = st.lists(st.sampled_from(("checked", "disabled", "level=2", "checked=mixed")), unique=True, max_size=2)


@st.composite
def nodes(draw: st.DrawFn, depth: int = 3) -> Node:
    """An element as pruning leaves it: with a name, so that nothing of it is left out."""
    node = Node(draw(roles), draw(plain), tuple(draw(states)))
    if depth and draw(st.booleans()):
        node.children = draw(st.lists(nodes(depth=depth - 1), max_size=3))
    else:
        node.value = draw(st.just("") | plain)
    return node


def quoted(text: str) -> str:
    """In quotes, as playwright escapes: also the control characters after ASCII."""
    return re.sub("[\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", json.dumps(text, ensure_ascii=False))


def snapshot(node: Node, counter: list[int], depth: int = 0) -> str:
    """As playwright writes it, but everything is quoted, which YAML permits."""
    counter[0] += 1
    key = " ".join(
        [
            node.role,
            json.dumps(node.name, ensure_ascii=False),
            *(f"[{state}]" for state in node.states),
            f"[ref=e{counter[0]}]",
        ]
    )
    value = " " + quoted(node.value) if node.value else ""
    children = "".join(snapshot(child, counter, depth + 1) for child in node.children)
    return f"{'  ' * depth}- {quoted(key)}{':' if value or children else ''}{value}\n{children}"


def as_tuple(element: Node | Element) -> object:
    return (
        element.role,
        element.name,
        element.states,
        element.value,
        [as_tuple(child) for child in element.children],
    )


@given(st.lists(nodes(), min_size=1, max_size=4))
def test_what_is_written_is_read(page: list[Node]) -> None:
    counter = [0]
    written = page_text("".join(snapshot(node, counter) for node in page))
    view = View(f"Tab 0 (active): T https://a.test/\nFocused: none\nPage:\n{written.text}")
    assert [as_tuple(child) for child in view.root.children] == [as_tuple(node) for node in page]
    numbered = {element.bid: element for element in view.root.walk() if element.bid is not None}
    assert sorted(numbered) == sorted(written.controls) == list(range(1, len(numbered) + 1))
    for bid, control in written.controls.items():
        assert (numbered[bid].role, numbered[bid].name) == (control.role, control.name)
    assert all(element.role in FIELDS | {"button", "link"} for element in numbered.values())
