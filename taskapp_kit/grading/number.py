"""One number, within a tolerance."""

from __future__ import annotations

import re
from decimal import Context, Decimal

from taskapp_kit.grading.grade import Grade, right, wrong
from taskapp_kit.grading.graders import normalize

LONGEST_NUMBER = 400
"""Characters of an answer that may still be a number."""

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
    """Grade whether the whole answer is one number that is close enough to the expected one.

    Read as numbers: `42`, `-3.5`, `1,234.5`, `.5`, `6.02e23`, `6.02 × 10^23`, `3/4`. A unit, a currency or percent sign,
    words, or a second number make the answer wrong.

    Args:
        answer: The answer, as the policy gave it.
        expected: The right number. A text is read exactly, with all its digits.
        absolute_tolerance: The largest difference that is accepted, in units of the number.
        relative_tolerance: The largest difference that is accepted, as a share of the expected number. The larger of the
            two tolerances counts; without either, the numbers must be equal.

    Returns:
        1.0 or 0.0, with the reason.

    Raises:
        ValueError: The expected value is not a number, or a tolerance is negative or not finite.
    """
    absolute, relative = _read(str(absolute_tolerance)), _read(str(relative_tolerance))
    right_number = _read(str(expected)) if not isinstance(expected, bool) else None
    if right_number is None:
        raise ValueError(
            "The expected value is not a finite number of at most 400 characters. "
            "Give number() an int, a float, or the number as text."
        )
    if absolute is None or relative is None or min(absolute, relative) < 0:
        raise ValueError("A tolerance must be a finite number that is not negative.")
    given = _read(answer)
    if given is None:
        return wrong("the answer is not one number")
    if given == right_number:
        return right("the number is equal")
    allowed = max(absolute, _EXACT.multiply(relative, _EXACT.abs(right_number)))
    difference = _EXACT.abs(_EXACT.subtract(given, right_number))
    return right("the number is within the tolerance") if difference <= allowed else wrong("the number is different")


def _read(text: str) -> Decimal | None:
    """Return the number that the whole text is, None for any other text."""
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
