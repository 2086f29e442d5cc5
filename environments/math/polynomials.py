r"""Polynomials with exact coefficients, parsed from text: `3*x**2/2 + C`, `\frac{3}{2}x^{2} + C`, `x(x+1)`.

Nothing is evaluated as code. All sizes are bounded: a text is either parsed in well below a millisecond or refused.
"""

from __future__ import annotations

import re
from fractions import Fraction

from .literals import Unreadable

Powers = tuple[int, int]
Polynomial = dict[Powers, Fraction]
"""Nonzero coefficients by (power of the variable, power of the constant of integration)."""

CONSTANTS = ("C", "c", "K", "C_1", "C_{1}")
MAX_DEGREE = 64
MAX_TERMS = 200
MAX_BITS = 1000
MAX_DEPTH = 30
MAX_PRODUCTS = 5000
"""Maximum total number of products of two terms."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)|(?P<power>\*\*|\^)|(?P<times>\*|\\cdot(?![A-Za-z])|\\times(?![A-Za-z]))"
    r"|(?P<fraction>\\[dt]?frac(?![A-Za-z]))|(?P<name>[A-Za-z](?:_1|_\{1\})?)|(?P<mark>[-+/(){}])"
    r"|(?P<nothing>\\left(?![A-Za-z])|\\right(?![A-Za-z])|\\,|\\;|\\ ))"
)
_OPEN = {"(": ")", "{": "}"}


def polynomial(text: str, variable: str) -> Polynomial:
    """Parse a polynomial in `variable` and a constant of integration. Raises Unreadable."""
    reader = _Reader(_tokens(text), variable)
    value = reader.sum(0)
    if reader.at != len(reader.tokens):
        raise Unreadable("it goes on after the polynomial")
    return value


def derivative(of: Polynomial) -> Polynomial:
    """Return the derivative by the variable."""
    return {(power - 1, other): factor * power for (power, other), factor in of.items() if power}


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise Unreadable("it is not a polynomial")
        at = found.end()
        kind = str(found.lastgroup)
        if kind != "nothing":
            tokens.append((kind, found[kind]))
    return tokens


class _Reader:
    """Parses tokens by recursive descent: sum, product, sign, power, atom."""

    def __init__(self, tokens: list[tuple[str, str]], variable: str) -> None:
        self.tokens = tokens
        self.variable = variable
        self.at = 0
        self.products = 0

    def sum(self, depth: int) -> Polynomial:
        if depth > MAX_DEPTH:
            raise Unreadable("it is nested too deeply")
        total = self.product(depth)
        while (mark := self.taken("+", "-")) is not None:
            total = _sum(total, self.product(depth), 1 if mark == "+" else -1)
        return total

    def product(self, depth: int) -> Polynomial:
        total = self.signed(depth)
        while True:
            kind, word = self.ahead()
            if kind == "times":
                self.at += 1
                total = self.times(total, self.signed(depth))
            elif word == "/" and kind == "mark":
                self.at += 1
                total = _quotient(total, self.signed(depth))
            elif kind in ("number", "name", "fraction") or word in _OPEN:
                total = self.times(total, self.power(depth))
            else:
                return total

    def signed(self, depth: int) -> Polynomial:
        sign = 1
        while (mark := self.taken("+", "-")) is not None:
            sign = -sign if mark == "-" else sign
        return _sum({}, self.power(depth), sign)

    def power(self, depth: int) -> Polynomial:
        base = self.atom(depth)
        if self.ahead()[0] != "power":
            return base
        self.at += 1
        closes = _OPEN.get(self.ahead()[1])
        self.at += closes is not None
        kind, word = self.ahead()
        if kind != "number" or not word.isdigit() or len(word) > 2:
            raise Unreadable("an exponent is not a small whole number")
        self.at += 1
        if closes is not None and self.taken(closes) is None:
            raise Unreadable("an exponent is not a small whole number")
        if self.ahead()[0] == "power":
            raise Unreadable("a power of a power")
        result: Polynomial = {(0, 0): Fraction(1)}
        for _ in range(int(word)):
            result = self.times(result, base)
        return result

    def atom(self, depth: int) -> Polynomial:
        kind, word = self.ahead()
        self.at += 1
        if kind == "number":
            return _term(Fraction(word), (0, 0))
        if kind == "name" and word == self.variable:
            return _term(Fraction(1), (1, 0))
        if kind == "name" and word in CONSTANTS:
            return _term(Fraction(1), (0, 1))
        if kind == "fraction":
            return _quotient(self.group(depth, "{"), self.group(depth, "{"))
        if word in _OPEN:
            self.at -= 1
            return self.group(depth, word)
        raise Unreadable(f"{word[:20]!r} is out of place" if word else "it ends too early")

    def group(self, depth: int, opens: str) -> Polynomial:
        if self.taken(opens) is None:
            raise Unreadable(f"a {opens} is missing")
        inner = self.sum(depth + 1)
        if self.taken(_OPEN[opens]) is None:
            raise Unreadable(f"a {_OPEN[opens]} is missing")
        return inner

    def times(self, left: Polynomial, right: Polynomial) -> Polynomial:
        self.products += len(left) * len(right)
        if self.products > MAX_PRODUCTS:
            raise Unreadable("there is too much to multiply")
        return _product(left, right)

    def ahead(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("", "")

    def taken(self, *words: str) -> str | None:
        kind, word = self.ahead()
        if kind == "mark" and word in words:
            self.at += 1
            return word
        return None


def _term(factor: Fraction, powers: Powers) -> Polynomial:
    return _bounded({powers: factor})


def _sum(left: Polynomial, right: Polynomial, sign: int) -> Polynomial:
    total = dict(left)
    for powers, factor in right.items():
        total[powers] = total.get(powers, Fraction(0)) + sign * factor
    return _bounded(total)


def _product(left: Polynomial, right: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for (power, other), factor in left.items():
        for (more, rest), by in right.items():
            powers = (power + more, other + rest)
            total[powers] = total.get(powers, Fraction(0)) + factor * by
    return _bounded(total)


def _quotient(left: Polynomial, right: Polynomial) -> Polynomial:
    if set(right) != {(0, 0)}:
        raise Unreadable("it divides by something other than a number")
    return _bounded({powers: factor / right[0, 0] for powers, factor in left.items()})


def _bounded(value: Polynomial) -> Polynomial:
    value = {powers: factor for powers, factor in value.items() if factor}
    for powers, factor in value.items():
        if sum(powers) > MAX_DEGREE or max(factor.numerator.bit_length(), factor.denominator.bit_length()) > MAX_BITS:
            raise Unreadable("a power or a coefficient is too large")
    if len(value) > MAX_TERMS:
        raise Unreadable("it has too many terms")
    return value
