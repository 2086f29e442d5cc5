"""Print comparisons: differences with intervals, a verdict, and the pairs that changed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from taskapp_kit.cli.output.show_output import ID_WIDTH, show_line
from taskapp_kit.cli.output.terminal import clean, console, figure, number, one_line, table
from taskapp_kit.records.formatting import counted
from taskapp_kit.records.statistics import FEWEST_FOR_INTERVAL

if TYPE_CHECKING:
    from taskapp_kit.evaluate.compare import Change, Comparison, ComparisonSettings, Measure
    from taskapp_kit.records.content import Json
    from taskapp_kit.records.protocols import RolloutRow

NAME_WIDTH = 32
VALUE_WIDTH = 48
GAP = 2
NARROW = ("sign p", "won/tied/lost", "permutation p")
"""The columns to omit, in this order, if the terminal is too narrow for all columns."""
FEW_SEEDS_MORE = 100_000
"""If a decision needs more additional seeds than this, the exact number is not printed."""


def print_comparisons(
    compared: Sequence[Comparison], how: ComparisonSettings, *, changes: int, rescored: str | None = None
) -> None:
    """Print each comparison.

    Args:
        compared: The comparisons.
        how: The settings of the comparisons.
        changes: The maximum number of changed pairs to list.
        rescored: The version of the new scores if old and new scores of the same rollouts are compared, otherwise None.
    """
    for position, comparison in enumerate(compared):
        if position:
            console().print()
        _print_comparison(comparison, how, changes, rescored)


def _print_comparison(one: Comparison, how: ComparisonSettings, changes: int, rescored: str | None) -> None:
    out = console()
    facts = table("", "")
    for what, side in (("baseline", one.baseline), ("compared", one.other)):
        older = f", without {side.replaced} older rollouts" if side.replaced else ""
        facts.add_row(what, clean(f"{side.name}: {counted(len(side.rows), 'rollout')} in {side.place}{older}"))
    facts.add_row("pairs", _pairs(one))
    out.print(facts)
    _print_measures(one, how)
    if rescored is None:
        out.print()
        for line in _verdict(one):
            out.print(clean(line), soft_wrap=not out.is_terminal)
    _print_changes(one, how, changes, () if rescored is None else ("--scores", rescored))
    _print_configuration(one)


def _pairs(one: Comparison) -> str:
    """Describe the pairs: `47, of 50 seeds with both rewards; failed: 2 only in weak; without a partner: 3 in weak`."""
    interval = one.reward.difference.interval
    parts = [f"{one.pairs}, of {counted(interval.clusters, 'seed')} with both rewards"]
    names = {"baseline": one.baseline.name, "other": one.other.name}
    if len(set(names.values())) < len(names):
        names = {"baseline": "the baseline", "other": "the compared"}
    for what, only, counts in (("failed", "only ", one.failed), ("without a partner", "", one.unpaired)):
        shown = [
            f"{count} in both" if name == "both" else f"{count} {only}in {one_line(names[name], NAME_WIDTH)}"
            for name, count in counts.items()
            if count
        ]
        if shown:
            parts.append(f"{what}: {', '.join(shown)}")
    if one.reward.undefined:
        parts.append(f"{one.reward.undefined} without a reward")
    return "; ".join(parts)


def _print_measures(one: Comparison, how: ComparisonSettings) -> None:
    confidence = f"{100 * how.confidence:g} % interval"
    left, right = (one_line(side.name, NAME_WIDTH) for side in (one.baseline, one.other))
    right = f"{right} " if right == left else right
    names = ["", left, right, "difference", confidence, "won/tied/lost", "sign p", "permutation p"]
    rows = [[one_line(measure.name, NAME_WIDTH), *_cells(measure)] for measure in one.measures]
    for name, groups in one.breakdowns.items():
        rows += [[one_line(f"reward, {name} {measure.name}", NAME_WIDTH), *_cells(measure)] for measure in groups]
    out = console()
    columns = [[name, *cells] for name, *cells in zip(names, *rows, strict=True)]
    hidden = []
    for name in NARROW:
        if sum(max(map(len, column)) + GAP for column in columns) - GAP > out.width:
            hidden.append(name)
            columns = [column for column in columns if column[0] != name]
    shown = table(
        *(column[0] for column in columns), right=(left, right, "difference", "sign p", "permutation p"), pad=GAP
    )
    for measure, cells in zip_longest(one.measures, zip(*(column[1:] for column in columns), strict=True)):
        shown.add_row(*cells, style="bold" if measure is not None and measure.of == "reward" else None)
    out.print()
    out.print(shown)
    intervals = [measure.difference.interval for measure in one.measures]
    methods = {interval.method for interval in intervals if interval.low is not None}
    words = {"bootstrap": "clustered bootstrap", "t": "Student's t over seeds"}
    tests = sum(measure.of != "number" for measure in one.measures) + sum(map(len, one.breakdowns.values()))
    note = f"An interval needs at least {FEWEST_FOR_INTERVAL} seeds."
    if methods:
        note = f"Intervals by {' and '.join(sorted(words[method] for method in methods))}."
    if tests > 1:
        note += f" The p-values are not corrected for {tests} tests: without a real difference, 1 in 20 is below 0.05."
    if hidden:
        note += f" Omitted because the terminal is too narrow: {', '.join(hidden)}."
    out.print(note, style="dim", soft_wrap=not out.is_terminal)


def _cells(measure: Measure) -> list[str]:
    difference, interval = measure.difference, measure.difference.interval
    low, mean, high = (figure(value, sign="+") for value in (interval.low, interval.mean, interval.high))
    reach = "-" if interval.low is None or interval.high is None else f"{low} to {high}"
    cells = [figure(measure.baseline), figure(measure.other), mean, reach]
    if measure.of == "number":
        return [*cells, "", "", ""]
    counts = f"{difference.wins}/{difference.ties}/{difference.losses}"
    return [*cells, counts, _p(difference.sign_p), _p(difference.permutation_p)]


def _p(value: float | None) -> str:
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _verdict(one: Comparison) -> list[str]:
    """Return sentences that say which policy has the higher reward, or how many more seeds would decide this."""
    difference = one.reward.difference
    interval, more = difference.interval, one.more_seeds
    if not interval.n:
        return ["The rewards cannot be compared, because no pair has two rewards."]
    if interval.low is None:
        seeds = counted(interval.clusters, "seed")
        return [f"{seeds} are too few to compare two policies. Play at least {FEWEST_FOR_INTERVAL}."]
    if difference.decided and interval.mean is not None:
        better = one.other if interval.mean > 0 else one.baseline
        return [f"{better.name} has the higher reward: the interval excludes 0 and the permutation test agrees."]
    if not difference.wins and not difference.losses:
        return [f"The rewards of all pairs are equal, over {counted(interval.clusters, 'seed')}."]
    undecided = f"Undecided: over {counted(interval.clusters, 'seed')}, the difference may be due to chance."
    if more is None or more > FEW_SEEDS_MORE:
        return [undecided, f"If there is a difference, {FEW_SEEDS_MORE:,} more seeds would not be enough to show it."]
    seeds = f"{more:,} more {'seed' if more == 1 else 'seeds'}"
    return [undecided, f"If the true difference is this large, about {seeds} would show it in 4 of 5 cases."]


def _print_changes(one: Comparison, how: ComparisonSettings, most: int, show: Sequence[str]) -> None:
    out = console()
    if not one.changes or not most:
        return
    kinds = Counter(change.kind for change in one.changes)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    first = f"; the first {most}" if len(one.changes) > most else ""
    out.print()
    out.print(
        f"{counted(len(one.changes), 'pair')} changed: {counts} (a reward of at least {number(how.pass_at)} passes){first}:"
    )
    rows = table("", "seed", "baseline", "compared", "")
    for change in one.changes[:most]:
        rewards = _reward(change.baseline), _reward(change.other)
        rows.add_row(change.kind, _episode(change), *rewards, clean(_line(one, change, show)))
    out.print(rows, soft_wrap=True)


def _episode(change: Change) -> str:
    row = change.other
    sample = f" sample {row.sample}" if row.sample else ""
    return clean(f"{row.environment} {row.split} {row.seed}{sample}")


def _reward(row: RolloutRow) -> str:
    return one_line(f"failed: {row.boundary}", NAME_WIDTH) if row.status == "failed" else figure(row.reward)


def _line(one: Comparison, change: Change, show: Sequence[str]) -> str:
    """Return the command that shows the rollout of the compared policy."""
    return show_line(one.other.place, change.other.rollout_id[:ID_WIDTH], *show)


def _print_configuration(one: Comparison) -> None:
    out = console()
    out.print()
    if not one.configuration:
        out.print("The recorded configurations are the same.")
        return
    out.print("Differences in the configuration:")
    rows = table("", "baseline", "compared")
    for name, values in one.configuration.items():
        rows.add_row(one_line(name, NAME_WIDTH), *map(_value, values))
    out.print(rows)


def _value(value: Json) -> str:
    text = value if isinstance(value, str) else "-" if value is None else json.dumps(value, ensure_ascii=False)
    return one_line(text, VALUE_WIDTH)
