"""Graders that compare a whole answer with the expected string or option, exactly or by its similarity."""

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
        raise ValueError("`expected` is empty or contains an empty answer. Pass strings with visible characters.")
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


MOST_CHARACTERS = 10_000
"""Limit on the length of an answer. The time is proportional to its length and to the number of accepted errors."""

# Changing one of these changes the meaning, however few characters differ.
_DECISIVE = re.compile(
    r"[0-9]+(?:[.,][0-9]+)*|[-+−%$€£]|\b(?:not?|never|none|nor|neither|without|cannot|un|non)\b|n't\b"
)


def similar_text(answer: str, expected: str, *, at_least: float = 0.9) -> Grade:
    """Grade how similar the whole answer is to the expected text.

    The similarity is 1 − d / n: d is the number of characters to insert, delete or replace (Levenshtein distance), and n
    is the length of the longer text. Both texts are normalized as in `equal_text`. An answer with other numbers, signs or
    negations than the expected text earns nothing.

    Args:
        answer: The policy's answer.
        expected: The right text.
        at_least: The lowest similarity with a score above 0.0. It must be above 0 and at most 1.

    Returns:
        A grade with the similarity, or 0.0 if it is below `at_least`.

    Raises:
        ValueError: `expected` is empty, or `at_least` is not above 0 and at most 1.
    """
    if not 0 < at_least <= 1:
        raise ValueError("at_least must be above 0 and at most 1.")
    plain, accepted = normalize(answer), normalize(expected)
    if not accepted:
        raise ValueError(
            "The expected text is empty. Pass similar_text() a string with at least one visible character."
        )
    if not plain:
        return wrong("the answer is empty")
    longer = max(len(plain), len(accepted))
    if longer > max(MOST_CHARACTERS, len(accepted)):
        return wrong("the answer is too long")
    if _DECISIVE.findall(plain) != _DECISIVE.findall(accepted):
        return wrong("a number, a sign or a negation is different")
    most = int((1 - at_least) * longer + 1e-9)
    errors = distance(plain, accepted, most)
    if errors is None:
        return wrong("the text is different")
    return (
        Grade(1 - errors / longer, f"{errors} of {longer} characters differ") if errors else right("the text is equal")
    )


def distance(one: str, other: str, most: int) -> int | None:
    """Return the Levenshtein distance of two texts, or None if it exceeds `most`.

    Only a diagonal band of 2 · most + 1 cells of the matrix is computed (Ukkonen 1985).
    """
    if abs(len(one) - len(other)) > most:
        return None
    beyond = most + 1
    row = [min(column, beyond) for column in range(len(other) + 1)]
    for i, char in enumerate(one, 1):
        low, high = max(1, i - most), min(len(other), i + most)
        diagonal, row[low - 1] = row[low - 1], min(i, beyond) if low == 1 else beyond
        for column in range(low, high + 1):
            above = row[column] if column < i + most else beyond
            row[column] = min(diagonal + (char != other[column - 1]), above + 1, row[column - 1] + 1, beyond)
            diagonal = above
    return row[-1] if row[-1] <= most else None
