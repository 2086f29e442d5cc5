"""What each grader pays, and what it does not."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.grading import Grade, choice, equal_text, number

EQUAL = {
    "Paris": [
        "Paris", "paris", "PARIS", " Paris ", "Paris.", "Paris!", "Paris\n", "\tParis", "**Paris**", "*Paris*", "_Paris_",
        "`Paris`", '"Paris"', "'Paris'", "“Paris”", "‘Paris’", "«Paris»", "**Paris.**", "**Paris**.", '"Paris."', "Pa\u200bris",
        "\ufeffParis", "Paris\u00a0", "__Paris__", "***Paris***", "Paris。",
    ],
    "New York City": ["New York City", "new  york city", "NEW YORK\nCITY", " New\u00a0York City. "],
    "São Paulo": ["São Paulo", "Sa\u0303o Paulo", "são paulo!"],
    "don't": ["don't", "don’t", "Don't."],
    "-5": ["-5", " -5.", "`-5`"],
    "5!": ["5!", "**5!**"],
    "U.S.": ["U.S.", "u.s."],
    "Straße": ["straße", "STRASSE"],
    "*": ["*"],
}  # fmt: skip
DIFFERENT = {
    "Paris": [
        "", " ", ".", "Paris Tokyo", "Tokyo Paris", "Paris or Tokyo", "Paris, Tokyo", "Paris/Tokyo", "Paris\nTokyo", "not Paris",
        "Paris?", "Paris (or Tokyo)", "Paris, I think", "It is Paris", "The answer is Paris", "Answer: Paris", "Paris Paris",
        "Pari", "Pariss", "P aris", "paris.tokyo", "Tokyo", "Paris, no, Tokyo", "Paris is wrong", "<think>Paris</think>",
        "[Paris]", "{Paris}", "Paris…", "(Paris)", "#Paris", "Parıs", "Pàris", "\u0420aris", "Paris, France", "~Paris~", "\"Paris",
        "Paris;", "Paris,", "The capital of France is the answer.",
    ],
    "5": ["-5", "+5", "5!", "5%", "$5", ".5", "5.0", "05", "5,", "55", "5 5", "²5", "five", "½5"],
    "x": ["x!", "-x", "x²", "x'"],
    "C": ["C++", "C#", "c or d"],
    "52": ["5²", "5^2", "5 2"],
}  # fmt: skip

CITIES = ["London", "Paris", "Rome", "A dog"]
CHOSEN = {
    "B": [
        "B", "b", "(B)", "[B]", "B.", "B)", "B:", "(b).", "**B**", "`B`", '"B"', "'b'", " B \n", "*B*", "**(B)**", "**B.**",
        "Paris", "paris", "PARIS.", "**Paris**", "B Paris", "B. Paris", "B) Paris", "(B) Paris", "[B] Paris", "B: Paris",
        "B - Paris", "b) paris.", "B – Paris", "B. **Paris**", "(B): Paris", "**B) Paris**", "B.  Paris", "B\nParis", '"Paris"',
        "_B_", "«B»", "B。", "B!"[:1], "(B) - Paris",
    ],
    "D": ["D", "A dog", "a dog.", "D. A dog", "(d) a dog"],
}  # fmt: skip
NOT_CHOSEN = {
    "B": [
        "", " ", "A", "C", "D", "E", "London", "Rome", "A or B", "B or C", "B, C", "A B", "B and C", "ABCD", "A, B, C, D", "BB",
        "not B", "B?", "B, no C", "B. Rome", "B) London", "A) Paris", "(A) Paris", "Paris or Rome", "Paris Rome", "not Paris",
        "neither", "all of them", "any", "The answer is B", "Answer: B", "I choose B", "B because it is", "B; C", "B/C", "1", "2",
        "option B or C", "B\nC", "Paris\nRome", "(B) (C)", "b c", "B. Paris or Rome", "B. B", "Pari", "*", "{B}",
    ],
    "A": ["A dog", "a dog", "D", "A d"],
}  # fmt: skip

NUMBERS = {
    "42": [
        "42", " 42 ", "42.", "42.0", "42.00", "+42", "**42**", "`42`", '"42"', "42\n", "4.2e1", "4.2E+1", "420e-1", "84/2", "84 / 2",
        "042", "4.2 × 10^1", "4.2x10^1", "4.2 * 10^{1}", "0.42e2", "42!"[:2], "\u200b42",
    ],
    "-3.5": ["-3.5", "\u22123.5", "-3.50", "-7/2", "-35e-1", "-3.5."],
    "1234567.5": ["1,234,567.5", "1234567.5", "1\u202f234\u202f567.5", "1\u00a0234\u00a0567.5", "1234567.50"],
    "0.5": [".5", "0.5", "1/2", "5e-1", "0.50", "2/4"],
    "6.02e23": ["6.02e23", "6.02 × 10^23", "602000000000000000000000", "6.02·10^23"],
    "15511210043330985984000000": ["15511210043330985984000000", "15,511,210,043,330,985,984,000,000"],
    "0": ["0", "0.0", "-0", "0e5", "0/7"],
}  # fmt: skip
NO_NUMBERS = {
    "42": [
        "", " ", "43", "-42", "42 43", "42, 43", "42 or 43", "42-43", "42?", "42%", "$42", "42 cm", "42€", "forty-two", "x = 42",
        "about 42", "not 42", "The answer is 42", "42 (or 43)", "4 2", "42!", "0x2a", "4,2", "42,0", "4_2", "42e", "e42",
        "42/0", "84/2/1", "1/2 of 84", "inf", "nan", "42j", "42 42", "[42]", "(42)", "{42}", "٤٢", "42\n43", "42.0.0", "--42", "²42",
        "9" * 500, "42e9999999", "1,23", "12,34,567", "=42", "<42", ">=42", "42 ± 1",
    ],
    "15511210043330985984000000": ["15511210043330986000000000", "1.5511210043330986e25", "15511210043330985984000001"],
    "0": ["1e-300", "-1e-300", "0/0", "O"],
    "1e-19": ["1.6e-19", "9.9e-31", "0", "1e-20"],
}  # fmt: skip
RIGHT_BUT_REFUSED = {
    "Paris, I think", "It is Paris", "The answer is Paris", "Answer: Paris", "[Paris]", "(Paris)", "{Paris}", "#Paris", "Paris, France", "Paris;", "Paris,",
    "The answer is B", "Answer: B", "I choose B", "B because it is", "{B}", "The answer is 42", "x = 42", "forty-two", "0x2a", "[42]", "(42)", "{42}", "=42", "42,0",
}  # fmt: skip
"""Right answers in a form that no strict grader accepts: the false negatives of docs/environments/graders.md."""


def pairs(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(expected, answer) for expected, answers in table.items() for answer in answers]


def test_every_table_has_forty_answers() -> None:
    assert all(len(pairs(table)) >= 40 for table in (EQUAL, DIFFERENT, CHOSEN, NOT_CHOSEN, NUMBERS, NO_NUMBERS))


@pytest.mark.parametrize(("expected", "answer"), pairs(EQUAL))
def test_equal_texts_are_paid(expected: str, answer: str) -> None:
    assert equal_text(answer, expected).score == 1.0


@pytest.mark.parametrize(("expected", "answer"), pairs(DIFFERENT))
def test_different_texts_are_not_paid(expected: str, answer: str) -> None:
    assert equal_text(answer, expected).score == 0.0


@pytest.mark.parametrize(("expected", "answer"), pairs(CHOSEN))
def test_the_right_option_is_paid(expected: str, answer: str) -> None:
    assert choice(answer, expected, CITIES).score == 1.0


@pytest.mark.parametrize(("expected", "answer"), pairs(NOT_CHOSEN))
def test_no_other_choice_is_paid(expected: str, answer: str) -> None:
    assert choice(answer, expected, CITIES).score == 0.0


@pytest.mark.parametrize(("expected", "answer"), pairs(NUMBERS))
def test_the_right_number_is_paid(expected: str, answer: str) -> None:
    assert number(answer, expected).score == 1.0


@pytest.mark.parametrize(("expected", "answer"), pairs(NO_NUMBERS))
def test_no_other_number_is_paid(expected: str, answer: str) -> None:
    assert number(answer, expected).score == 0.0


def test_case_counts_where_the_author_says_so() -> None:
    assert not equal_text("paris", "Paris", ignore_case=False)
    assert equal_text("Paris.", "Paris", ignore_case=False)


def test_any_of_several_expected_texts_is_right() -> None:
    assert equal_text("colour", ["color", "colour"])
    assert not equal_text("color colour", ["color", "colour"])


@pytest.mark.parametrize(
    ("answer", "expected", "tolerances", "score"),
    [
        ("3.14", 3.14159, {"absolute_tolerance": 0.01}, 1.0),
        ("3.12", 3.14159, {"absolute_tolerance": 0.01}, 0.0),
        ("1.61e-19", 1.6e-19, {"relative_tolerance": 0.01}, 1.0),
        ("1.7e-19", 1.6e-19, {"relative_tolerance": 0.01}, 0.0),
        ("101", -100, {"relative_tolerance": 3}, 1.0),
        ("0.1", 0.1, {}, 1.0),
        ("0.3", 0.1 + 0.2, {}, 0.0),
        ("0.3", 0.1 + 0.2, {"relative_tolerance": 1e-9}, 1.0),
        ("1e999999", 1, {"absolute_tolerance": 1e300}, 0.0),
        ("1/3", Decimal("0.3333"), {"absolute_tolerance": 0.0001}, 1.0),
    ],
)
def test_the_larger_tolerance_counts(answer: str, expected: float, tolerances: dict[str, float], score: float) -> None:
    assert number(answer, expected, **tolerances).score == score


@pytest.mark.parametrize("options", [{"x": "Paris", "y": "Rome"}, {"1": "Paris", "2": "Rome"}])
def test_options_may_have_their_own_labels(options: dict[str, str]) -> None:
    first, second = options
    assert choice(f"({first}) Paris", first, options)
    assert choice("Paris", "Paris", options)
    assert not choice(second, first, options)


@pytest.mark.parametrize(
    "call",
    [
        lambda: equal_text("a", ""),
        lambda: equal_text("a", []),
        lambda: equal_text("a", ["a", " "]),
        lambda: choice("a", "Z", CITIES),
        lambda: choice("a", "A", ["one"]),
        lambda: choice("a", "A", ["one", "One."]),
        lambda: choice("a", "A", ["one", ""]),
        lambda: choice("a", "A", "one"),
        lambda: choice("a", "A", {"A": "one", "a": "two"}),
        lambda: choice("a", "A", [str(item) for item in range(27)]),
        lambda: choice("b", "b", {"a": "b", "b": "c"}),
        lambda: number("1", "one"),
        lambda: number("1", True),
        lambda: number("1", float("nan")),
        lambda: number("1", float("inf")),
        lambda: number("1", 1, absolute_tolerance=-1),
        lambda: number("1", 1, relative_tolerance=float("nan")),
        lambda: number("1", 1, absolute_tolerance=float("inf")),
        lambda: number("1", 1, absolute_tolerance="some"),  # type: ignore[arg-type]
    ],
)
def test_what_no_answer_could_satisfy_is_the_authors_mistake(call: object) -> None:
    with pytest.raises(ValueError):
        call()  # type: ignore[operator]


def test_a_grade_is_a_number_and_never_repeats_the_expected_answer() -> None:
    assert float(Grade(0.25, "some")) == 0.25
    assert bool(Grade(0.25, "some")) and not Grade(0.0, "none")
    for grade in (equal_text("x y", "canary"), choice("x", "canary", ["canary", "b"]), number("7", 4711)):
        assert grade.reason and "canary" not in grade.reason and "4711" not in grade.reason


@pytest.mark.ci(keep=3)
@pytest.mark.parametrize("text", ['"', "*", "x.", "x. ", "\u0301\u0316", "\u200b", "\ud800", "\u202e", "word "])
def test_an_answer_of_a_million_characters_is_graded_in_linear_work(text: str) -> None:
    """Each of these would take minutes if the work grew with the square of the length."""
    answer = text * (1_000_000 // len(text))
    for grade in (equal_text(answer, "x"), choice(answer, "A", CITIES), number(answer, 5)):
        assert grade.score == 0.0
    assert equal_text('*"' * 8 + "x" + '"*' * 8, "x")


@pytest.mark.parametrize("tolerance", [Decimal("0.1"), Fraction(1, 10), np.float32(0.1), np.float64(0.1), "0.1"])
def test_a_tolerance_is_a_number_of_any_type(tolerance: Any) -> None:
    assert number("5.1", "5", absolute_tolerance=tolerance)
    assert not number("5.2", "5", absolute_tolerance=tolerance)


@pytest.mark.parametrize("score", [1, True, Decimal(1), Fraction(1), np.float32(1), np.int64(1)])
def test_a_grades_score_is_a_number_of_any_type(score: Any) -> None:
    assert float(Grade(score, "right")) == 1.0


def test_an_option_whose_text_is_anothers_label_is_named_by_both() -> None:
    options = {"1": "2", "2": "3", "3": "1"}
    assert choice("(1) 2", "1: 2", options)
    assert not choice("2", "1: 2", options), "it may be the label of the second"


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_text_equals_itself_and_never_itself_with_another_word(text: str, more: str) -> None:
    try:
        same = equal_text(text, text)
    except ValueError:  # nothing visible
        return
    assert same
    assert not equal_text(f"{text} or {more}", text)


@given(st.integers() | st.decimals(allow_nan=False, allow_infinity=False))
def test_a_number_equals_its_own_text(value: int | Decimal) -> None:
    assert number(str(value), str(value))
    assert not number(f"{value} or {value}", str(value))
