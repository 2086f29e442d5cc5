"""Print a rollout from the response of `POST /rollout`: its steps, then its scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from taskapp_kit.cli.output.terminal import clean, console, number, table, wrapped
from taskapp_kit.records.content import Image, text_of
from taskapp_kit.records.formatting import counted
from taskapp_kit.records.scorecard import JUDGES_SKIPPED
from taskapp_kit.records.trajectory import nothing_accepted

if TYPE_CHECKING:
    from rich.table import Table

NUMBER_WIDTH, REWARD_WIDTH = 5, 8
LINES_OF_A_CELL = 20
"""The maximum number of lines for one action or observation, unless `full` is set."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """The printed line of a step, without the step's index.

    If consecutive lines are equal, the first line is printed, followed by the number of repetitions.
    """

    action: str
    observation: str
    reward: str = ""
    refused: bool = False


class StepLines:
    """A table of steps that is printed step by step. Call `end` after the last step.

    Args:
        width: The width in columns, or None for the terminal's width.
        full: Whether to print long text and equal steps in full.
    """

    def __init__(self, *, width: int | None = None, full: bool = False) -> None:
        self._out = console(width=width)
        rest = max(30, self._out.width - NUMBER_WIDTH - REWARD_WIDTH - 3)
        self._action = min(36, rest * 2 // 5)
        self._observation = rest - self._action
        self._most = None if full else LINES_OF_A_CELL
        self._headed = False
        self._full = full
        self._last: StepLine | None = None
        self._repeated = 0

    def start(self, observation: str) -> None:
        """Print the first observation."""
        self._add(0, StepLine("reset", observation))

    def step(self, index: int, tool: str, args: Any, observation: str, reward: float | None, *, refused: bool) -> None:
        """Print one step. `index` starts at 0."""
        shown = "" if reward is None else f"{reward:.4g}"
        self._add(index + 1, StepLine(action_words(tool, args), observation, shown, refused))

    def end(self) -> None:
        """Finish the table: print the number of equal steps that were not printed, if any."""
        if self._repeated:
            more = self._row("", f"… {self._repeated:,} more like this", "", "")
            self._out.print(more, style="dim", soft_wrap=True)
        self._last, self._repeated = None, 0

    def _add(self, number: int, line: StepLine) -> None:
        if line == self._last and not self._full:
            self._repeated += 1
            return
        self.end()
        self._last = line
        self._print(number, line)

    def _print(self, number: int, line: StepLine) -> None:
        if not self._headed:
            self._headed = True
            self._out.print(self._row("step", "action", "observation", "reward"), style="bold")
        actions = wrapped(line.action, self._action, self._most)
        seen = wrapped(line.observation, self._observation, self._most)
        rows = zip_longest((str(number),), actions, seen, (line.reward,), fillvalue="")
        for row in rows:
            self._out.print(self._row(*row), style="yellow" if line.refused else None, soft_wrap=True)

    def _row(self, at: str, action: str, observation: str, reward: str) -> str:
        return f"{at:>4}  {action:<{self._action}} {observation:<{self._observation}} {reward:>{REWARD_WIDTH}}".rstrip()


def action_words(tool: str, args: Any) -> str:
    """Return an action as text: `add amount=3`, or `(no action)` if the policy called no tool."""
    if not tool:
        return "(no action)"
    if isinstance(args, Mapping):
        return " ".join([tool, *(f"{name}={_value(value)}" for name, value in args.items())])
    return f"{tool} {_value(args)}"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return "[" + ", ".join(map(str, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def observation_words(observation: Any) -> str:
    """Return a recorded observation as text. Each image is replaced with its size."""
    if not isinstance(observation, list):
        return text_of(observation)
    return "\n".join(
        f"[picture {block.width} x {block.height}]" if isinstance(block, Image) else str(block) for block in observation
    )


def wire_words(observation: Any) -> str:
    """Return the observation from a response as text. Each image is replaced with a placeholder."""
    if isinstance(observation, Mapping):
        if set(observation) == {"text"}:
            return str(observation["text"])
        if set(observation) == {"content"} and isinstance(observation["content"], list):
            return "\n".join(
                str(block.get("text", "[picture]")) for block in observation["content"] if isinstance(block, Mapping)
            )
    return text_of(observation)


def print_steps(body: Mapping[str, Any], *, width: int | None = None, full: bool = False) -> None:
    """Print the steps in the response body of `POST /rollout`."""
    lines = StepLines(width=width, full=full)
    trajectory = body["trajectories"][0]
    trace = trajectory.get("trace") or {}
    lines.start(wire_words(trace.get("initial_observation", {"text": ""})))
    for index, step in enumerate(trajectory["steps"]):
        call = (step.get("tool_calls") or [{"tool": "", "args": {}}])[0]
        refused = bool((step.get("info") or {}).get("refused"))
        lines.step(index, call["tool"], call["args"], wire_words(step["obs"]), step["reward"], refused=refused)
    lines.end()


def print_result(
    body: Mapping[str, Any], *, policy_note: str = "", width: int | None = None, full: bool = False
) -> None:
    """Print the scorecard with reasons, the reward with its formula, how the episode ended, and how long it took."""
    out = console(width=width)
    trajectory, card, metrics = body["trajectories"][0], body["scorecard"], body["metrics"]
    meta = body["pipeline_metadata"]
    out.print()
    if card["criteria"]:
        out.print(criteria_table(card["criteria"]))
        out.print()
    facts = table("", "")
    reward = number(body["reward"]) + ("" if body["reward"] is not None else f" ({_undefined(card)})")
    facts.add_row("reward", f"{reward}   {body['reward_formula']}", style="bold")
    facts.add_row("parts", _parts(metrics))
    facts.add_row("ended", f"{body['status']} ({body['stop_reason']}) after {counted(trajectory['length'], 'step')}")
    details = metrics["details"]
    seed = f"{meta['environment']}, split {details.get('split', '-')}, seed {meta['seed']}"
    facts.add_row("episode", seed)
    facts.add_row("policy", meta["policy"] + (f" ({policy_note})" if policy_note else ""))
    numbers = {name: value for name, value in details.items() if name not in ("seed", "split", "rubric")}
    facts.add_row("metrics", metrics_words(numbers, full=full))
    timing = body["timing"]
    parts = ", ".join(f"{name} {timing[name]:.3f}" for name in timing if name != "total")
    facts.add_row("seconds", f"{timing.get('total', 0.0):.3f} ({parts})")
    facts.add_row("rollout", str(body["rollout_id"]))
    facts.add_row("digest", str(body["digest"]))
    if body.get("observation_digest") not in (None, body["digest"]):
        facts.add_row("with pictures", str(body["observation_digest"]))
    out.print(facts)
    warnings = list(meta.get("warnings") or ())
    if nothing_accepted(trajectory["length"], details):
        warnings.append("no action was accepted.")
    for warning in warnings:
        console(stderr=True).print(f"Warning: {clean(str(warning))}", style="yellow")


def criteria_table(criteria: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of a scorecard's criteria, with scores, weights and reasons."""
    scaled = any(item.get("normalised") not in (None, item["score"]) for item in criteria)
    extra = ("normalised",) if scaled else ()
    rows = table("criterion", "of", "score", *extra, "weight", "", right=("score", *extra, "weight"))
    for item in criteria:
        why = item["error"] or item["reason"] or ("required" if item["required"] else "")
        shares = [number(item[name]) for name in extra]
        rows.add_row(
            clean(item["name"]), item["of"], number(item["score"]), *shares, number(item["weight"]), clean(why)
        )
    return rows


def _undefined(card: Mapping[str, Any]) -> str:
    """Return the reason why the reward is undefined."""
    skipped = any(item["reason"] == JUDGES_SKIPPED and item["weight"] for item in card["criteria"])
    return "judges were skipped" if skipped else "a part of the formula is undefined"


def metrics_words(numbers: Mapping[str, Any], *, full: bool) -> str:
    """Return the metrics that are not 0 and the number of metrics that are 0. If `full` is set, return all metrics."""
    shown = [f"{clean(str(name))} {number(value)}" for name, value in numbers.items() if value or full]
    zero = len(numbers) - len(shown)
    return ", ".join(shown + ([counted(zero, "other") + (" is 0" if zero == 1 else " are 0")] if zero else []))


def _parts(metrics: Mapping[str, Any]) -> str:
    named = {"return": "mean_return", "events_score": "events_score", "outcome_score": "outcome_score"}
    return ", ".join(f"{name} {number(metrics[key])}" for name, key in named.items())
