"""The doctor's policies: they repeat recorded actions, draw actions from the tools' schemas, or reply with nonsense."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import PolicyStops, Tool, View
from taskapp_kit.records.trajectory import Decision, PlayedStep, ToolCall
from taskapp_kit.rollout.policy.sampling import draw, sentence

LEFT = "left"
"""The stop reason if a recording ends before the episode does."""
TURN_SECONDS = 30.0
"""How long an interleaved rollout waits for the other rollout, in seconds."""


class SchemaPolicy:
    """Draws a tool, and arguments that are valid for its schema, even if the schema has no bounds."""

    name = "schema"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def decide(self, view: View) -> Decision:
        """Return one drawn action."""
        tool = self._rng.choice(list(view.tools))
        if tool.text:
            return Decision(output=sentence(self._rng))
        return Decision([ToolCall(tool.name, draw(dict(tool.parameters), self._rng))])


class Function:
    """Decides each turn with a function of the view."""

    def __init__(self, name: str, answer: Callable[[View], Decision]) -> None:
        self.name = name
        self._answer = answer

    def decide(self, view: View) -> Decision:
        """Return the function's decision."""
        return self._answer(view)


class RecordedActions:
    """Repeats actions in order, then stops. before: Called before each decision."""

    name = "recorded"

    def __init__(self, steps: Sequence[PlayedStep], before: Callable[[], None] = lambda: None) -> None:
        self._steps = [step for step in steps if step.tool]
        self._given = 0
        self._before = before

    def decide(self, view: View) -> Decision:
        """Return the next action."""
        self._before()
        if self._given >= len(self._steps):
            raise PolicyStops(LEFT)
        step = self._steps[self._given]
        self._given += 1
        return Decision([ToolCall(step.tool, step.args)])


def scripted(steps: Sequence[PlayedStep]) -> list[Json]:
    """Return the `ops` of a request that repeats the steps."""
    return [{"type": "env", "tool": step.tool, "args": step.args} for step in steps if step.tool]


class TakingTurns:
    """Makes rollouts in separate threads take turns. Each rollout plays one action at a time, in a fixed order.

    late: Whether a rollout was stopped because a turn took longer than TURN_SECONDS.
    """

    def __init__(self, count: int) -> None:
        self.late = False
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._playing = set(range(count))
        self._count = count
        self._next = 0

    def wait(self, number: int) -> None:
        """Wait for this rollout's turn. The first turn begins after every episode has been reset.

        Raises PolicyStops if the turn has not begun after TURN_SECONDS.
        """
        with self._changed:
            self._waiting.add(number)
            self._changed.notify_all()
            ready = self._changed.wait_for(
                lambda: self._waiting >= self._playing and self._next == number, timeout=TURN_SECONDS
            )
            self._waiting.discard(number)
            if not ready:
                self.late = True
                raise PolicyStops(LEFT)
            self._next = self._after(number)

    def leave(self, number: int) -> None:
        """Record that this rollout has ended."""
        with self._changed:
            self._playing.discard(number)
            self._waiting.discard(number)
            if self._next == number:
                self._next = self._after(number)
            self._changed.notify_all()

    def _after(self, number: int) -> int:
        following = [(number + step) % self._count for step in range(1, self._count + 1)]
        return next((other for other in following if other in self._playing), number)


def empty_texts(tools: Sequence[Tool]) -> list[tuple[str, Decision]]:
    """Return empty replies: one without text, and for each tool one with an empty string in every field that allows it."""
    answers = [("no words", Decision(output=""))]
    for tool in tools:
        properties = tool.parameters.get("properties", {})
        texts = [
            name
            for name, schema in properties.items()
            if isinstance(schema, dict) and schema.get("type") == "string" and not schema.keys() & CLOSED
        ]
        if texts:
            arguments = draw(dict(tool.parameters), random.Random(0))
            answers.append((tool.name, Decision([ToolCall(tool.name, {**arguments, **dict.fromkeys(texts, "")})])))
    return answers


CLOSED = frozenset({"enum", "const", "pattern", "minLength", "format"})
"""Keywords in a string's schema that may exclude the empty string."""


def nonsense(tools: Sequence[Tool]) -> list[tuple[str, Callable[[View], Decision]]]:
    """Return (name, decide) pairs of policies that imitate models that ignore their instructions."""
    first = next((tool for tool in tools if not tool.text), None)
    answers: list[tuple[str, Callable[[View], Decision]]] = [
        ("words", lambda view: Decision(output="Purple monkeys, seven of them, sing about the weather.")),
        ("an unknown tool", lambda view: Decision([ToolCall("no_such_tool", {"x": 1})])),
        ("no words", lambda view: Decision(output="")),
    ]
    if first is not None:
        answers.append(("bad arguments", lambda view: Decision([ToolCall(first.name, {"no_such_argument": ["?"]})])))
    return answers
