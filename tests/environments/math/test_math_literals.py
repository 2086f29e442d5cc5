"""Answers read as what they say: numbers, lists, boxes, wrappings. Nothing is computed."""

from __future__ import annotations

import time
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.math.literals import MAX_ANSWER_CHARACTERS, Unreadable, boxed, cleaned, number, numbers, unnamed

WAYS = [
    ("7", 7), ("+7", 7), ("-7", -7), ("\u22127", -7), ("007", 7), ("7.", 7), ("7.0", 7), (".5", Fraction(1, 2)),
    ("1,000", 1000), ("1{,}000", 1000), (r"1\,000", 1000), ("1,234,567.25", Fraction("1234567.25")),
    ("1/2", Fraction(1, 2)), ("-3 / 4", Fraction(-3, 4)), ("1 1/2", Fraction(3, 2)), ("-1 1/2", Fraction(-3, 2)),
    (r"\frac{1}{2}", Fraction(1, 2)), (r"-\dfrac{6}{4}", Fraction(-3, 2)), (r"\frac{-1}{2}", Fraction(-1, 2)),
    (r"1\frac{1}{2}", Fraction(3, 2)), ("1.5e3", 1500), ("2E-2", Fraction(1, 50)), ("$18", 18), (r"\$18", 18),
    ("-$5", -5), ("$-5", -5), ("0.5/2", Fraction(1, 4)), (r"$\$5$", 5), (r"\$1,\!000", 1000), (r"1\,000\,000", 10**6),
    (r"\frac12", Fraction(1, 2)), (r"\tfrac1{20}", Fraction(1, 20)), (r"1\dfrac12", Fraction(3, 2)), ("{1 \\over 2}", Fraction(1, 2)),
    (r"2.998 \times 10^8", 299800000), (r"1.6\cdot10^{-19}", Fraction(16, 10**20)), ("1.6 × 10^-19", Fraction(16, 10**20)),
    ("3*10**4", 30000), ("10^{-16}", Fraction(1, 10**16)), ("1e-300", Fraction(1, 10**300)), (r"\text{7}", 7), (r"\mathrm{7}", 7),
    (r"0.\overline{3}", Fraction(1, 3)), (r"1.2\overline{45}", Fraction(137, 110)), (r"\left. 7 \right.", 7),
]  # fmt: skip
NO_NUMBERS = [
    "", " ", "seven", "3+4", "3 4", "2^3", "2**3", "9**9**9", "sqrt(49)", "7 or 8", "7, 8", "7; 8", "7 cm", "7%", "7 %",
    "50\\%", "7 dollars", "€7", "£7", "7€", "١٢", "７", "²", "½", "1,00", "1,0000", ",100", "1.2.3", "--7", "-$-7", "1e9999",
    "1e", "e5", "nan", "NaN", "inf", "-inf", "Infinity", "∞", "0x10", "0b1", "1_000", "7j", "True", "None", "7=7", "1/0",
    "1 1/0", r"\frac{1}{0}", r"\frac{7}", r"\frac123", "2^{3}", "10^1", "10^{9999}", "(7)", "[7]", "{7}", "7\n8", "7\x00", "__import__('os').getpid()",
    "0+7", "(3)(4)", "7!", "7 7/1/1", "about 7",
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), WAYS)
def test_a_number_is_read_in_every_way_that_people_write_it(text: str, value: Fraction | int) -> None:
    assert number(cleaned(text)) == value


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_text_that_is_not_one_number_is_rejected(text: str) -> None:
    with pytest.raises(Unreadable):
        number(cleaned(text))


@given(st.integers(), st.integers(min_value=1), st.booleans())
def test_fractions_and_thousands_are_exact(top: int, bottom: int, latex: bool) -> None:
    sign = "-" if top < 0 else ""
    written = f"{sign}\\frac{{{abs(top):,}}}{{{bottom}}}" if latex else f"{top:,}/{bottom}"
    assert number(written) == Fraction(top, bottom)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6))
def test_decimals_are_exact(value: object) -> None:
    assert number(f"{value:f}") == Fraction(f"{value:f}")


@given(st.text(max_size=60))
def test_any_text_is_a_number_or_unreadable(text: str) -> None:
    try:
        number(unnamed(cleaned(text)))
    except Unreadable:
        return
    assert any(sign in "0123456789" for sign in text)


@pytest.mark.parametrize(
    "text", ["7", " 7 ", "$7$", "$$7$$", r"\(7\)", r"\[ 7 \]", r"\boxed{7}", r"$\boxed{7}$", "**7**", "`7`", "7.", "$7$.",
             "**$7$**", r"\boxed{ 7 }", r"\boxed{\boxed{7}}", r"\boxed{\text{7}}", r"\displaystyle 7"],
)  # fmt: skip
def test_what_is_around_an_answer_is_taken_off(text: str) -> None:
    assert cleaned(text) == "7"


def test_names_in_front_are_taken_off() -> None:
    assert unnamed("x = 3") == "3"
    assert unnamed("x_1=3", "x") == "3"
    assert unnamed("y = 3", "x") == "y = 3"
    assert unnamed("x = y = 3") == "y = 3"


def test_lists_are_sorted_and_a_comma_always_separates() -> None:
    assert numbers("2, -1.5") == (Fraction(-3, 2), Fraction(2))
    assert numbers("x = 2, x = -1.5", "x") == (Fraction(-3, 2), Fraction(2))
    assert numbers("x = 2, -1.5", "x") == (Fraction(-3, 2), Fraction(2))
    assert numbers(r"\{2, -1.5\}") == numbers("[2,-1.5]") == (Fraction(-3, 2), Fraction(2))
    assert numbers("1,000") == (Fraction(0), Fraction(1))
    assert numbers("") == numbers('""') == ()
    for text in ("1,", ",", "1, two", "1 or 2", "1; 2", "[1", "1 2", "y = 2"):
        with pytest.raises(Unreadable):
            numbers(text, "x")


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"so \boxed{7}", "7"),
        (r"\boxed{\frac{1}{2}} indeed", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{7}, I repeat: \boxed{ 7 }", "7"),
        (r"<think>\boxed{8}? no</think> \boxed{7}", "7"),
        (r"\boxed{}", ""),
    ],
)
def test_the_box_is_found(text: str, inside: str) -> None:
    assert boxed(text) == inside


@pytest.mark.parametrize(
    "text", ["", "7", r"\boxed 7", r"\boxed{7", r"\boxed{7} \boxed{8}", r"\boxed{7} or \boxed{7.5}", r"\boxed{\boxed{7}",
             r"\boxed{7}</think>", "\\boxed{" + "7" * 2000 + "}"],
)  # fmt: skip
def test_no_box_or_several_is_no_answer(text: str) -> None:
    with pytest.raises(Unreadable):
        boxed(text)


@pytest.mark.parametrize(
    "text", ["\\boxed{" * 50_000, "\\boxed{" + "{" * 390_000, "\\boxed{7}" * 40_000, "}" * 400_000, "\\" * 400_000]
)
def test_long_texts_take_time_in_proportion(text: str) -> None:
    began = time.process_time()
    with suppress(Unreadable):
        assert boxed(text) == "7"
    assert time.process_time() - began < 2.0


def test_a_long_answer_is_refused_unread() -> None:
    for text in ("7" * (MAX_ANSWER_CHARACTERS + 1), "(" * 1_000_000, "1," * 500_000):
        began = time.process_time()
        with pytest.raises(Unreadable, match="characters"):
            cleaned(text)
        assert time.process_time() - began < 0.1
