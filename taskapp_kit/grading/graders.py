"""Graders that compare a whole answer with the expected string or option."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase

from taskapp_kit.records.scorecard import Grade


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
