"""A row's right answer and the form of the reply that contains it, from which the attack builds wrong replies."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskapp_kit.records.content import Json
from taskapp_kit.records.trajectory import Decision, ToolCall

SEPARATORS = (", ", ",", "; ", " -> ", "\n")
"""What may be between the items of a list, in the order in which it is tried."""
NO_LIST = re.compile(r"[(){}=]|\n[ \t]")
"""What code and objects contain, and lists do not."""
WORD = 4
"""A shorter value is only found in a reply as a whole word."""


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """A row with its right answer. The right reply is `before`, `answer` and `after`, as text or as one argument of a tool."""

    split: str
    seed: int
    prompt: str
    answer: str
    before: str
    after: str
    accepted: frozenset[str]
    """All private strings and numbers of the row, folded. A reply with one of them may be right."""
    call: ToolCall | None = None
    """The tool call of the right reply, or None for text."""
    parameter: str = ""
    reward: float = 0.0
    rubric_words: str = ""
    """What the rubrics and judges of the app state about themselves."""

    @property
    def delimited(self) -> bool:
        """Whether the answer begins the reply or follows a character other than a letter or digit, such as `>`."""
        return not self.before.rstrip(" ") or not self.before.rstrip(" ")[-1].isalnum()

    @property
    def between(self) -> str:
        """The string between the items of an answer that is a list. Otherwise, an empty string."""
        return next((item for item in SEPARATORS if item in self.answer and not NO_LIST.search(self.answer)), "")

    @property
    def items(self) -> list[str]:
        """The items of an answer that is a list of at least two. Otherwise, an empty list."""
        return self.answer.split(self.between) if self.between else []

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of an answer that is a JSON object. Otherwise, an empty mapping."""
        if not self.answer.startswith("{"):
            return {}
        try:
            found = json.loads(self.answer)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def function(self) -> str:
        """The name of the last function in an answer that is Python code. Otherwise, an empty string."""
        names = re.findall(r"^def (\w+)\(", self.answer, re.MULTILINE)
        return names[-1] if names else ""

    def reply(self, answer: str) -> str:
        """Return the right reply with its answer replaced by `answer`."""
        return f"{self.before}{answer}{self.after}"

    def decision(self, text: str) -> Decision:
        """Return the decision that sends `text` as the whole reply."""
        if self.call is None:
            return Decision(output=text)
        return Decision([ToolCall(self.call.tool, self.arguments(text))])

    def arguments(self, text: str) -> dict[str, Json]:
        """Return the tool's arguments with which a whole reply is sent."""
        assert self.call is not None
        assert isinstance(self.call.args, dict)
        return {**self.call.args, self.parameter: text}


def folded(text: str) -> str:
    """Return a text in lower case, with single spaces and without punctuation at its ends."""
    return " ".join(text.casefold().split()).strip(" .!\"'`*_")


def answer_in(reply: str, values: Mapping[str, Sequence[str]]) -> tuple[int, int] | None:
    """Return the start and end of the right answer in gold's reply, or None if the reply contains no private value.

    The answer is a whole JSON object, the items of a list in their order, or the longest value, ignoring case.

    Args:
        reply: The text or argument with which gold replied.
        values: The private values of the row by field. The field of a list has several values.
    """
    start, end = reply.find("{"), reply.rfind("}") + 1
    if 0 <= start < end:
        try:
            found = json.loads(reply[start:end])
        except ValueError:
            found = None
        if isinstance(found, dict) and len(found) > 1:
            return start, end
    spans = []
    for items in values.values():
        span = _span(reply, items)
        spans += [span] if span else [one for item in items if (one := _span(reply, [item])) is not None]
    return max(spans, key=lambda span: span[1] - span[0], default=None)


def _span(reply: str, items: Sequence[str]) -> tuple[int, int] | None:
    """Return where all items are in a text, one after the other, or None. A single item is found where it is last."""
    if not all(item.strip() for item in items):
        return None
    found = list(re.finditer(r"\W{1,4}".join(map(_pattern, items)), reply, re.IGNORECASE))
    return found[-1].span() if found else None


def _pattern(value: str) -> str:
    """Return a pattern for a value. A float such as 53.0 may be written 53, and a short value must be a whole word."""
    whole = re.fullmatch(r"-?\d+\.0", value)
    pattern = rf"{re.escape(value[:-2])}(?:\.0)?" if whole else re.escape(value)
    return pattern if len(value) >= WORD and not whole else rf"(?<![\w.]){pattern}(?!\w|\.\d)"
