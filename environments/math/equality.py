"""Decides whether an answer is right, by exact arithmetic where possible, else by `math_verify`.

The right answer is a `Reference`: a number, a list of roots, an antiderivative, an expression, or words. README.md
defines what counts as equal for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from .expressions import expression, same_shape
from .literals import Unreadable, cleaned, number, numbers, unnamed
from .polynomials import derivative, polynomial

Reply = Literal["equal", "different", "unreadable", "too_costly"]
Ask = Callable[[Mapping[str, str]], Reply]
"""Sends a comparison to `math_verify` in another process: see `comparer.Comparer.ask`."""

ROOT_TOLERANCE = Fraction(1, 10_000)
"""How far a root may be off: the questions ask for four decimals, and are unclear about rounding."""


@dataclass(frozen=True, slots=True)
class Number:
    """One number. variable: the name that may precede it (`x = 3`); any letter when None."""

    value: Fraction
    variable: str | None = None


@dataclass(frozen=True, slots=True)
class Roots:
    """All real roots, ascending, each once."""

    values: tuple[Fraction, ...]
    variable: str


@dataclass(frozen=True, slots=True)
class Antiderivative:
    """Any antiderivative of `integrand` (a polynomial as Python writes it) by `variable`."""

    integrand: str
    variable: str


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression, set, interval or matrix, as LaTeX."""

    latex: str


@dataclass(frozen=True, slots=True)
class Words:
    """A text: compared without case and white space."""

    text: str


Reference = Number | Roots | Antiderivative | Expression | Words


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a comparison. how: what decided it; with the last two there was no answer to compare."""

    correct: bool
    how: Literal["exact", "roots", "polynomial", "math_verify", "words", "too_costly", "unreadable"]

    @property
    def readable(self) -> bool:
        """Whether it was an answer of the right kind, right or wrong."""
        return self.how not in ("too_costly", "unreadable")


def reference_of(answer: str) -> Reference:
    """Parses a row's answer: a number if it is one, else an expression, else words. Raises ValueError if it is empty."""
    text = answer.strip()
    if not text:
        raise ValueError("the answer is empty")
    try:
        text = cleaned(text)
        return Number(number(unnamed(text)))
    except Unreadable:
        pass
    try:
        return Expression(expression(text))
    except Unreadable:
        return Words(_folded(text))


def compare(reference: Reference, answer: str, ask: Ask) -> Verdict:
    """Whether `answer` is right. ask: called only when exact arithmetic cannot decide. Raises what `ask` raises."""
    try:
        text = cleaned(answer)
        match reference:
            case Number():
                return Verdict(number(unnamed(text, reference.variable)) == reference.value, "exact")
            case Roots():
                return Verdict(_same_roots(reference, text), "roots")
            case Antiderivative():
                return _antiderivative(reference, text, ask)
            case Expression():
                return _expression(reference, text, ask)
            case Words():
                return Verdict(_folded(text) == reference.text, "words")
    except Unreadable:
        return Verdict(False, "unreadable")


def _same_roots(reference: Roots, text: str) -> bool:
    given = numbers(text, reference.variable)
    return len(given) == len(reference.values) and all(
        abs(one - other) <= ROOT_TOLERANCE for one, other in zip(given, reference.values, strict=True)
    )


def _antiderivative(reference: Antiderivative, text: str, ask: Ask) -> Verdict:
    try:
        given = polynomial(text, reference.variable)
    except Unreadable:
        answer = expression(text)
    else:
        return Verdict(derivative(given) == polynomial(reference.integrand, reference.variable), "polynomial")
    integrand = expression(reference.integrand)
    same_shape(f"{integrand} {reference.variable} C", answer)
    job = {"kind": "antiderivative", "reference": integrand, "answer": answer, "variable": reference.variable}
    return _math_verify(ask, job)


def _expression(reference: Expression, text: str, ask: Ask) -> Verdict:
    if "=" not in reference.latex:
        text = unnamed(text)
    answer = expression(text)
    same_shape(reference.latex, answer)
    return _math_verify(ask, {"kind": "equal", "reference": reference.latex, "answer": answer})


def _math_verify(ask: Ask, job: Mapping[str, str]) -> Verdict:
    reply = ask(job)
    if reply in ("unreadable", "too_costly"):
        return Verdict(False, "too_costly" if reply == "too_costly" else "unreadable")
    return Verdict(reply == "equal", "math_verify")


def _folded(text: str) -> str:
    text = re.sub(r"^\\(?:text|mathrm|textbf)\{(.*)\}$", r"\1", text.strip())
    return " ".join(text.casefold().split())
