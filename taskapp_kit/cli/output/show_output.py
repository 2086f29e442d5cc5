"""Print stored rollouts as a list, or one rollout turn by turn."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskapp_kit.cli.output.conversation_output import NOTHING, ConversationLines
from taskapp_kit.cli.output.rollout_output import StepLines, action_words, criteria_table, metrics_words
from taskapp_kit.cli.output.terminal import clean, console, number, one_line, table
from taskapp_kit.evaluate.source import DirectorySource
from taskapp_kit.records.formatting import counted, dollars, utc_time
from taskapp_kit.records.protocols import RolloutRow, RowOrder
from taskapp_kit.records.scorecard import POLICY
from taskapp_kit.rollout.details import Message, RolloutDetails, TurnDetails, words
from taskapp_kit.rollout.policy.options import MODEL
from taskapp_kit.wire.inference_url import where

if TYPE_CHECKING:
    from rich.console import Console


ID_WIDTH = 8
"""How many characters of an id a list shows. `taskapp show` finds a rollout by the beginning of its id."""
FIRST_TURNS, LAST_TURNS = 10, 30
"""How many turns at the beginning and the end of a long rollout are printed, unless `full` is set."""
LEAST_CRITERIA_WIDTH = 24
GAP = 2
ORDERS: dict[RowOrder, str] = {
    "newest": "newest first",
    "worst": "lowest reward first",
    "best": "highest reward first",
    "cost": "most expensive first",
    "tokens": "most tokens first",
    "seconds": "slowest first",
    "length": "longest first",
}


WORDS = ("id", "environment", "split", "policy", "ended", "criteria")
"""Columns that contain text instead of numbers."""


# -- lists ------------------------------------------------------------------------------------------------------------


def print_list(
    rows: Sequence[RolloutRow], *, more: bool, source: str, order: RowOrder | None, full: bool = False, width: int | None = None
) -> None:  # fmt: skip
    """Print a line for each rollout, and notes on how to see more. more: whether there are more rollouts than `rows`."""
    out = console(width=width)
    print_rows(rows, out, full=full)
    notes = [f"{counted(len(rows), 'rollout')}{', ' + ORDERS[order] if order else ''}."]
    if order in ("worst", "best"):
        notes.append("Rollouts that failed or have no reward are omitted. --failed lists the failed rollouts.")
    elif more:
        notes.append("There are more rollouts. --limit N lists more.")
    if rows:
        notes.append(f"`{show_line(source)} ID` shows a rollout turn by turn.")
    out.print("\n" * bool(rows) + clean(" ".join(notes)), style="dim", soft_wrap=not out.is_terminal)


WORST = 3
"""The number of rollouts printed at the end of an evaluation."""


def print_worst(path: Path) -> None:
    """Print an evaluation's rollouts with the lowest rewards, and the command that shows the first of them.

    Nothing is printed if no rollout has a reward.
    """

    async def read() -> list[RolloutRow]:
        source = DirectorySource(path)
        try:
            return [row async for row in source.rows(order="worst", limit=WORST)]
        finally:
            await source.close()

    rows = asyncio.run(read())
    if not rows:
        return
    out = console()
    out.print(f"\nThe lowest reward{'s' if len(rows) > 1 else ''}:", style="bold")
    print_rows(rows, out)
    line = show_line(str(path), rows[0].rollout_id[:ID_WIDTH])
    out.print(clean(f"`{line}` shows the first rollout turn by turn."), style="dim", soft_wrap=not out.is_terminal)


def show_line(source: str, *more: str) -> str:
    """Return a `taskapp show` command line."""
    return shlex.join(["taskapp", "show", source, *more])


def rollout_line(details: RolloutDetails, config: Mapping[str, Any]) -> str | None:
    """Return the command line that plays a rollout's seed again, or None if the evaluation does not name its app.

    config: The content of the evaluation's `config.json`.
    """
    reference = config.get("app_reference")
    if not isinstance(reference, str):
        return None
    line = ["taskapp", "rollout", reference, "--env", details.stored.environment, "--split", details.stored.split]
    line += ["--seed", str(details.stored.seed)]
    if details.stored.config:
        line += ["--config", json.dumps(details.stored.config)]
    policy = details.policy_config
    for option, value in (
        ("--policy", None if details.policy == MODEL else details.policy),
        ("--model", details.model),
        ("--inference-url", policy.get("inference_url")),
        ("--action", json.dumps(policy["action"]) if "action" in policy else None),
    ):
        if isinstance(value, str):
            line += [option, value]
    return shlex.join(line)


def print_rows(rows: Sequence[RolloutRow], out: Console, *, full: bool = False) -> None:
    """Print a line for each rollout, followed by the reason if it failed."""
    if not rows:
        return
    columns = _columns(rows)
    left = out.width - len(_lines(columns)[0]) - GAP
    criteria = _criteria(rows)
    if criteria and (full or left >= LEAST_CRITERIA_WIDTH):
        columns["criteria"] = criteria if full else [one_line(cell, left) for cell in criteria]
    heading, *lines = _lines(columns)
    out.print(heading.rstrip(), style="bold", soft_wrap=True)
    for line, row in zip(lines, rows, strict=True):
        out.print(line.rstrip(), style="yellow" if row.status == "failed" else None, soft_wrap=True)
        if row.message:
            indent = " " * (ID_WIDTH + GAP)
            why = row.message if full else one_line(row.message, max(20, out.width - len(indent)))
            out.print(indent + clean(why), style="dim", soft_wrap=True)


def _lines(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the headings and the rows as aligned lines."""
    # This is not a rich table, because a failed row is followed by a line with its message.
    aligned = []
    for heading, cells in columns.items():
        width = max(map(len, [heading, *cells]))
        aligned.append([f"{cell:{'<' if heading in WORDS else '>'}{width}}" for cell in [heading, *cells]])
    return [(" " * GAP).join(cells) for cells in zip(*aligned, strict=True)]


def _columns(rows: Sequence[RolloutRow]) -> dict[str, list[str]]:
    """Return the cells of each column. A column is omitted if all rows have the same value or no row has a value."""
    columns = {"id": [clean(row.rollout_id[:ID_WIDTH]) for row in rows]}
    for heading, names in (
        ("environment", [row.environment for row in rows]),
        ("split", [row.split for row in rows]),
        ("policy", [row.model or row.policy or "-" for row in rows]),
    ):
        if len(set(names)) > 1:
            columns[heading] = [one_line(name, 24) for name in names]
    columns["seed"] = [str(row.seed) for row in rows]
    if any(row.sample for row in rows):
        columns["sample"] = [_whole(row.sample) for row in rows]
    columns["reward"] = [number(row.reward) for row in rows]
    columns["ended"] = [one_line(_ended(row), 40) for row in rows]
    columns["steps"] = [_whole(row.length) for row in rows]
    if any(row.turns not in (None, row.length) for row in rows):
        columns["turns"] = [_whole(row.turns) for row in rows]
    used = {
        "tokens": [_whole(row.tokens) for row in rows],
        "cost": ["-" if row.cost is None else dollars(row.cost) for row in rows],
        "seconds": ["-" if row.seconds is None else f"{row.seconds:.3g}" for row in rows],
    }
    return columns | {heading: cells for heading, cells in used.items() if {*cells} != {"-"}}


def _ended(row: RolloutRow) -> str:
    """Return the stop reason.

    If the environment truncated the episode, return `truncated`. For a failure, return its boundary and code, such as
    `policy: model_refused`.
    """
    if row.status == "failed":
        return f"{row.boundary or 'failed'}: {row.code or row.stop_reason or '-'}"
    if row.stop_reason == "environment" and row.status == "truncated":
        return row.status
    return row.stop_reason or row.status


def _criteria(rows: Sequence[RolloutRow]) -> list[str]:
    """Return the scores of each row as text. The list is empty if the only score is the reward."""
    if all(not row.criteria or list(row.criteria.values()) == [row.reward] for row in rows):
        return []
    return [clean(", ".join(f"{name} {number(score)}" for name, score in row.criteria.items())) for row in rows]


def _whole(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


# -- one rollout ------------------------------------------------------------------------------------------------------


def print_rollout(
    details: RolloutDetails,
    *,
    private: Mapping[str, Any] | None = None,
    again: str | None = None,
    full: bool = False,
    width: int | None = None,
) -> None:
    """Print a rollout turn by turn, then the calls of judges and other models, the scores and how the episode ended.

    `private` contains private fields of the task's row. `again` is the command line that plays the rollout again.
    """
    out = console(width=width)
    _print_head(details, private, out)
    if details.policy == MODEL or any(turn.read or turn.words for turn in details.turns):
        _print_conversation(details, out, full=full, width=width)
    else:
        _print_steps(details, full=full, width=width)
    _print_other_models(details, out, full=full, width=width)
    _print_end(details, out, again=again, full=full)


def _print_head(details: RolloutDetails, private: Mapping[str, Any] | None, out: Console) -> None:
    facts = table("", "")
    facts.add_row("rollout", clean(details.stored.rollout_id), style="bold")
    if details.stored.created_at:
        facts.add_row("played", f"{utc_time(details.stored.created_at):%Y-%m-%d %H:%M:%S} UTC")
    facts.add_row("app", clean(" ".join(filter(None, (details.stored.app, details.stored.app_version)))) or "-")
    sample = f", sample {details.sample}" if details.sample else ""
    facts.add_row(
        "episode",
        clean(f"{details.stored.environment}, split {details.stored.split}, seed {details.stored.seed}") + sample,
    )
    if details.stored.config:
        facts.add_row("config", clean(", ".join(f"{name} {value}" for name, value in details.stored.config.items())))
    facts.add_row("policy", clean(_policy(details)))
    for name, value in (private or {}).items():
        facts.add_row(clean(name), clean(f"{value}   (private)"), style="magenta")
    out.print(facts)
    out.print()


def _policy(details: RolloutDetails) -> str:
    """Describe the policy as text: `random`, or `model qwen at http://…, temperature 0.5`."""
    own = {name: value for name, value in details.policy_config.items() if name not in ("policy", "model", "sample")}
    address = own.pop("inference_url", None)
    name = details.policy if details.model is None else f"{details.policy} {details.model}"
    return ", ".join(
        [f"{name} {where(address)}" if address else name, *(f"{key} {value}" for key, value in own.items())]
    )


def _print_steps(details: RolloutDetails, *, full: bool, width: int | None) -> None:
    """Print the steps of a policy that is not a model, as a table."""
    lines = StepLines(width=width, full=full)
    lines.start(words(details.initial))
    for step in details.steps:
        seen = words(step.observation)
        lines.step(step.index, step.tool, step.args, seen, step.reward, refused=step.refused is not None)
    lines.end()


def _print_conversation(details: RolloutDetails, out: Console, *, full: bool, width: int | None) -> None:
    lines = ConversationLines(width=width, full=full)
    turns, hidden = details.turns, range(0)
    if not full and len(turns) > FIRST_TURNS + LAST_TURNS:
        hidden = range(FIRST_TURNS, len(turns) - LAST_TURNS)
    if not turns and details.initial:
        lines.say("shown", words(details.initial))
    shown: list[str] = []
    for turn in turns:
        if turn.index not in hidden:
            out.print(_turn_line(turn), style="dim")
            for message in turn.read:
                if not _repeats(message, shown, full=full):
                    lines.message(message.role, _message_words(message))
            lines.answer(turn.reasoning, turn.words or NOTHING * (not turn.calls))
            for call in turn.calls:
                lines.call(call.tool, call.args, "caller" if turn.scripted else "calls")
            for step in turn.steps:
                lines.result(words(step.observation), step.reward, refused=step.refused is not None)
        elif turn.index == hidden[0]:
            out.print(
                f"... turns {hidden[0] + 1} to {hidden[-1] + 1} are not shown. --full shows them ...", style="bold"
            )
        shown = [words(step.observation) for step in turn.steps]
    if details.limit is not None:
        lines.limit(*details.limit)


def _turn_line(turn: TurnDetails) -> str:
    parts = [f"turn {turn.index + 1}", f"{turn.seconds:.3g} s"]
    if turn.tokens is not None:
        parts.append(counted(turn.tokens, "token"))
    if turn.cost is not None:
        parts.append(dollars(turn.cost))
    if turn.attempts is not None and turn.attempts > 1:
        parts.append(f"{turn.attempts} attempts")
    if turn.finish_reason not in (None, "stop", "tool_calls"):
        parts.append(clean(str(turn.finish_reason)))
    return f"--- {', '.join(parts)}"


def _repeats(message: Message, shown: Sequence[str], *, full: bool) -> bool:
    """Return whether the message only repeats observations that were printed with the previous turn."""
    if not shown or message.role == "system":
        return False
    text = words(message.blocks)
    if text in shown or message.role == "tool":
        return True
    return not full and all(seen in text for seen in shown)


def _message_words(message: Message) -> str:
    return "\n".join(
        filter(None, (words(message.blocks), *(action_words(call.tool, call.args) for call in message.calls)))
    )


def _print_other_models(details: RolloutDetails, out: Console, *, full: bool, width: int | None) -> None:
    lines = ConversationLines(width=width, full=full)
    for asked in details.auxiliary_calls:
        parts = [f"auxiliary model {asked.role}", f"{asked.seconds:.3g} s", *_price(asked.cost)]
        out.print(clean(f"--- {', '.join(parts)}"), style="dim")
        for message in asked.messages:
            lines.message(message.role, _message_words(message))
        lines.answer(asked.reply.reasoning, _message_words(asked.reply), asked.role[:8])
    for judged in details.judge_calls:
        names = f"judge{'s' if len(judged.judges) > 1 else ''} {', '.join(judged.judges)}"
        numbers = [f"sample {judged.sample}"] * bool(judged.sample) + [f"ask {judged.ask}"] * (judged.ask > 1)
        parts = [f"{names} ({judged.model or judged.role})", *numbers, f"{judged.seconds:.3g} s", *_price(judged.cost)]
        out.print(clean(f"--- {', '.join(parts)}"), style="dim")
        if full:
            for message in judged.prompt:
                lines.message(message.role, _message_words(message))
        for name, verdict in _verdicts(judged.verdict):
            lines.say(name, verdict)
        if judged.problem is not None:
            lines.say("unusable", judged.problem, "yellow")
        if judged.text and (full or judged.problem is not None):
            lines.say("said", judged.text)


def _price(cost: float | None) -> list[str]:
    return [] if cost is None else [dollars(cost)]


def _verdicts(verdict: Any) -> list[tuple[str, str]]:
    """Return the label and the text of each judge's verdict, such as `0.5: It is so so.`"""
    if not isinstance(verdict, Mapping):
        return []
    if not all(isinstance(part, Mapping) for part in verdict.values()):
        return [("verdict", number(verdict.get("score")))]
    return [
        ("verdict", f"{name + ' ' if len(verdict) > 1 else ''}{number(part.get('score'))}: {part.get('reason') or ''}")
        for name, part in verdict.items()
    ]


def _print_end(details: RolloutDetails, out: Console, *, again: str | None, full: bool) -> None:
    out.print()
    if details.criteria:
        out.print(criteria_table([asdict(item) for item in details.criteria]))
        out.print()
    facts = table("", "")
    if details.failure is None:
        facts.add_row("reward", f"{number(details.stored.reward)}   {clean(details.formula)}".rstrip(), style="bold")
    parts = {
        "return": details.stored.total_reward,
        "outcome": details.stored.outcome_score,
        "events": details.stored.events_score,
    }
    facts.add_row("parts", ", ".join(f"{name} {number(value)}" for name, value in parts.items() if value is not None))
    facts.add_row("ended", clean(_how_it_ended(details)))
    facts.add_row("metrics", metrics_words(details.metrics, full=full) or "-")
    used = [] if details.tokens is None else [counted(details.tokens, "token")]
    used += [f"{clean(name)} {count:,.0f}" for name, count in details.usage.items() if full]
    if used or details.cost is not None:
        facts.add_row("model", ", ".join([*used, *_price(details.cost)]))
    for use in details.models:
        if use["role"] != POLICY:
            words = [f"{use['tokens']:,.0f} tokens", *_price(use["cost"])]
            facts.add_row(clean(use["role"]), f"{counted(use['calls'], 'call')}, {', '.join(words)}")
    if details.unpriced:
        facts.add_row("", clean(details.unpriced))
    timing = ", ".join(f"{name} {seconds:.3f}" for name, seconds in details.stored.timing.items() if name != "total")
    facts.add_row("seconds", f"{details.stored.seconds:.3f}" + (f" ({clean(timing)})" if timing else ""))
    if full and details.stored.digest:
        facts.add_row("digest", details.stored.digest)
    out.print(facts)
    if details.failure is not None:
        failure = details.failure
        out.print()
        out.print(
            clean(f"Failed at boundary {failure.boundary} ({failure.code}): {_sentence(failure.message)}"), style="red"
        )
        hints = [failure.hint] * bool(failure.hint) + [f"Error id {failure.error_id}."] * bool(failure.error_id)
        if again is not None and failure.boundary in ("environment", "scoring"):
            hints.append(f"To play the rollout again and see the traceback: {again}")
        if hints:
            out.print(clean(" ".join(hints)), soft_wrap=not out.is_terminal)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _how_it_ended(details: RolloutDetails) -> str:
    how = f"{details.stored.status} ({details.stored.stop_reason}) after {counted(details.stored.length, 'step')}"
    if details.waiting_action is not None:
        action = details.waiting_action
        return f"{how}, during the action {one_line(action_words(action.tool, action.args), 200)}"
    return how if details.waiting_turn is None else f"{how}, during the policy's turn {details.waiting_turn + 1}"
