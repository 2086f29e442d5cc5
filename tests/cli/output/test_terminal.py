from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.cli.output.terminal import clean, exit_status, figure, flowing, number, one_line
from taskapp_kit.errors import ConfigError, DiscoveryError, RequestError, StoreError


@given(st.text())
def test_no_text_steers_a_terminal(text: str) -> None:
    shown = clean(text)
    assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in shown)
    assert "\x1b" not in shown
    assert "\x7f" not in shown
    assert "\x9b" not in shown
    assert "\u202e" not in shown


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "Zs"])))
def test_plain_words_stay_as_they_are(text: str) -> None:
    assert clean(text) == text


@given(st.text(), st.integers(2, 200))
def test_one_line_is_one_line_and_fits(text: str, width: int) -> None:
    shown = one_line(text, width)
    assert "\n" not in shown
    assert len(shown) <= width


def test_one_line_says_that_it_cut() -> None:
    assert one_line("target 8\ntotal 3", 40) == "target 8 / total 3"
    assert one_line("abcdefgh", 5) == "abcd…"


def test_flowing_undoes_line_ends_but_keeps_paragraphs_and_lists() -> None:
    assert flowing("One\ntwo.\n\nThree:\n- four\n- five\n    code") == "One two.\n\nThree:\n- four\n- five\n    code"


def test_number() -> None:
    assert (number(None), number(0.1818181818), number(4), number(1.0)) == ("-", "0.181818", "4", "1")
    assert (figure(14_012.4), figure(-14_012.4, sign="+"), figure(0.12345)) == ("14,012", "-14,012", "0.1235")


def test_exit_status() -> None:
    assert exit_status(RequestError("x")) == exit_status(ConfigError("x")) == exit_status(DiscoveryError("x")) == 2
    assert exit_status(StoreError("x")) == 1
    broke = DiscoveryError("x")
    broke.__cause__ = ValueError()
    assert exit_status(broke) == 1


def test_the_path_of_a_file_whose_name_is_not_utf_8_can_be_printed() -> None:
    assert clean(os.fsdecode(b"a\xff")).encode() == b"a\\xdcff"
