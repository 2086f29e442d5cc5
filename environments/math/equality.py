"""Decides whether an answer is right: with exact arithmetic if possible, otherwise with `sympy` in another process.

The right answer is a `Reference`: a number, a list of roots, an antiderivative, another mathematical expression, or
words. README.md defines for each kind of reference which answers are right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import Any, Literal

from .formula import Formula, Tree, difference, formula, of_the_kind
from .literals import Unreadable, cleaned, number, numbers, unnamed
from .polynomials import derivative, polynomial
from .structure import MIRRORED, Group, Matrix, Named, Part, Quantity, Relation, parsed

Reply = Literal["equal", "different", "unreadable", "too_costly"]
Ask = Callable[[Mapping[str, Any]], Reply]
"""Sends a comparison to `sympy` in another process: see `comparer.Comparer.ask`."""

ROOT_TOLERANCE = Fraction(1, 10_000)
"""Maximum error of a root. The questions request four decimals, but do not specify how to round."""


MAX_ASKED = 60
"""Maximum number of pairs of parts that are sent to another process for one answer."""

_LABELS = re.compile(
    r"[A-Za-z]{2,}|[A-Z](?:\s*[- ]\s*[A-Z])+|[0-9]+(?:\s*-\s*[0-9]+)+|[0-9]+(?:\s*/\s*[0-9]+){2,}|0[0-9]+"
)
"""Matches names, rankings, ranges, dates and codes, although they could be products, differences or quotients."""

_CONSTANTS = ("pi", "oo", "infinity", "inf")
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True)
class Number:
    """One number. `variable` is the name that may precede it (`x = 3`), None for any letter."""

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
    """Anything else that is mathematics: an expression, a quantity, a list, a set, an interval, a relation, a matrix."""

    part: Part


@dataclass(frozen=True, slots=True)
class Words:
    """A string, compared without white space and, if it has four or more letters, ignoring case."""

    text: str


Reference = Number | Roots | Antiderivative | Expression | Words


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a comparison. how: what decided it; with the last two there was no answer to compare."""

    correct: bool
    how: Literal["exact", "roots", "polynomial", "sympy", "words", "too_costly", "unreadable"]

    @property
    def readable(self) -> bool:
        """Whether it was an answer of the right kind, right or wrong."""
        return self.how not in ("too_costly", "unreadable")


def reference_of(answer: str) -> Reference:
    """Parse a row's answer: a number if it is one, else mathematics, else words. Raises ValueError if it is empty."""
    text = answer.strip()
    if not text:
        raise ValueError("the answer is empty")
    try:
        text = cleaned(text)
        if _LABELS.fullmatch(text) and text.lower() not in _CONSTANTS:
            return Words(_folded(text))
        part = parsed(text)
    except Unreadable:
        return Words(_folded(text))
    match part:
        case Quantity(value, ""):
            return Number(value)
        case Named(name, Quantity(value, "")) if len(name) == 1:
            return Number(value, name)
    return Expression(part)


def compare(reference: Reference, answer: str, ask: Ask) -> Verdict:
    """Return whether `answer` is right. ask: called only when exact arithmetic cannot decide. Raises what `ask` raises."""
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
                comparison = _Comparison(ask)
                correct = comparison.same(reference.part, parsed(text))
                return Verdict(correct, "sympy" if comparison.asks else "exact")
            case Words():
                return Verdict(_folded(text) == reference.text, "words")
    except Unreadable:
        return Verdict(False, "unreadable")
    except _TooCostly:
        return Verdict(False, "too_costly")


def _same_roots(reference: Roots, text: str) -> bool:
    given = numbers(text, reference.variable)
    return len(given) == len(reference.values) and all(
        abs(one - other) <= ROOT_TOLERANCE for one, other in zip(given, reference.values, strict=True)
    )


def _antiderivative(reference: Antiderivative, text: str, ask: Ask) -> Verdict:
    try:
        given = polynomial(text, reference.variable)
    except Unreadable:
        answer = formula(text)
    else:
        return Verdict(derivative(given) == polynomial(reference.integrand, reference.variable), "polynomial")
    integrand = formula(reference.integrand)
    of_the_kind(replace(integrand, symbols=integrand.symbols | {reference.variable, "C"}), answer)
    job = {
        "kind": "antiderivative", "reference": integrand.tree, "answer": answer.tree, "variable": reference.variable,
    }  # fmt: skip
    return Verdict(_Comparison(ask).asked(job), "sympy")


class _Comparison:
    """One comparison of two answers, part by part. asks: how many of its pairs were sent to another process."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.asks = 0

    def same(self, reference: Part, answer: Part) -> bool:
        """Return whether a part is equal to the right one. Raises Unreadable and _TooCostly."""
        if isinstance(answer, Named):
            if isinstance(reference, Named):
                return reference.name == answer.name and self.same(reference.part, answer.part)
            # a name that is not in the row must be a single letter, as in `x = 3`
            return len(answer.name.partition("_")[0]) == 1 and self.same(reference, answer.part)
        match reference, answer:
            case Named(), _:
                return self.same(reference.part, answer)
            case Quantity(), Quantity():
                return reference == answer
            case Formula(), Formula():
                return self.equal(reference, answer)
            case Formula(), Quantity(value, ""):
                decimal = value.denominator > 1 and 10**20 % value.denominator == 0
                return self.equal(reference, _formula_of(answer), rounded=decimal)
            case Group(), Group():
                return self.groups(reference, answer)
            case Matrix(), Matrix():
                shapes = [[len(row) for row in matrix.rows] for matrix in (reference, answer)]
                pairs = zip(chain(*reference.rows), chain(*answer.rows), strict=False)
                return shapes[0] == shapes[1] and all(self.same(left, right) for left, right in pairs)
            case Relation(), Relation():
                return self.relations(reference, answer)
            case Group(), Quantity() | Formula() if not (isinstance(answer, Formula) and answer.symbols):
                return False
        raise Unreadable("it is an answer of another kind, or several where one is right")

    def groups(self, reference: Group, answer: Group) -> bool:
        if reference.names or answer.names:
            if set(reference.names) != set(answer.names):
                return False
            given = dict(zip(answer.names, answer.parts, strict=True))
            return all(
                self.same(part, given[name]) for name, part in zip(reference.names, reference.parts, strict=True)
            )
        loose = ("", "{}", "±")
        if reference.brackets != answer.brackets and (
            reference.ordered or reference.brackets not in loose or answer.brackets not in loose
        ):
            return False
        if len(reference.parts) != len(answer.parts):
            return False
        if reference.ordered:
            return all(self.same(*pair) for pair in zip(reference.parts, answer.parts, strict=True))
        left = list(answer.parts)
        for part in reference.parts:  # the first equal part will do: equality is transitive, except for rounding
            match_ = next((other for other in left if self.alike(part, other)), None)
            if match_ is None:
                return False
            left.remove(match_)
        return True

    def alike(self, reference: Part, answer: Part) -> bool:
        try:
            return self.same(reference, answer)
        except Unreadable:
            return False

    def relations(self, reference: Relation, answer: Relation) -> bool:
        if reference.signs == answer.signs == ("=",):
            sides = [part for relation in (reference, answer) for part in relation.parts]
            if all(isinstance(side, Formula | Quantity) for side in sides):
                left, right, other, another = map(_formula_of, sides)
                return self.equal(difference(left, right), difference(other, another), kind="equation")
        mirrored = tuple(MIRRORED.get(sign, sign) for sign in reversed(answer.signs))
        ways = [(answer.signs, answer.parts), (mirrored, answer.parts[::-1])]
        return any(reference.signs == signs and all(map(self.alike, reference.parts, parts)) for signs, parts in ways)

    def equal(self, reference: Formula, answer: Formula, *, kind: str = "equal", rounded: bool = False) -> bool:
        if reference.tree == answer.tree:
            return True
        of_the_kind(reference, answer)
        rounded = rounded or "." in str(answer.tree)
        return self.asked({"kind": kind, "reference": reference.tree, "answer": answer.tree, "rounded": rounded})

    def asked(self, job: Mapping[str, Any]) -> bool:
        self.asks += 1
        reply = self.ask(job) if self.asks <= MAX_ASKED else "too_costly"
        if reply == "too_costly":
            raise _TooCostly
        if reply == "unreadable":
            raise Unreadable("it has no value")
        return reply == "equal"


class _TooCostly(Exception):
    """A comparison took more time or memory than an answer may take."""


def _formula_of(part: Part) -> Formula:
    if isinstance(part, Quantity) and not part.unit:
        tree: Tree = ("/", str(part.number.numerator), str(part.number.denominator))
        return Formula(tree, frozenset(), frozenset())
    if isinstance(part, Formula):
        return part
    raise Unreadable("a side of the equation is not an expression")


def _folded(text: str) -> str:
    """Return the text without what does not count: white space at signs, braces of an index, case of longer words."""
    text = re.sub(r"([_^])\{(\w+)\}", r"\1\2", text.strip())
    text = re.sub(r"\s*([^\w\s])\s*", r"\1", text)
    return " ".join(_WORD.sub(_lowered, text).split())


def _lowered(found: re.Match[str]) -> str:
    """Short words may be symbols, of which case is a part: `Co` is not `CO`, `mW` not `MW`."""
    word = found[0]
    return word.casefold() if len(word) > 3 or (len(word) > 1 and word[1:].islower()) else word
