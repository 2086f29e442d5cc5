"""What of a page's accessibility tree an observation shows, and which elements get a number."""

import textwrap

import pytest

from environments.web.tree import MAX_CHARACTERS, page_text


def shown(snapshot: str, number_all: bool = False) -> str:
    return page_text(textwrap.dedent(snapshot), number_all).text


def test_controls_are_numbered_in_the_pages_order_and_the_rest_is_not() -> None:
    found = page_text(
        textwrap.dedent("""\
        - heading "Things" [level=1] [ref=e2]
        - link "Home" [ref=e4] [cursor=pointer]:
          - /url: /home
        - textbox "Search" [active] [ref=e11]: tea
        - button "Go" [disabled] [ref=e13]
        """)
    )
    assert found.text.splitlines() == [
        'heading "Things" [level=1]',
        '[1] link "Home"',
        '[2] textbox "Search": tea',
        '[3] button "Go" [disabled]',
    ]
    assert {bid: control.ref for bid, control in found.controls.items()} == {1: "e4", 2: "e11", 3: "e13"}
    assert found.focused == 2
    assert str(found.controls[3]) == 'button "Go"'
    assert found.controls[3].states == ("disabled",)


def test_an_element_with_a_hand_over_it_can_be_acted_on() -> None:
    assert shown("- generic [ref=e43] [cursor=pointer]: Div button") == "[1] generic: Div button"


def test_the_line_that_opens_details_can_be_acted_on() -> None:
    page = """\
        - group [ref=e38]:
          - generic "More" [ref=e39]
          - text: inside
        """
    assert shown(page) == 'group\n  [1] summary "More"\n  text: inside'


def test_number_all_numbers_whatever_has_a_reference() -> None:
    page = """\
        - paragraph [ref=e3]: words
        - generic "named" [ref=e4]
        """
    assert shown(page) == 'paragraph: words\ngeneric "named"'
    assert shown(page, number_all=True) == '[1] paragraph: words\n[2] generic "named"'


def test_wrappers_without_a_name_are_left_out_and_a_single_text_stands_in_its_elements_line() -> None:
    page = """\
        - generic [ref=e1]:
          - generic [ref=e2]:
            - table [ref=e3]:
              - rowgroup [ref=e4]:
                - row [selected] [ref=e5]:
                  - cell "a" [ref=e6]
                  - cell [ref=e7]:
                    - text: b
        """
    assert shown(page).splitlines() == ["table", "  row [selected]", '    cell "a"', "    cell: b"]


@pytest.mark.parametrize("before", [True, False])
def test_text_of_a_label_next_to_its_field_is_omitted(before: bool) -> None:
    lines = ["- text: Name", '- textbox "Name" [ref=e2]: x']
    assert shown("\n".join(lines if before else lines[::-1])) == '[1] textbox "Name": x'


def test_only_one_text_next_to_a_field_is_its_label() -> None:
    assert shown('- text: Open\n- checkbox "Open" [ref=e2]\n- text: Open') == '[1] checkbox "Open"\ntext: Open'


def test_text_next_to_a_button_with_the_same_name_is_kept() -> None:
    page = """\
        - cell [ref=e1]:
          - text: Open
          - button "Open" [ref=e2]
        """
    assert shown(page) == 'cell\n  text: Open\n  [1] button "Open"'


def test_texts_that_make_up_their_elements_name_are_left_out() -> None:
    page = """\
        - link "10:00 Garden meeting , Fri" [ref=e1]:
          - strong [ref=e2]:
          - text: 10:00 Garden meeting
          - text: ", Fri"
        - button "Pay" [ref=e3]:
          - text: Pay 4.50
        """
    assert shown(page) == '[1] link "10:00 Garden meeting , Fri"\n  strong\n[2] button "Pay": Pay 4.50'


def test_a_tables_caption_is_its_name_and_comes_once() -> None:
    page = """\
        - table "Rooms" [ref=e1]:
          - caption [ref=e2]: Rooms
          - rowgroup [ref=e3]:
            - row "x" [ref=e4]
        """
    assert shown(page) == 'table "Rooms"\n  row "x"'


def test_a_placeholder_is_shown_while_the_field_is_empty() -> None:
    empty = '- textbox "Name" [ref=e1]:\n  - /placeholder: Ada'
    assert shown(empty) == '[1] textbox "Name"\n  placeholder: Ada'
    assert shown(empty + "\n  - text: Bo") == '[1] textbox "Name": Bo'
    assert shown('- textbox "Ada" [ref=e1]:\n  - /placeholder: Ada') == '[1] textbox "Ada"'


@pytest.mark.parametrize("state", ["checked", "checked=mixed", "expanded", "invalid", "pressed", "selected", "level=2"])
def test_states_are_kept(state: str) -> None:
    assert shown(f'- button "B" [{state}] [ref=e1]') == f'[1] button "B" [{state}]'


def test_options_of_a_drop_down_list_have_no_number_for_they_are_chosen_by_name() -> None:
    page = """\
        - combobox "Sort" [ref=e25]:
          - option "Price"
          - option "Name" [selected]
        """
    assert shown(page) == '[1] combobox "Sort"\n  option "Price"\n  option "Name" [selected]'


def test_a_frames_elements_are_part_of_the_page() -> None:
    page = """\
        - iframe [ref=e67]:
          - generic [ref=f1e1]:
            - button "Inside" [ref=f1e3]
        """
    found = page_text(textwrap.dedent(page))
    assert found.text == 'iframe\n  [1] button "Inside"'
    assert found.controls[1].ref == "f1e3"


def test_text_that_looks_like_a_line_of_the_tree_stays_text() -> None:
    assert shown("- paragraph [ref=e92]: '[1] button \"Pay\" - key: value #'") == (
        'paragraph: [1] button "Pay" - key: value #'
    )
    assert shown('- paragraph [ref=e92]: "a\\n[1] button \\"Pay\\""') == 'paragraph: a\\n[1] button "Pay"'
    assert shown(r"- paragraph [ref=e92]: a\nb") == r"paragraph: a\\nb"


def test_characters_that_no_yaml_may_hold_do_not_hide_the_page() -> None:
    assert shown("- paragraph [ref=e1]: a\x07b\ufffec\ud800d") == "paragraph: a\ufffdb\ufffdc\ufffdd"


def test_an_empty_page_is_an_empty_text() -> None:
    assert page_text("").text == ""
    assert page_text("").controls == {}


def test_long_page_is_truncated_at_a_line_end_with_a_note() -> None:
    lines = [f'- button "Button {index:05d}" [ref=e{index}]' for index in range(2000)]
    found = page_text("\n".join(lines))
    *kept, last = found.text.splitlines()
    assert last == f"… (cut off after {MAX_CHARACTERS} characters)"
    assert len("\n".join(kept)) <= MAX_CHARACTERS
    assert kept[-1] == f'[{len(kept)}] button "Button {len(kept) - 1:05d}"'
    assert len(found.controls) == 2000  # a policy that knows the page can go on


def test_one_line_that_is_too_long_is_cut_inside() -> None:
    text = shown(f"- paragraph [ref=e1]: {'x' * 2 * MAX_CHARACTERS}")
    assert text.startswith("paragraph: xxx")
    assert len(text) < MAX_CHARACTERS + 60
    assert text.endswith("characters)")
