"""A row's right answer and the form of the reply that contains it, from which the attack builds wrong replies."""

from __future__ import annotations

from dataclasses import dataclass

from taskapp_kit.records.trajectory import Decision, ToolCall


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

    @property
    def delimited(self) -> bool:
        """Whether the answer is the whole reply, or in a part of it that ends where the answer ends, such as a tag."""
        return not self.before.rstrip(" ") or not self.before.rstrip(" ")[-1].isalnum()

    def reply(self, answer: str) -> str:
        """Return a reply in the form of the right one, with another answer."""
        return f"{self.before}{answer}{self.after}"

    def decision(self, text: str) -> Decision:
        """Return the decision that sends a whole reply."""
        if self.call is None:
            return Decision(output=text)
        assert isinstance(self.call.args, dict)
        return Decision([ToolCall(self.call.tool, {**self.call.args, self.parameter: text})])


def folded(text: str) -> str:
    """Return a text without differences of case, white space and punctuation at its ends."""
    return " ".join(text.casefold().split()).strip(" .!\"'`*_")
