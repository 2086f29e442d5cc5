r"""Parses one expression, in LaTeX or plain notation, into a tree of operations. Nothing is computed.

Ambiguous expressions such as `1/2x` and `2\frac12\pi` are refused, and so are words, units and lists. In another
process, `comparing.py` builds sympy's expressions from the tree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .literals import Unreadable

Tree = Any
"""A number as a string, or a tuple with the name of an operation and its operands."""

_FUNCTION_NAMES = "ln log lg exp sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh asin acos atan"
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_OTHER_NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_LETTER_NAMES = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta kappa lambda mu nu xi rho sigma tau phi varphi chi psi "
    "omega Gamma Delta Theta Lambda Sigma Phi Psi Omega"
)
_GREEK = frozenset(_LETTER_NAMES.split())
_TYPED = {"pi": r"\pi", "oo": r"\infty", "infinity": r"\infty", "inf": r"\infty", "sqrt": r"\sqrt"}
_WORDS = (
    "cm mm km kg mg ml ft in lb lbs oz hr hrs min sec mph kph am pm or and is no yes not of to at by if as on so day "
    "gal ms ns kW MW GW kN kJ MJ kV mV MV mA kA Hz kHz MHz GHz Pa kPa MPa dB GB MB TB mol rad"
)
SHORT_WORDS = frozenset(_WORDS.split())
"""Words and units that look like a product of variables."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)|(?P<power>\*\*|\^)|(?P<times>\*|\\cdot(?![A-Za-z])"
    r"|\\times(?![A-Za-z]))|(?P<over>/|\\div(?![A-Za-z]))|\\(?P<command>[A-Za-z]+)|(?P<letters>[A-Za-z]+)"
    r"|(?P<mark>[-+(){}\[\]|!°_]))"
)
_CLOSING = {"(": ")", "{": "}", "[": "]"}
MAX_TOKENS = 400
MAX_DEPTH = 20
MAX_POWERS = 12
MAX_LETTERS = 3
"""Maximum number of consecutive letters that are read as a product of variables."""


@dataclass(frozen=True, slots=True)
class Formula:
    """An expression. tree: its operations. symbols: its variables. marks: which of `!` and `°` it has."""

    tree: Tree
    symbols: frozenset[str]
    marks: frozenset[str]

    @property
    def infinite(self) -> bool:
        """Whether infinity is in it."""
        return "oo" in str(self.tree)


def formula(text: str) -> Formula:
    """Parse an expression. Raises Unreadable. text: in one spelling (`literals.cleaned`)."""
    reader = _Reader(_tokens(text))
    tree = reader.sum(0)
    if reader.at != len(reader.tokens):
        raise Unreadable("it goes on after the expression")
    if _tower(tree) > 1:
        raise Unreadable("it has a power of a power of numbers")
    marks = frozenset(sign for kind, sign in reader.tokens if kind == "mark" and sign in "!°")
    return Formula(tree, frozenset(reader.symbols), marks)


def difference(left: Formula, right: Formula) -> Formula:
    """One expression minus another."""
    tree = ("+", left.tree, ("-", right.tree))
    return Formula(tree, left.symbols | right.symbols, left.marks | right.marks)


def of_the_kind(reference: Formula, answer: Formula) -> None:
    """Raise Unreadable for an answer with a variable, factorial or degree sign that the right answer does not have."""
    extra = (answer.symbols - reference.symbols) or (answer.marks - reference.marks)
    if extra:
        raise Unreadable(f"it has {min(extra)}, which the right answer has not")


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or len(tokens) >= MAX_TOKENS:
            raise Unreadable("it is not an expression")
        at = found.end()
        kind = str(found.lastgroup)
        tokens.extend(_letters(found[kind]) if kind == "letters" else [(kind, found[kind])])
    if sum(kind == "power" for kind, _ in tokens) > MAX_POWERS:
        raise Unreadable("it has too many powers")
    return tokens


def _letters(word: str) -> list[tuple[str, str]]:
    """Return a function, a constant, or a product of variables. Anything else is a word."""
    if word in _FUNCTIONS:
        return [("command", word)]
    if word in _TYPED:
        return [("command", _TYPED[word][1:])]
    if len(word) > 1 and (len(word) > MAX_LETTERS or len(set(word)) < len(word) or word in SHORT_WORDS):
        raise Unreadable(f"it has the word {word[:20]!r}")
    return [("letter", letter) for letter in word]


def _tower(tree: Tree) -> int:
    """Return the height of a tower of powers of numbers. A power that contains a variable has height 0."""
    if isinstance(tree, str):
        return 0
    operation, *operands = tree
    if operation == "symbol" or any(_tower(part) < 0 for part in operands if not isinstance(part, str)):
        return -1
    return max((_tower(part) for part in operands), default=0) + (operation in ("^", "!", "exp", "binom"))


class _Reader:
    """Parses tokens by recursive descent: sum, product, sign, power, atom."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens = tokens
        self.at = 0
        self.bars = 0
        self.symbols: set[str] = set()

    def sum(self, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise Unreadable("it is nested too deeply")
        total = self.product(depth)
        while mark := self.taken("+", "-"):
            operand = self.product(depth)
            total = ("+", total, operand if mark == "+" else ("-", operand))
        return total

    def product(self, depth: int) -> Tree:
        total = self.signed(depth)
        while True:
            kind, _ = self.ahead()
            if kind in ("times", "over"):
                self.at += 1
                operand = self.signed(depth)
                if kind == "over" and self.begins():
                    raise Unreadable("what is divided is not clear; it needs brackets")
                total = ("*" if kind == "times" else "/", total, operand)
            elif self.begins():
                if kind == "number":
                    raise Unreadable("a number follows without a sign")
                before, operand = self.tokens[self.at - 1][0], self.power(depth)
                if before == "number" and operand[0] == "/" and all(isinstance(part, str) for part in operand):
                    raise Unreadable("a mixed number or a product")
                total = ("*", total, operand)
            else:
                return total

    def begins(self) -> bool:
        """Return whether an operand begins here."""
        kind, word = self.ahead()
        return kind in ("number", "letter", "command") or word in ("(", "{", "[") or (word == "|" and not self.bars)

    def signed(self, depth: int) -> Tree:
        negative = False
        while mark := self.taken("+", "-"):
            negative ^= mark == "-"
        operand = self.power(depth)
        return ("-", operand) if negative else operand

    def power(self, depth: int) -> Tree:
        base = self.atom(depth)
        while mark := self.taken("!", "°"):
            if mark == "!" and isinstance(base, str) and (not base.isdigit() or len(base) > 3):
                raise Unreadable("a factorial of what is not a small whole number")
            base = (mark, base)
        exponent = self.exponent(depth)
        return base if exponent is None else ("^", base, exponent)

    def exponent(self, depth: int) -> Tree | None:
        if self.ahead()[0] != "power":
            return None
        self.at += 1
        negative = self.taken("-") is not None
        result = self.group(depth, "{") if self.ahead()[1] == "{" else self.atom(depth)
        if self.ahead()[0] == "power" or self.ahead()[1] == "!":
            raise Unreadable("a power of a power")
        if isinstance(result, str) and len(result.partition(".")[0]) > 3:
            raise Unreadable("it has powers that are too large")
        return ("-", result) if negative else result

    def atom(self, depth: int) -> Tree:
        kind, word = self.ahead()
        self.at += 1
        if kind == "number":
            if self.ahead()[1] == "_":
                raise Unreadable("a number has a base")
            return word
        if kind == "letter":
            return self.symbol(word)
        if kind == "command":
            return self.command(word, depth)
        if word in ("(", "{", "["):
            self.at -= 1
            return self.group(depth, word)
        if word == "|" and not self.bars:
            self.bars += 1
            inner = self.sum(depth + 1)
            self.bars -= 1
            if self.taken("|") is None:
                raise Unreadable("a | is missing")
            return ("abs", inner)
        raise Unreadable(f"{word[:20]!r} is out of place" if word else "it ends too early")

    def symbol(self, name: str) -> Tree:
        if self.taken("_"):
            closes = self.taken("{")
            part = ""
            while self.ahead()[0] in ("letter", "number") and (closes or not part):
                part += self.ahead()[1]
                self.at += 1
            if not part or (closes and self.taken("}") is None):
                raise Unreadable("an index is neither a letter nor a number")
            name = f"{name}_{part}"
        elif name in ("e", "i"):
            return ("constant", name)
        self.symbols.add(name)
        return ("symbol", name)

    def command(self, name: str, depth: int) -> Tree:
        if name in _GREEK:
            return self.symbol(name)
        if name in ("pi", "infty"):
            return ("constant", "pi" if name == "pi" else "oo")
        if name in ("frac", "binom"):
            return ("/" if name == "frac" else "binom", self.argument(depth), self.argument(depth))
        if name == "sqrt":
            root = self.group(depth, "[") if self.ahead()[1] == "[" else "2"
            inner = self.group(depth, "(") if self.ahead()[1] == "(" else self.argument(depth)
            return ("root", inner, root)
        if name in _FUNCTIONS:
            return self.function(name, depth)
        raise Unreadable(f"it has the command \\{name[:20]}")

    def function(self, name: str, depth: int) -> Tree:
        base: Tree = None
        if self.taken("_"):
            base = self.group(depth, "{") if self.ahead()[1] == "{" else self.atom(depth)
            if name != "log":
                raise Unreadable("an index of a function")
        exponent = self.exponent(depth)
        if exponent == ("-", "1") and f"arc{name}" in _FUNCTIONS:
            name, exponent = f"arc{name}", None
        if exponent is not None and not isinstance(exponent, str):
            raise Unreadable("a power of a function is not a number")
        if self.ahead()[1] in _CLOSING:
            inner = self.group(depth, self.ahead()[1])
        else:
            inner = self.power(depth)
            while self.ahead()[0] == "letter" or self.ahead()[1] in ("pi", "sqrt", "frac"):
                inner = ("*", inner, self.power(depth))
        if name in ("log", "lg"):
            result: Tree = ("log", inner, "10" if base is None else base)
        else:
            result = (_OTHER_NAMES.get(name, name), inner)
        return result if exponent is None else ("^", result, exponent)

    def argument(self, depth: int) -> Tree:
        """Return the argument of a command: a group, or one character, which may be the first digit of a number."""
        kind, word = self.ahead()
        if word == "{":
            return self.group(depth, "{")
        if kind == "number" and len(word) > 1 and word.isdigit():
            self.tokens[self.at : self.at + 1] = [("number", word[0]), ("number", word[1:])]
        return self.atom(depth)

    def group(self, depth: int, opens: str) -> Tree:
        if self.taken(opens) is None:
            raise Unreadable(f"a {opens} is missing")
        bars, self.bars = self.bars, 0
        inner = self.sum(depth + 1)
        self.bars = bars
        if self.taken(_CLOSING[opens]) is None:
            raise Unreadable(f"a {_CLOSING[opens]} is missing")
        return inner

    def ahead(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("", "")

    def taken(self, *words: str) -> str | None:
        kind, word = self.ahead()
        if kind == "mark" and word in words:
            self.at += 1
            return word
        return None
