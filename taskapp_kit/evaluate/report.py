"""Writes an evaluation's `report.html`: a table and plots in one file, light and dark, without scripts."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taskapp_kit.evaluate.rows import groups_of
from taskapp_kit.evaluate.summary import SUMMARY_OPTIONS, Column, RewardStatistics, SummaryOptions
from taskapp_kit.records.scorecard import tokens_of, unpriced_words
from taskapp_kit.records.statistics import UNBOUNDED
from taskapp_kit.version import __version__
from taskapp_kit.viewer.pages import render, shown, standalone
from taskapp_kit.viewer.plots import Bar, CaptionedPlot, PolicyResults, bar_plot, line, of_policy, result_plots

if TYPE_CHECKING:
    from taskapp_kit.evaluate.directory import Directory
    from taskapp_kit.evaluate.plan import EvalPlan
    from taskapp_kit.records.protocols import RolloutRow

DIFFICULTY = "difficulty"


@dataclass
class _OfPolicy:
    """The data for one policy's plots. It takes 24 bytes for each rollout that did not fail."""

    options: SummaryOptions
    rewards: array[float] = field(default_factory=lambda: array("d"))
    lengths: array[float] = field(default_factory=lambda: array("d"))
    length_of_reward: array[float] = field(default_factory=lambda: array("d"))
    difficulties: dict[Any, RewardStatistics] = field(default_factory=dict)
    criteria: dict[str, Column] = field(default_factory=dict)

    def add(self, result: RolloutRow) -> None:
        for value in groups_of(DIFFICULTY, result.row, result.seed) if DIFFICULTY in result.row else ():
            self.difficulties.setdefault(value, RewardStatistics(self.options)).add(result)
        for name, score in {} if result.failed else result.criteria.items():
            self.criteria.setdefault(name, Column()).add(score, result.seed)
        if result.reward is not None and not result.failed:
            self.rewards.append(result.reward)
            if result.length is not None:
                self.lengths.append(result.length)
                self.length_of_reward.append(result.reward)

    def results(self, reward: Bar) -> PolicyResults:
        """Return the results for the plots. reward: The mean reward, with its interval."""
        criteria = []
        for name, column in self.criteria.items():
            scale = self.options.ranges.criteria.get(name, UNBOUNDED)
            interval = column.interval(self.options.interval, scale)
            criteria.append(Bar(shown(name), interval.mean, interval.low, interval.high, f"n = {interval.n}"))
        points = list(zip(self.lengths, self.length_of_reward, strict=True))
        return PolicyResults(reward, self.rewards, points, criteria)


@dataclass
class _Failures:
    """The failures with the same boundary and code. message: The message of the first failure."""

    boundary: str
    code: str
    seed: int
    message: str
    count: int = 0


def write_report(
    plan: EvalPlan,
    directory: Directory,
    summary: Mapping[str, Any],
    options: SummaryOptions = SUMMARY_OPTIONS,
    *,
    created_at: str = "",
) -> None:
    """Write `report.html` from a summary and the result lines. The evaluation may be unfinished.

    options: The summary's options. created_at: When the evaluation started, in ISO 8601 and UTC.

    Raises StoreError if the report cannot be written.
    """
    found = {name: _OfPolicy(options) for name in plan.names}
    failures: dict[tuple[str, str], _Failures] = {}
    for position, result in directory.placed_results():
        found[plan.names[plan.policy_of(position)]].add(result)
        if result.failed:
            kind = result.boundary or "untold", result.code or ""
            failures.setdefault(kind, _Failures(*kind, result.seed, result.message or "")).count += 1
    numbers: Mapping[str, Any] = summary.get("by_policy") or {plan.names[0]: summary}
    title = " ".join(filter(None, (summary["app"], summary["app_version"])))
    if summary["environment"] != summary["app"]:
        title += f", {summary['environment']}"
    body = render(
        "report.html",
        title=title + (f", split {summary['split']}" if summary["split"] else ""),
        done=summary["rollouts"]["done"],
        asked=len(plan),
        failed=summary["rollouts"]["failed"],
        seeds=summary["seeds"],
        repeats=plan.repeats,
        formula=summary["reward_formula"],
        cost=summary["cost"]["total"],
        unpriced=unpriced_words(summary["models"]),
        begun=created_at.replace("T", " ").removesuffix("+00:00"),
        policies=[{"name": name, "tokens": tokens_of(one["usage"]) or None, **one} for name, one in numbers.items()],
        plots=_plots(
            plan,
            {shown(name): one for name, one in numbers.items()},
            {shown(name): one for name, one in found.items()},
            failures,
        ),
        failures=sorted(failures.values(), key=lambda item: -item.count),
        version=__version__,
    )
    directory.write_report(standalone(title, body))


def _plots(
    plan: EvalPlan,
    numbers: Mapping[str, Any],
    found: Mapping[str, _OfPolicy],
    failures: Mapping[tuple[str, str], _Failures],
) -> list[CaptionedPlot]:
    """Return the plots that have data, with captions. The plots that are drawn for every run come first."""
    boundaries = Counter[str]()
    for item in failures.values():
        boundaries[shown(item.boundary)] += item.count
    plots = result_plots(
        {name: policy.results(_bar(name, numbers[name])) for name, policy in found.items()}, boundaries
    )
    for name, policy in found.items():
        groups = {value: group.to_json() for value, group in policy.difficulties.items()}
        rows = [_bar(str(value), group) for value, group in groups.items()]
        plots += bar_plot(of_policy("Reward by difficulty", name, found), rows)
    for name, one in numbers.items():
        for by, of_one in one["by"].items():
            if by != DIFFICULTY:
                rows = [_bar(str(group["value"]), group) for group in of_one]
                plots += bar_plot(of_policy(f"Reward by {shown(by)}", name, found), rows)
    for caption, rate in (("pass@k", "pass_at_k"), ("pass^k", "pass_hat_k")) if plan.repeats > 1 else ():
        curves = {
            name: [(float(k), rates[rate]["mean"]) for k, rates in one["pass"]["k"].items()]
            for name, one in numbers.items()
        }
        if any(share for points in curves.values() for _, share in points):
            plots.append((caption, line(curves, title=caption, x_label="k", y_label="share of seeds")))
    return plots


def _bar(label: str, numbers: Mapping[str, Any]) -> Bar:
    count = numbers["rollouts"]
    failed = f", {count['failed']} failed" if count["failed"] else ""
    interval = numbers["interval"]
    return Bar(
        shown(label), numbers["reward"]["mean"], interval["low"], interval["high"], f"n = {count['scored']}{failed}"
    )
