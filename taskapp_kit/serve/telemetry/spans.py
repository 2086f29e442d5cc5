"""A rollout's tree of spans, built from its recorded events after its end.

    rollout                       admission to end
    ├── reset                     the environment's construction and reset
    ├── turn                      one decision and the actions that follow
    │   ├── policy | chat MODEL   the policy's decision
    │   └── step                  one action in the environment
    └── scoring
        └── criterion | judge | metric

Events contain durations but no times, so the lengths of spans are exact and their positions are inferred. Scoring ends
with the rollout, and the episode ends when scoring begins. The parts of the episode follow each other without gaps.
Time that is not measured, such as waiting in a queue, is a gap at the beginning of the rollout. If a part of the
episode failed or hung, the first part starts at the beginning of the rollout, and the failed part, which was not
measured, extends to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from taskapp_kit.records.content import text_of
from taskapp_kit.records.events import Acted, Answered, Called, Event, Observed, Stepped
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.scorecard import CriterionScore
from taskapp_kit.records.trajectory import Decision, PlayedStep
from taskapp_kit.rollout.admission import RunningRollout

Attribute = str | bool | int | float
Content = Callable[[str], str]
"""Returns an observation or answer for a trace, shortened and without secrets."""

MAX_SPANS = 2000
MAX_MODEL = 120
"""The maximum length of a model's name, in characters."""
INPUT_TOKENS, OUTPUT_TOKENS = ("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")


@dataclass(slots=True)
class Span:
    """A span.

    Attributes:
        start_ns: Start, in Unix nanoseconds.
        end_ns: End, in Unix nanoseconds.
        failed: Code of the failure in this part, or None if the part did not fail.
    """

    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Attribute] = field(default_factory=dict)
    children: list[Span] = field(default_factory=list)
    kind: Literal["internal", "server", "client"] = "internal"
    failed: str | None = None


def root_of(rollout: RunningRollout, result: Rollout) -> Span:
    """Return the span of the rollout without its children. Events are not read."""
    plan, failure = rollout.plan, result.failure
    start = _ns(rollout.created_at)
    root = Span("rollout", start, start + max(0, _ns(result.timing.get("total", 0.0))))
    caller = rollout.caller
    # without a caller, this process started the rollout, so it has no client's span
    if caller.key_label is not None or caller.traceparent is not None:
        root.kind = "server"
    card = result.scorecard
    root.attributes = _given(
        {
            "taskapp.rollout_id": rollout.rollout_id,
            "taskapp.environment": result.environment,
            "taskapp.environment.version": result.version,
            "taskapp.split": result.split,
            "taskapp.seed": result.seed,
            "taskapp.policy": plan.policy,
            "taskapp.key": caller.key_label,
            "taskapp.status": result.status,
            "taskapp.stop_reason": result.stop_reason,
            "taskapp.steps": result.length,
            "taskapp.return": result.total_reward,
            "taskapp.outcome_score": card.outcome_score,
            "taskapp.reward": card.reward,
        }
    )
    if failure is not None:
        root.failed = failure.code
        root.attributes |= _given(
            {"error.type": failure.code, "taskapp.boundary": failure.boundary, "taskapp.error_id": failure.error_id}
        )
    return root


def spans_of(
    rollout: RunningRollout, result: Rollout, *, content: Content | None = None, most: int = MAX_SPANS
) -> Span:
    """Return the span of the rollout with its children.

    Args:
        rollout: The rollout.
        result: The result of the rollout.
        content: Function that shortens observations, answers and arguments. If it is None, spans do not contain them.
            Private fields and the end state are never included.
        most: Maximum number of spans. The attribute `taskapp.dropped_spans` counts the spans that were left out.
    """
    root = root_of(rollout, result)
    scoring = _scoring(result, root, content, most - 1)
    over = root.end_ns if scoring is None else scoring.start_ns
    layout = _Layout(rollout, result, root, over, content, most - 1 - _count(scoring))
    layout.lay(result.events)
    if scoring is not None:
        root.children.append(scoring)
    if layout.dropped:
        root.attributes["taskapp.dropped_spans"] = layout.dropped
    if content is not None and result.failure is not None:
        root.attributes["taskapp.failure"] = content(result.failure.message)
    return root


class _Layout:
    """Places the parts of an episode one after another, from the beginning of the rollout to `over`, the end of the episode."""

    def __init__(
        self,
        rollout: RunningRollout,
        result: Rollout,
        root: Span,
        over: int,
        content: Content | None,
        places: int,
    ) -> None:
        self.root = root
        self.over = over
        self.content = content
        self.places = places
        self.dropped = 0
        self.cursor = root.start_ns
        self.result = result
        plan = rollout.plan
        self.policy = plan.policy
        self.tools = plan.environment.actions
        model = rollout.plan.request.policy.config.get("model")
        self.model = model[:MAX_MODEL] if isinstance(model, str) else None
        self.turn: Span | None = None

    def lay(self, events: Sequence[Event]) -> None:
        """Add a span for each part to `root.children`."""
        open_part = _open_part(events, self.result)
        if open_part is None:
            # waiting is not measured, so it is the remaining time at the beginning
            self.cursor = max(self.root.start_ns, self.over - self._known(events))
        for event in events:
            if isinstance(event, Observed):
                reset = self._add(self.root, "reset", event.seconds)
                self._show(reset, "taskapp.observation", lambda event=event: text_of(event.observation))  # type: ignore[misc]
            elif isinstance(event, Called):
                self._begin_turn(event.turn)
            elif isinstance(event, Answered):
                if event.scripted:
                    self._begin_turn(event.turn)
                else:
                    self._answered(event.answer, event.seconds)
            elif isinstance(event, Stepped):
                self._stepped(event.step)
        if open_part is not None:
            self._unfinished(open_part)
        self._end_turn()

    def _known(self, events: Sequence[Event]) -> int:
        """Return the total duration of all parts and of closing the environment, in nanoseconds."""
        inside = asked = 0.0
        for event in events:
            if isinstance(event, Observed):
                inside += event.seconds
            elif isinstance(event, Stepped):
                inside += event.step.seconds
            elif isinstance(event, Answered):
                asked += event.seconds
        # the environment's remaining time, because no event records closing
        closing = max(0.0, self.result.timing.get("environment", 0.0) - inside)
        return _ns(inside + asked + closing)

    def _add(self, parent: Span | None, name: str, seconds: float, end: int | None = None) -> Span | None:
        """Add and return the span of the next part, which lasts `seconds` or until `end`, or return None at the span limit."""
        start = self.cursor
        self.cursor = min(self.over, start + max(0, _ns(seconds))) if end is None else end
        # tracing backends do not accept thousands of spans in a trace
        if self.places <= 0 or parent is None:
            self.dropped += 1
            return None
        self.places -= 1
        span = Span(name, start, self.cursor)
        parent.children.append(span)
        return span

    def _begin_turn(self, index: int) -> None:
        self._end_turn()
        self.turn = self._add(self.root, "turn", 0.0)
        if self.turn is not None:
            self.turn.attributes["taskapp.turn"] = index

    def _end_turn(self) -> None:
        if self.turn is not None:
            self.turn.end_ns = self.cursor
            self.turn = None

    def _answered(self, answer: Decision, seconds: float) -> None:
        span = self._add(self.turn, "policy", seconds)
        if span is None:
            return
        span.attributes["taskapp.policy"] = self.policy
        # a scripted policy has no tokens, and its span is not a client span
        if answer.usage or answer.token_ids is not None or answer.policy_version is not None:  # a model answered
            span.name = f"chat {self.model}" if self.model else "chat"
            span.kind = "client"
            span.attributes |= _given(
                {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.request.model": self.model,
                    "gen_ai.usage.input_tokens": _tokens(answer, INPUT_TOKENS),
                    "gen_ai.usage.output_tokens": _tokens(answer, OUTPUT_TOKENS),
                }
            )
        self._show(span, "taskapp.answer", lambda: answer.output or "")
        self._show(span, "taskapp.tool_calls", lambda: _json([[call.tool, call.args] for call in answer.tool_calls]))

    def _stepped(self, step: PlayedStep) -> None:
        span = self._add(self.turn, "step", step.seconds)
        if span is None:
            return
        span.attributes = _given(
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": step.tool
                if step.tool in self.tools
                else "(unknown)",  # the policy chooses the name
                "taskapp.step": step.index,
                "taskapp.reward": step.reward,
                "taskapp.terminated": step.terminated,
                "taskapp.truncated": step.truncated,
                "taskapp.refused": step.refused is not None,
            }
        )
        self._show(span, "taskapp.args", lambda: _json(step.args))
        self._show(span, "taskapp.observation", lambda: text_of(step.observation))

    def _unfinished(self, part: Event | None) -> None:
        failure = self.result.failure
        if isinstance(part, Acted):
            span = self._add(self.turn, "step", 0.0, self.over)
            if span is not None:
                known = part.tool if part.tool in self.tools else "(unknown)"
                span.attributes = {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": known,
                    "taskapp.step": part.step,
                }
                self._show(span, "taskapp.args", lambda: _json(part.args))
        elif isinstance(part, Called):
            span = self._add(self.turn, "policy", 0.0, self.over)
            if span is not None:
                span.attributes["taskapp.policy"] = self.policy
        else:
            span = self._add(self.root, "reset", 0.0, self.over)
        if span is not None and failure is not None:
            span.failed = failure.code

    def _show(self, span: Span | None, name: str, text: Callable[[], str]) -> None:
        if self.content is not None and span is not None and (shown := text()):
            span.attributes[name] = self.content(shown)


def _open_part(events: Sequence[Event], result: Rollout) -> Event | None:
    """Return the event that began the part in which the episode failed or hung. `started` begins the reset.

    Return None if the episode did not fail, or if it failed between two parts.
    """
    failure = result.failure
    if failure is None or not events:
        return None
    last: Event | None = None
    for event in events:
        if isinstance(event, Observed | Answered | Stepped):
            last = None
        elif isinstance(event, Called | Acted) or event is events[0]:
            last = event
    if last is events[0] and (failure.boundary == "cancelled" or failure.code == "no_thread"):
        return None  # the reset may never have begun
    return last


def _scoring(result: Rollout, root: Span, content: Content | None, places: int) -> Span | None:
    """Return the span of scoring at the end of the rollout, or None if scoring had not begun."""
    broke = result.failure is not None and result.failure.boundary == "scoring"
    if (result.failure is not None and not broke) or places <= 0:
        return None
    start = max(root.start_ns, root.end_ns - _ns(result.timing.get("scoring", 0.0)))
    span = Span("scoring", start, root.end_ns)
    if broke and result.failure is not None:
        span.failed = result.failure.code
    cursor = start
    for item in result.scorecard.criteria[: places - 1]:
        end = min(root.end_ns, cursor + max(0, _ns(item.seconds)))
        span.children.append(_criterion(item, cursor, end, content))
        cursor = end
    return span


def _criterion(item: CriterionScore, start: int, end: int, content: Content | None) -> Span:
    kind = item.of if item.of in ("judge", "metric") else "criterion"
    span = Span(kind, start, end)
    span.attributes = _given(
        {
            "taskapp.criterion": item.name,
            "taskapp.of": item.of,
            "taskapp.score": item.score,
            "taskapp.weight": item.weight,
            "taskapp.required": item.required,
            "taskapp.seconds": item.seconds,
        }
    )
    if item.error is not None:
        span.failed = "criterion_failed"
    if content is not None and item.reason:
        span.attributes["taskapp.reason"] = content(item.reason)
    return span


def _count(span: Span | None) -> int:
    return 0 if span is None else 1 + len(span.children)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _given(values: dict[str, Attribute | None]) -> dict[str, Attribute]:
    return {name: value for name, value in values.items() if value is not None and value != ""}


def _tokens(answer: Decision, names: tuple[str, ...]) -> int | None:
    return next((int(answer.usage[name]) for name in names if name in answer.usage), None)


def _json(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()
