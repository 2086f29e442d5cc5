"""Polynomials read exactly, in Python's spelling and LaTeX's; and how far reading goes."""

from __future__ import annotations

import time
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.math.literals import Unreadable
from environments.math.polynomials import derivative, polynomial

HALF = Fraction(1, 2)


@pytest.mark.parametrize(
    "text",
    ["x**2/2 + C", "x^2/2+C", r"\frac{x^2}{2} + C", r"\frac{1}{2}x^{2} + C", "0.5*x**2+C", ".5x^2 + C", "C + x*x/2",
     "x(x)/2+C", r"\frac{1}{2} \cdot x^{2} + C", r"\left(\frac{1}{2}\right)x^2 + C", "1/2 x**2 + C", "(x**2 + 2C)/2",
     "-(-x^2/2) + C", "(x+1)^2/2 - x - 1/2 + C", "x^(2)/2 + C", r"x \times x/2+C", "--x^2/2 + C"],
)  # fmt: skip
def test_one_polynomial_in_many_spellings(text: str) -> None:
    assert polynomial(text, "x") == {(2, 0): HALF, (0, 1): Fraction(1)}


def test_the_derivative_forgets_the_constant_only() -> None:
    assert derivative(polynomial("x**3/3 - x + 5*C + 2", "x")) == polynomial("x**2 - 1", "x")
    assert derivative(polynomial("C*x", "x")) != {}
    assert polynomial("x - x", "x") == {}


@given(st.lists(st.tuples(st.fractions(), st.integers(min_value=0, max_value=20)), max_size=6))
def test_what_is_written_is_read(terms: list[tuple[Fraction, int]]) -> None:
    text = " + ".join(f"({factor})*x**{power}" for factor, power in terms) or "0"
    latex = " + ".join(
        f"\\frac{{{factor.numerator}}}{{{factor.denominator}}}x^{{{power}}}" for factor, power in terms
    ) or "0"  # fmt: skip
    wanted: dict[tuple[int, int], Fraction] = {}
    for factor, power in terms:
        wanted[power, 0] = wanted.get((power, 0), Fraction(0)) + factor
    wanted = {powers: factor for powers, factor in wanted.items() if factor}
    assert polynomial(text, "x") == polynomial(latex, "x") == wanted


@pytest.mark.parametrize(
    "text",
    ["", "y", "X", "x y", "x**y", "x**-1", "1/x", "x/0", "x**2**2", "x**100", "x**1.5", "sin(x)", "(x", "x)", "x +", "*x",
     "x = 1", "x, 1", "x or 1", "x!", "9**9**9", "exp(x)", "x.real", "x[0]", "x@x", "x;x", "x\\", "\\frac{x}", "\\frac12",
     "(" * 400 + "x" + ")" * 400, "(x+1)**99", "((((x+1)**60))**60)", "9" * 900 + "x", "x if x else 1", "__import__('os')",
     "lambda: x", "\\input{x}"],
)  # fmt: skip
def test_text_that_is_not_a_polynomial_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        polynomial(text, "x")


@pytest.mark.parametrize(
    "text", ["+".join(["(x+C+1)^60"] * 90), "*".join(["(x+C)^9"] * 100), "(((x+C)^8+1)^4+1)^2" * 40, "-" * 999 + "x",
             "(x+1/3)^64" * 90, "+".join(["x"] * 499), "1/7/7/7/7/7/7/7/7/7/7/7/7/7x" * 35],
)  # fmt: skip
def test_reading_ends_soon(text: str) -> None:
    began = time.process_time()
    with suppress(Unreadable):
        polynomial(text, "x")
    assert time.process_time() - began < 0.5


@given(st.text(alphabet="x0123456789+-*/^(){}C. \\fracy=,", max_size=60))
def test_any_text_is_a_polynomial_or_unreadable(text: str) -> None:
    try:
        value = polynomial(text, "x")
    except Unreadable:
        return
    assert all(isinstance(factor, Fraction) and factor for factor in value.values())
