"""Equality of a whole answer, after what does not change its meaning is removed."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from taskapp_kit.grading.grade import Grade, right, wrong

_WRAPPERS = {('"', '"'), ("'", "'"), ("`", "`"), ("*", "*"), ("_", "_"), ("“", "”"), ("‘", "’"), ("«", "»")}
_TYPOGRAPHIC = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "‐": "-", "‑": "-"})
_MOST_MARKS = 16
"""Layers of marks around an answer that are removed. Each copies the text, and a policy may send a million of them."""
_LONGEST_WORD = 1_000
"""Composing the characters of a word takes the square of its length where it is all accents."""
# A "!" after a digit or a single letter is a factorial.
_END = re.compile(r"[.。]$|(?<=[^\W\d_]{2})!$")


def equal_text(answer: str, expected: str | Iterable[str], *, ignore_case: bool = True) -> Grade:
    """Grade whether the whole answer is the expected text.

    Ignored on both sides: letter case, white space at the ends and its amount between words, quotation marks and
    Markdown emphasis around the whole, a final period or exclamation mark, invisible characters, and whether an accented
    letter is one character or two (in words of up to 1,000 characters). Everything else counts: `Paris Tokyo`,
    `not Paris`, `Paris?`, `-5` and `5%` are equal to neither `Paris` nor `5`.

    Args:
        answer: The answer, as the policy gave it.
        expected: The right answer, or several that are all right.
        ignore_case: Whether letter case is ignored.

    Returns:
        1.0 or 0.0, with the reason.

    Raises:
        ValueError: There is no expected answer, or one is empty.
    """
    accepted = [normalize(text, ignore_case) for text in ([expected] if isinstance(expected, str) else expected)]
    if not accepted or not all(accepted):
        raise ValueError("An expected answer is empty. Give equal_text() a text with at least one visible character.")
    given = normalize(answer, ignore_case)
    if not given:
        return wrong("the answer is empty")
    return right("the answer is equal") if given in accepted else wrong("the answer is different")


def normalize(text: str, ignore_case: bool = True) -> str:
    """Return a text without what `equal_text` ignores."""
    visible = "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Cc") or char.isspace())
    plain = _composed(visible)
    for _ in range(_MOST_MARKS):
        shorter = _END.sub("", plain).rstrip()
        if len(shorter) > 1 and (shorter[0], shorter[-1]) in _WRAPPERS:
            shorter = shorter[1:-1].strip()
        if shorter in ("", plain):  # a text of marks alone keeps them
            break
        plain = shorter
    plain = plain.translate(_TYPOGRAPHIC)
    return _composed(plain.casefold()) if ignore_case else plain


def _composed(text: str) -> str:
    """Return a text with composed characters and one space between words."""
    words = (unicodedata.normalize("NFC", word) if len(word) <= _LONGEST_WORD else word for word in text.split())
    return " ".join(words)
