"""Graders that compare a whole answer with the expected string, option or number."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from string import ascii_uppercase


@dataclass(frozen=True, slots=True)
class Grade:
    """A score with its reason. If a rubric returns a grade, the scorecard shows both.

    Attributes:
        score: 1.0 for a right answer and 0.0 for a wrong answer. A rubric that creates grades may use any value of its
            scale.
        reason: A short reason. The graders of this package never repeat the expected answer in it.
    """

    score: float
    reason: str

    def __float__(self) -> float:
        """Return the score, so that grades can be added and weighted as numbers."""
        return float(self.score)  # the score of an author's grade may be an int, a bool or a NumPy number

    def __bool__(self) -> bool:
        """Return whether the score is above 0."""
        return self.score > 0


def right(reason: str) -> Grade:
    """Return a grade with score 1.0."""
    return Grade(1.0, reason)


def wrong(reason: str) -> Grade:
    """Return a grade with score 0.0."""
    return Grade(0.0, reason)


_WRAPPERS = {('"', '"'), ("'", "'"), ("`", "`"), ("*", "*"), ("_", "_"), ("“", "”"), ("‘", "’"), ("«", "»")}
_TYPOGRAPHIC = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "‐": "-", "‑": "-"})
_MOST_MARKS = 16
"""How many layers of quotes and emphasis are removed.

Each removal copies the string, and a policy may send a million.
"""
_LONGEST_WORD = 1_000
"""The maximum length of a word that is normalized to NFC. The time is quadratic in the number of combining accents."""
# a "!" after a digit or a one-letter name is a factorial
_END = re.compile(r"[.。]$|(?<=[^\W\d_]{2})!$")


def equal_text(answer: str, expected: str | Iterable[str], *, ignore_case: bool = True) -> Grade:
    """Grade whether the whole answer equals the expected string.

    On both sides, these differences are ignored: case, leading and trailing white space, the amount of white space
    between words, quotation marks and Markdown emphasis around the whole text, a final period or exclamation mark,
    invisible characters, and how accents are encoded (for words of up to 1,000 characters). All other differences
    count: `Paris Tokyo`, `not Paris` and `Paris?` are not equal to `Paris`, and `-5` and `5%` are not equal to `5`.

    Args:
        answer: The policy's answer.
        expected: The right answer, or several right answers.
        ignore_case: Whether case is ignored.

    Returns:
        A grade of 1.0 or 0.0 with the reason.

    Raises:
        ValueError: `expected` is empty or contains an empty answer.
    """
    accepted = [normalize(text, ignore_case) for text in ([expected] if isinstance(expected, str) else expected)]
    if not accepted or not all(accepted):
        raise ValueError("An expected answer is empty. Pass equal_text() a string with at least one visible character.")
    plain = normalize(answer, ignore_case)
    if not plain:
        return wrong("the answer is empty")
    return right("the answer is equal") if plain in accepted else wrong("the answer is different")


def normalize(text: str, ignore_case: bool = True) -> str:
    """Return the text in a normal form, without the differences that `equal_text` ignores."""
    visible = "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Cc") or char.isspace())
    plain = _composed(visible)
    for _ in range(_MOST_MARKS):
        shorter = _END.sub("", plain).rstrip()
        if len(shorter) > 1 and (shorter[0], shorter[-1]) in _WRAPPERS:
            shorter = shorter[1:-1].strip()
        if shorter in ("", plain):  # do not remove the last characters of an answer that consists of marks
            break
        plain = shorter
    plain = plain.translate(_TYPOGRAPHIC)
    return _composed(plain.casefold()) if ignore_case else plain


def _composed(text: str) -> str:
    """Return the text in NFC, with single spaces between words."""
    words = (unicodedata.normalize("NFC", word) if len(word) <= _LONGEST_WORD else word for word in text.split())
    return " ".join(words)


def choice(answer: str, expected: str, options: Sequence[str] | Mapping[str, str]) -> Grade:
    """Grade whether the whole answer chooses the expected option.

    `B`, `(b)`, `B.`, `**B**`, `Paris`, `B) Paris` and `B: Paris` all choose option B with the text `Paris`. An answer
    that names two options, or combines one option's label with another option's text, is wrong.

    Args:
        answer: The policy's answer.
        expected: The label or the text of the right option.
        options: The text of each option, labeled A, B, C and so on, or a mapping from label to text.

    Returns:
        A grade of 1.0 or 0.0 with the reason.

    Raises:
        ValueError: Two options are equal, or `expected` is not one of the options.
    """
    texts = _texts(options)
    chosen, right_label = _chosen(answer, texts), _chosen(expected, texts)
    if right_label is None:
        raise ValueError(
            "The expected option does not name exactly one of the options. "
            "Pass choice() its label, its text, or both, such as 'B: Paris'."
        )
    if chosen is None:
        return wrong("the answer does not choose exactly one option")
    return right("the right option is chosen") if chosen == right_label else wrong("another option is chosen")


def _texts(options: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return a mapping from normalized label to normalized text. Raises ValueError for ambiguous options."""
    if not isinstance(options, Mapping):
        if isinstance(options, str) or len(options) > len(ascii_uppercase):
            raise ValueError("The options must be a list of at most 26 strings, or a mapping from label to text.")
        options = dict(zip(ascii_uppercase, options, strict=False))
    texts = {normalize(label): normalize(text) for label, text in options.items()}
    if (
        len(texts) < max(2, len(options))
        or len(set(texts.values())) < len(texts)
        or not all(texts)
        or not all(texts.values())
    ):
        raise ValueError("The options are ambiguous. Pass at least two options that differ in label and text.")
    return texts


def _chosen(answer: str, texts: Mapping[str, str]) -> str | None:
    """Return the label of the option that an answer names, or None if it does not name exactly one."""
    plain = normalize(answer)
    named = {label for label, text in texts.items() if plain == text}
    for label, text in texts.items():
        # "B", "(B)", "B.", "B) Paris", "B: Paris", "B - Paris"; a label without a mark needs a space before its text
        match = re.fullmatch(rf"\(?\[?{re.escape(label)}[)\]]?[.:]?(?: ?[-–—])?(?: (.+))?", plain)
        if match and (match[1] is None or normalize(match[1]) == text):
            named.add(label)
    return named.pop() if len(named) == 1 else None


LONGEST_NUMBER = 400
"""The maximum length of an answer that is parsed as a number, in characters."""

_EXACT = Context(prec=500, Emax=10**6, Emin=-(10**6), traps=[])
_GROUP_SPACE = re.compile(r"(?<=[0-9])[\u00a0\u202f](?=[0-9]{3}(?![0-9]))")
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_PLAIN = rf"(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
_NUMBER = re.compile(rf"([+-]?)({_PLAIN})(?:e([+-]?[0-9]{{1,6}})| ?[x×*·] ?10\^\{{?([+-]?[0-9]{{1,6}})\}}?)?")
_FRACTION = re.compile(rf"([+-]?)({_DIGITS}) ?/ ?({_DIGITS})")


def number(
    answer: str,
    expected: float | Decimal | str,
    *,
    absolute_tolerance: float = 0.0,
    relative_tolerance: float = 0.0,
) -> Grade:
    """Grade whether the whole answer is one number within the tolerance of the expected number.

    Accepted formats are `42`, `-3.5`, `1,234.5`, `.5`, `6.02e23`, `6.02 × 10^23` and `3/4`. A unit, a currency or
    percent sign, other words or a second number make the answer wrong.

    Args:
        answer: The policy's answer.
        expected: The right number. A string is parsed without rounding.
        absolute_tolerance: The largest accepted difference.
        relative_tolerance: The largest accepted difference, as a fraction of the expected number. The larger of the two
            tolerances applies. If both are 0, the numbers must be equal.

    Returns:
        A grade of 1.0 or 0.0 with the reason.

    Raises:
        ValueError: The expected value is not a number, or a tolerance is negative or not finite.
    """
    absolute, relative = _read(str(absolute_tolerance)), _read(str(relative_tolerance))
    right_number = _read(str(expected)) if not isinstance(expected, bool) else None
    if right_number is None:
        raise ValueError(
            "The expected value is not a finite number of at most 400 characters. "
            "Pass number() an int, a float, or a string."
        )
    if absolute is None or relative is None or min(absolute, relative) < 0:
        raise ValueError("A tolerance must be a finite number ≥ 0.")
    answered = _read(answer)
    if answered is None:
        return wrong("the answer is not one number")
    if answered == right_number:
        return right("the number is equal")
    allowed = max(absolute, _EXACT.multiply(relative, _EXACT.abs(right_number)))
    difference = _EXACT.abs(_EXACT.subtract(answered, right_number))
    return right("the number is within the tolerance") if difference <= allowed else wrong("the number is different")


def _read(text: str) -> Decimal | None:
    """Return the number that the whole text represents, or None if it is not a number."""
    if len(text) > LONGEST_NUMBER:
        return None
    plain = normalize(_GROUP_SPACE.sub(",", text)).replace("\N{MINUS SIGN}", "-")
    if match := _FRACTION.fullmatch(plain):
        below = _decimal(match[3])
        return None if below == 0 else _EXACT.divide(_decimal(match[1] + match[2]), below)
    if match := _NUMBER.fullmatch(plain):
        return _EXACT.scaleb(_decimal(match[1] + match[2]), int(match[3] or match[4] or 0))
    return None


def _decimal(digits: str) -> Decimal:
    return Decimal(digits.replace(",", ""))
