"""An episode on the terminal, as it happens: one line for each step, or the conversation with a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.padding import Padding
from rich.text import Text

from taskapp_kit.cli.rollout_output import StepLines, action_words, observation_words
from taskapp_kit.cli.terminal import clean, console
from taskapp_kit.contract.events import Answered, EpisodeEnded, Event, Failed, Limited, Observed, Started, Stepped
from taskapp_kit.rollout.policy.select import MODEL

MAX_CHARACTERS = 2000
"""Of one message; the rest is counted."""
COLUMN = 9


class RolloutLines:
    """Prints the events of one rollout. When the reader closes the pipe (`| head`), the rollout continues.

    width: columns, None takes the terminal's. full: nothing is cut and nothing folded.
    """

    def __init__(self, *, width: int | None = None, full: bool = False) -> None:
        self._steps = StepLines(width=width, full=full)
        self._conversation = ConversationLines(width=width, full=full)
        self._talks, self._read = False, True

    def show(self, event: Event) -> None:
        """Print one event; called in the environment's thread."""
        if self._read:
            try:
                self._print(event)
            except (OSError, SystemExit):  # rich ends the program when its reader is gone
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
    """Prints what a model read, said and did, each message once."""

    def __init__(self, *, width: int | None = None, full: bool = False) -> None:
        self._out = console(width=width)
        self._limit = None if full else MAX_CHARACTERS

    def show(self, event: Event) -> None:
        """Print one event."""
        if isinstance(event, Answered):
            self._answered(event)
        elif isinstance(event, Stepped):
            step = event.step
            reward = "" if step.reward is None else f"   reward {step.reward:.4g}"
            words = observation_words(step.observation) or "(nothing)"
            self._say(
                "refused" if step.refused is not None else "result", words + reward, "yellow" if step.refused else ""
            )
        elif isinstance(event, Limited):
            self._say("limit", f"{event.limit} {event.value:g}", "dim")

    def _answered(self, event: Answered) -> None:
        for message in event.answer.messages[:-1]:
            role = str(message.get("role", ""))
            if role != "tool" and (event.turn == 0 or role == "system"):  # later ones repeat what a step showed
                self._say(role, _words(message.get("content")), "dim" if role == "system" else "")
        message = event.answer.messages[-1] if event.answer.messages else {}
        thoughts = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thoughts, str) and thoughts.strip():
            self._say("thinks", thoughts, "dim")
        if event.answer.output:
            self._say("model", event.answer.output, "bold")
        for call in event.answer.tool_calls:
            self._say("calls", action_words(call.tool, call.args), "bold")

    def _say(self, who: str, words: str, style: str = "") -> None:
        most = len(words) if self._limit is None else self._limit
        shown = words if len(words) <= most else f"{words[:most]}… ({len(words) - most} more)"
        lines = clean(shown.strip()).split("\n")
        self._out.print(Text(f"{who:<{COLUMN}}{lines[0]}", style=style))
        for line in lines[1:]:
            self._out.print(Padding(Text(line, style=style), (0, 0, 0, COLUMN)))


def _words(content: Any) -> str:
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, Mapping)]
        return "\n".join(str(part.get("text", "[picture]")) for part in parts)
    return "" if content is None else str(content)
