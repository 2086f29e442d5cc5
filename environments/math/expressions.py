r"""The expressions that `math_verify` accepts: a short list of signs, commands and functions, written as LaTeX.

`math_verify` drops words and units, and takes the last of several answers. So whatever it would drop is refused here
first: words, units, `7 or 8`, chains of `=`, more commas than the reference has.
"""

from __future__ import annotations

import re

from .literals import Unreadable

_COMMANDS = (
    "frac dfrac tfrac sqrt cdot times div pi theta alpha beta gamma delta phi omega lambda mu sigma infty ln log lg exp "
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh left right pm mp le leq ge geq lt gt ne neq in cup cap "
    "setminus emptyset varnothing mathbb circ binom pmatrix bmatrix matrix begin end"
)
COMMANDS = frozenset(_COMMANDS.split())
FUNCTIONS = {
    "sqrt": r"\sqrt", "pi": r"\pi ", "ln": r"\ln ", "log": r"\log ", "exp": r"\exp ", "sin": r"\sin ", "cos": r"\cos ",
    "tan": r"\tan ", "asin": r"\arcsin ", "acos": r"\arccos ", "atan": r"\arctan ", "oo": r"\infty ",
    "infinity": r"\infty ",
}  # fmt: skip
"""Functions and constants as typed without a backslash."""

_SIGNS = {
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "×": r"\times ", "·": r"\cdot ",
    "÷": r"\div ", "±": r"\pm ", "∪": r"\cup ", "°": r"^\circ ", "θ": r"\theta ",
}  # fmt: skip
_WORDS = (
    "cm mm km kg mg ml ft in lb lbs oz hr hrs min sec mph kph am pm or and is no yes not of to at by if as on so "
    "day inf"
)
_SHORT_WORDS = frozenset(_WORDS.split())
_ALLOWED = re.compile(r"[A-Za-z0-9\s+\-*/^_=<>()\[\]{},.|\\&!']*")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_RUN = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")
_BEGIN = re.compile(r"\\(?:begin|end)\{([a-z]+)\}")
_MATRICES = ("pmatrix", "bmatrix", "matrix")
MAX_DEPTH = 20
MAX_POWERS = 12


def expression(text: str) -> str:
    """The expression as LaTeX, with the meaning that a reader would give it. Raises Unreadable.

    text: already cleaned (`literals.cleaned`).
    """
    for sign, command in _SIGNS.items():
        text = text.replace(sign, command)
    text = re.sub(r"√\s*(?:([0-9]+|[A-Za-z])|\(([^()]*)\))", r"\\sqrt{\1\2}", text)
    if not text.strip():
        raise Unreadable("it is empty")
    if not _ALLOWED.fullmatch(text) or "__" in text or ("\\\\" in text and "matrix" not in text):
        raise Unreadable("it has signs that are no mathematics")
    unknown = [name for name in _COMMAND.findall(text) if name not in COMMANDS]
    if unknown or any(name not in _MATRICES for name in _BEGIN.findall(text)):
        raise Unreadable(f"it has the command \\{(unknown or ['begin'])[0][:20]}")
    text = _RUN.sub(_named, text)
    if _depth(text) > MAX_DEPTH:
        raise Unreadable("it is nested too deeply")
    return _powers(text)


def variables(latex: str) -> frozenset[str]:
    """The single letters of an expression, without those of commands."""
    return frozenset(re.findall(r"[A-Za-z]", _COMMAND.sub(" ", _BEGIN.sub(" ", latex).replace(r"\mathbb{R}", " "))))


def same_shape(reference: str, answer: str) -> None:
    """Raises Unreadable for an answer that lists more values than the reference does."""
    signs = r"\\(?:pm|mp)"
    spread = len(re.findall(signs, reference))
    if len(re.findall(signs, answer)) > spread:
        raise Unreadable("it has a plus-or-minus, which the right answer has not")
    if answer.count(",") > reference.count(",") + spread:
        raise Unreadable("it lists more answers than were asked for")
    if answer.count("=") > reference.count("="):
        raise Unreadable("it has an equals sign, which the right answer has not")
    if "!" in answer and "!" not in reference:
        raise Unreadable("it has a factorial, which the right answer has not")
    extra = variables(answer) - variables(reference) - {"e", "i"}
    if extra:
        raise Unreadable(f"it has {min(extra)}, which the right answer has not")


def _named(found: re.Match[str]) -> str:
    """Converts a run of letters: a function's name, or a product of variables. Anything else is a word."""
    word = found[0]
    if word in FUNCTIONS:
        return FUNCTIONS[word]
    if word in _MATRICES and found.string[: found.start()].endswith(("\\begin{", "\\end{")):
        return word
    if len(word) <= 3 and len(set(word)) == len(word) and word.lower() not in _SHORT_WORDS:
        return " ".join(word)
    raise Unreadable(f"it has the word {word[:20]!r}")


def _depth(text: str) -> int:
    """How deeply brackets are nested."""
    deepest = depth = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _powers(text: str) -> str:
    r"""Adds the braces that LaTeX needs in `x**10`, `x^10`, `x^-1` and roots. Bounds the size of powers."""
    text = text.replace("**", "^")
    if text.count("^") > MAX_POWERS or re.search(r"\^[\s{(+-]*[0-9]{4}|[0-9.)}\s]\^[\s{(]*[0-9]+[\s})]*\^", text):
        raise Unreadable("it has powers that are too large")
    text = re.sub(r"\^\s*([+-]?[0-9]+(?:\.[0-9]+)?)", r"^{\1}", text)
    text = re.sub(r"\^\s*-\s*([A-Za-z])", r"^{-\1}", text)
    text = text.replace("*", r" \cdot ")
    return re.sub(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
