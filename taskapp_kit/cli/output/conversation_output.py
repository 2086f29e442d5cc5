"""Print an episode while it is played: one line per step, or the conversation with a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from taskapp_kit.cli.output.rollout_output import StepLines, action_words, observation_words
from taskapp_kit.cli.output.terminal import clean, console
from taskapp_kit.records.events import Answered, EpisodeEnded, Event, Failed, Limited, Observed, Started, Stepped
from taskapp_kit.rollout.policy.options import MODEL

MAX_CHARACTERS = 2000
"""The maximum number of printed characters of one message. Of the remaining characters, only the number is printed."""
COLUMN = 9
NOTHING = "(nothing)"
"""The text that is printed for an empty reply or observation."""


class RolloutLines:
    """A printer for the events of one rollout. If the reader closes the pipe (`| head`), the rollout continues."""

    def __init__(self, *, width: int | None = None, full: bool = False) -> None:
        self._steps = StepLines(width=width, full=full)
        self._conversation = ConversationLines(width=width, full=full)
        self._talks, self._read = False, True

    def show(self, event: Event) -> None:
        """Print one event. This method is called in the environment's thread."""
        if self._read:
            try:
                self._print(event)
            except (OSError, SystemExit):  # rich exits if the pipe is closed
                self._read = False

    def _print(self, event: Event) -> None:
        if isinstance(event, Started):
            self._talks = event.policy == MODEL
        elif self._talks:
            self._conversation.show(event)
        elif isinstance(event, Observed):
            self._steps.start(observation_words(event.observation))
        elif isinstance(event, Stepped):
            step = event.step
            words = observation_words(step.observation)
            self._steps.step(step.index, step.tool, step.args, words, step.reward, refused=step.refused is not None)
        elif isinstance(event, Limited | Failed | EpisodeEnded):
            self._steps.end()


class ConversationLines:
    """A printer for the conversation with a model. Each message is printed once."""

    def __init__(self, *, width: int | None = None, full: bool = False) -> None:
        self._out = console(width=width)
        self._limit = None if full else MAX_CHARACTERS

    def show(self, event: Event) -> None:
        """Print one event."""
        if isinstance(event, Answered):
            for message in event.answer.messages[:-1]:
                role = str(message.get("role", ""))
                if role != "tool" and (event.turn == 0 or role == "system"):  # later messages repeat step results
                    self.message(role, _words(message.get("content")))
            message = event.answer.messages[-1] if event.answer.messages else {}
            thoughts = message.get("reasoning_content") or message.get("reasoning")
            calls = event.answer.tool_calls
            self.answer(thoughts if isinstance(thoughts, str) else "", event.answer.output or NOTHING * (not calls))
            for call in calls:
                self.call(call.tool, call.args)
        elif isinstance(event, Stepped):
            step = event.step
            self.result(observation_words(step.observation), step.reward, refused=step.refused is not None)
        elif isinstance(event, Limited):
            self.limit(event.limit, event.value)

    def message(self, role: str, words: str) -> None:
        """Print a message of the model's prompt."""
        self.say(role, words, "dim" if role == "system" else "")

    def answer(self, thoughts: str, words: str, who: str = "model") -> None:
        """Print the model's reasoning and text. Empty parts are omitted."""
        if thoughts.strip():
            self.say("thinks", thoughts, "dim")
        if words:
            self.say(who, words, "bold")

    def call(self, tool: str, args: Any, who: str = "calls") -> None:
        """Print an action that was requested."""
        self.say(who, action_words(tool, args), "bold")

    def result(self, words: str, reward: float | None, *, refused: bool) -> None:
        """Print the result of an action."""
        after = "" if reward is None else f"reward {reward:.4g}"
        self.say("refused" if refused else "result", words or NOTHING, "yellow" if refused else "", after=after)

    def limit(self, name: str, value: float) -> None:
        """Print the limit that ended the episode."""
        self.say("limit", f"{name} {value:g}", "dim")

    def say(self, who: str, words: str, style: str = "", *, after: str = "") -> None:
        """Print text next to its role. Long text is cut unless `full` is set. after: A suffix that is never cut."""
        most = len(words) if self._limit is None else self._limit
        shown = words if len(words) <= most else f"{words[:most]}… ({len(words) - most} more)"
        shown = clean(shown.strip())
        if after:
            shown += ("\n" if "\n" in shown else "   ") + after
        head = f"{clean(who):<{COLUMN}}"
        for line in shown.split("\n"):
            for part in Text(line).wrap(self._out, self._out.width - COLUMN) or [Text("")]:
                self._out.print(Text(f"{head}{part.plain}".rstrip(), style=style), soft_wrap=True)
                head = " " * COLUMN


def _words(content: Any) -> str:
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, Mapping)]
        return "\n".join(str(part.get("text", "[picture]")) for part in parts)
    return "" if content is None else str(content)
