"""Grader of numbers: exact or within a tolerance, with or without a unit."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from decimal import Context, Decimal

from taskapp_kit.grading.graders import normalize, right, wrong
from taskapp_kit.records.scorecard import Grade

LONGEST_NUMBER = 400
"""The maximum length of an answer that is parsed as a number, in characters."""

_EXACT = Context(prec=500, Emax=10**6, Emin=-(10**6), traps=[])
_GROUP_SPACE = re.compile(r"(?<=[0-9])[\u00a0\u202f](?=[0-9]{3}(?![0-9]))")
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_PLAIN = rf"(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
_NUMBER = re.compile(
    rf"([+-]?)({_PLAIN})(?:e([+-]?[0-9]{{1,6}})| ?[x×*·] ?10\^\{{?([+-]?[0-9]{{1,6}})\}}?)?", re.IGNORECASE
)
_FRACTION = re.compile(rf"([+-]?)({_DIGITS}) ?/ ?({_DIGITS})")


def number(
    answer: str,
    expected: float | Decimal | str,
    *,
    absolute_tolerance: float = 0.0,
    relative_tolerance: float = 0.0,
    unit: str | None = None,
    units: Mapping[str, float] | None = None,
    unit_required: bool = False,
) -> Grade:
    """Grade whether the whole answer is one number within the tolerance of the expected number.

    Accepted formats are `42`, `-3.5`, `1,234.5`, `.5`, `6.02e23`, `6.02 × 10^23` and `3/4`. Other words, a second number, or
    a unit, currency sign or percent sign that is not in `unit` or `units` make the answer wrong.

    Args:
        answer: The policy's answer.
        expected: The right number. A string is parsed without rounding.
        absolute_tolerance: The largest accepted difference.
        relative_tolerance: The largest accepted difference, as a fraction of the expected number. The larger of the
            two tolerances applies. If both are 0, the numbers must be equal.
        unit: The unit of the expected number, such as `"km/h"`, `"%"` or `"€"`. Case counts (`mW` is not `MW`), and a
            currency sign may precede the number.
        units: Other accepted units, each with its size in `unit`, such as `{"m/s": 3.6}` with `unit="km/h"`.
        unit_required: Whether an answer without a unit is wrong.

    Returns:
        A grade of 1.0 or 0.0 with the reason.

    Raises:
        ValueError: The expected value is not a number, a tolerance is negative or not finite, or `units` or
            `unit_required` is passed without `unit`.
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
    if unit is None and (units or unit_required):
        raise ValueError("`units` and `unit_required` require `unit`. Pass number() the unit of the expected number.")
    sizes = {} if unit is None else {unit: 1.0, **(units or {})}
    digits, size = _without_unit(answer, sizes)
    if size is None and unit_required:
        return wrong("the unit is missing or different")
    answered = _read(digits)
    if answered is None:
        return wrong(
            "the answer is not one number" if unit is None else "the answer is not one number with an accepted unit"
        )
    answered = _EXACT.multiply(answered, Decimal(str(size))) if size not in (None, 1.0) else answered
    if answered == right_number:
        return right("the number is equal")
    allowed = max(absolute, _EXACT.multiply(relative, _EXACT.abs(right_number)))
    difference = _EXACT.abs(_EXACT.subtract(answered, right_number))
    return right("the number is within the tolerance") if difference <= allowed else wrong("the number is different")


def _read(text: str) -> Decimal | None:
    """Return the number that the whole text represents, or None if it does not represent a number."""
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


_UNIT_SIGNS = str.maketrans({"²": "^2", "³": "^3", "⁻": "^-", "¹": "1", "·": "*", "⋅": "*", "µ": "μ", "º": "°"})


def _plain_unit(unit: str) -> str:
    """Return a unit without differences in notation: `m / s²` is `m/s^2`."""
    return re.sub(r"\s*([/*])\s*", r"\1", normalize(unit, ignore_case=False).translate(_UNIT_SIGNS))


def _without_unit(answer: str, sizes: Mapping[str, float]) -> tuple[str, float | None]:
    """Return the answer without its unit, and the unit's size. If it has no accepted unit, the size is None."""
    if not sizes or len(answer) > LONGEST_NUMBER:
        return answer, None
    plain = normalize(_GROUP_SPACE.sub(",", answer), ignore_case=False).replace("\N{MINUS SIGN}", "-")
    sign, before, rest = re.match(r"([+-]?)([^\w\s.+-]?)(.*)", plain, re.DOTALL).groups()  # type: ignore[union-attr]  # fits any text
    if before and before in sizes and unicodedata.category(before) == "Sc":
        return sign + rest.lstrip(), sizes[before]
    match = _FRACTION.match(plain) or _NUMBER.match(plain)
    accepted = {_plain_unit(unit): size for unit, size in sizes.items()}
    size = accepted.get(_plain_unit(plain[match.end() :])) if match else None
    return (match[0], size) if match and size is not None else (answer, None)
