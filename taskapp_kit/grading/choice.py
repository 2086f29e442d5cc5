"""One choice among options, given as its label, its text, or both."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from taskapp_kit.grading.grade import Grade, right, wrong
from taskapp_kit.grading.graders import normalize


def choice(answer: str, expected: str, options: Sequence[str] | Mapping[str, str]) -> Grade:
    """Grade whether the whole answer chooses the expected option.

    `B`, `(b)`, `B.`, `**B**`, `Paris`, `B) Paris` and `B: Paris` all choose option B with the text `Paris`. An answer
    that names two options, or the label of one with the text of another, chooses none.

    Args:
        answer: The answer, as the policy gave it.
        expected: The label or the text of the right option.
        options: The options' texts; labels are then A, B, C and so on. Or a mapping from label to text.

    Returns:
        1.0 or 0.0, with the reason.

    Raises:
        ValueError: Two options cannot be told apart, or `expected` is none of them.
    """
    texts = _texts(options)
    chosen, wanted = _chosen(answer, texts), _chosen(expected, texts)
    if wanted is None:
        raise ValueError(
            "The expected option does not name exactly one of the options. "
            "Give choice() its label, its text, or both as in 'B: Paris'."
        )
    if chosen is None:
        return wrong("the answer does not choose exactly one option")
    return right("the right option is chosen") if chosen == wanted else wrong("another option is chosen")


def _texts(options: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return the options' texts by label, both normalized."""
    if not isinstance(options, Mapping):
        if isinstance(options, str) or len(options) > len(ascii_uppercase):
            raise ValueError("The options must be a list of at most 26 texts, or a mapping from label to text.")
        options = dict(zip(ascii_uppercase, options, strict=False))
    texts = {normalize(label): normalize(text) for label, text in options.items()}
    if (
        len(texts) < max(2, len(options))
        or len(set(texts.values())) < len(texts)
        or not all(texts)
        or not all(texts.values())
    ):
        raise ValueError(
            "The options cannot be told apart. Each needs its own label and its own text; there must be two."
        )
    return texts


def _chosen(answer: str, texts: Mapping[str, str]) -> str | None:
    """Return the label of the only option that an answer names; None if it names none or may name several."""
    given = normalize(answer)
    named = {label for label, text in texts.items() if given == text}
    for label, text in texts.items():
        # "B", "(B)", "B.", "B) Paris", "B: Paris", "B - Paris"; a label without a mark needs a space before its text
        match = re.fullmatch(rf"\(?\[?{re.escape(label)}[)\]]?[.:]?(?: ?[-–—])?(?: (.+))?", given)
        if match and (match[1] is None or normalize(match[1]) == text):
            named.add(label)
    return named.pop() if len(named) == 1 else None
