"""Graders of a list of items: in any order, or in the expected order."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from taskapp_kit.grading.answers import read_json
from taskapp_kit.grading.graders import normalize, right, wrong
from taskapp_kit.records.scorecard import Grade

_MARK = re.compile(r"[-*•+]\s+|\(?[0-9]{1,4}[.)]\s+")
"""A list mark before an item on a separate line."""
_BRACKETS = {("[", "]"), ("{", "}"), ("(", ")")}
MOST_CHARACTERS = 10_000
"""Limit on the length of an answer, unless the expected items are longer."""
_NOTHING = {"[]", "{}", "()", "∅", "none"}


def same_items(
    answer: str,
    expected: Sequence[str],
    *,
    item: Callable[[str, str], Grade] | None = None,
    separator: str = ",",
) -> Grade:
    """Grade whether the whole answer lists the expected items, in any order.

    An item that is missing, added or repeated makes the answer wrong. Accepted formats are `a, b, c`, `a, b and c`,
    `[a, b, c]`, a JSON list, and one item on each line, with or without list marks. `none` and `[]` are the empty list.

    Args:
        answer: The policy's answer.
        expected: The right items. An item that occurs twice must be listed twice.
        item: The grader of one item, called with the answer's item and the expected item. By default, items are compared
            as in `equal_text`. With a grader, the time is quadratic in the number of expected items.
        separator: The text between two items on one line.

    Returns:
        A grade of 1.0 or 0.0 with the reason.
    """
    return _grade(answer, expected, item, separator, any_order=True)


def same_sequence(
    answer: str,
    expected: Sequence[str],
    *,
    item: Callable[[str, str], Grade] | None = None,
    separator: str = ",",
) -> Grade:
    """Grade whether the whole answer lists the expected items in their order.

    The accepted formats and the arguments are the same as for `same_items`.
    """
    return _grade(answer, expected, item, separator, any_order=False)


def _grade(
    answer: str, expected: Sequence[str], item: Callable[[str, str], Grade] | None, separator: str, *, any_order: bool
) -> Grade:
    if isinstance(expected, str):
        raise ValueError("The expected items are one string. Pass a list with one string for each item.")
    if not all(map(normalize, expected)):
        raise ValueError("An expected item is empty. Pass strings with at least one visible character.")
    if not normalize(answer):
        return wrong("the answer is empty")
    if len(answer) > max(MOST_CHARACTERS, 4 * sum(len(part) + len(separator) for part in expected)):
        return wrong("the answer is too long")
    counts = set()
    for items in _readings(answer, separator):
        counts.add(len(items))
        if len(items) != len(expected):
            continue
        if item is None:
            plain, accepted = (list(map(normalize, each)) for each in (items, expected))
            same = Counter(plain) == Counter(accepted) if any_order else plain == accepted
        else:
            same = _matched(items, expected, item) if any_order else all(map(item, items, expected))
        if same:
            return right("the items are equal")
    if len(expected) in counts:
        return wrong("an item is different" if any_order else "an item is different or in another position")
    return wrong("the number of items is different")


def _readings(answer: str, separator: str) -> Iterator[list[str]]:
    """Yield each list of items that the answer may represent."""
    plain = answer.strip()
    if normalize(plain) in _NOTHING:
        yield []
        return
    try:
        value = read_json(plain)
    except ValueError:
        value = None
    if isinstance(value, list):
        yield [part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in value]
        return
    if (plain[0], plain[-1]) in _BRACKETS:
        plain = plain[1:-1]
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    if len(lines) > 1:
        unmarked = [_MARK.sub("", line, count=1) if _MARK.match(line) else line for line in lines]
        yield unmarked
        yield [line.removesuffix(separator) for line in unmarked]
    parts = [part.strip() for part in " ".join(lines).split(separator)]
    yield parts
    *first, last = parts
    if last.startswith("and "):
        yield [*first, last.removeprefix("and ")]
    # "a, b and c": the last part contains two items, or one item such as "salt and pepper"
    for match in re.finditer(r" and ", last):
        yield [*first, last[: match.start()], last[match.end() :]]


def _matched(items: Sequence[str], expected: Sequence[str], item: Callable[[str, str], Grade]) -> bool:
    """Return whether each item can be paired with a different expected item, by augmenting paths."""
    fits = [[index for index, other in enumerate(expected) if item(one, other)] for one in items]
    holder: dict[int, int] = {}

    def place(one: int, tried: set[int]) -> bool:
        # a free item first: a list with a thousand equal items would otherwise need a thousand nested calls
        for index in sorted(fits[one], key=lambda index: index in holder):
            if index not in tried:
                tried.add(index)
                if index not in holder or place(holder[index], tried):
                    holder[index] = one
                    return True
        return False

    return all(place(one, set()) for one in range(len(items)))
