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
        """Whether the answer begins the reply or follows a character other than a letter or digit, such as `>`."""
        return not self.before.rstrip(" ") or not self.before.rstrip(" ")[-1].isalnum()

    def reply(self, answer: str) -> str:
        """Return the right reply with its answer replaced by `answer`."""
        return f"{self.before}{answer}{self.after}"

    def decision(self, text: str) -> Decision:
        """Return the decision that sends `text` as the whole reply."""
        if self.call is None:
            return Decision(output=text)
        assert isinstance(self.call.args, dict)
        return Decision([ToolCall(self.call.tool, {**self.call.args, self.parameter: text})])


def folded(text: str) -> str:
    """Return a text in lower case, with single spaces and without punctuation at its ends."""
    return " ".join(text.casefold().split()).strip(" .!\"'`*_")
