"""The figures of results by policy: a run's page and an evaluation's report draw the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from taskapp_kit.viewer.plots import Bar, Point, bars, histogram, scatter

MOST_BARS = 40

CaptionedPlot = tuple[str, Markup]


@dataclass(frozen=True, slots=True)
class PolicyResults:
    """What the figures of one policy show.

    reward: the mean reward with its interval. rewards: of the scored rollouts. points: their (length, reward). criteria: the
    mean scores.
    """

    reward: Bar
    rewards: Sequence[float]
    points: Sequence[Point]
    criteria: Sequence[Bar]


def result_plots(policies: Mapping[str, PolicyResults], failures: Mapping[str, int]) -> list[CaptionedPlot]:
    """The figures that have something to show. failures: failed rollouts by boundary."""
    plots: list[CaptionedPlot] = []
    if len(policies) > 1:
        plots += bar_plot("Reward with 95 % intervals", [one.reward for one in policies.values()])
    scored = [one.rewards for one in policies.values() if one.rewards]
    low, high = (min(map(min, scored)), max(map(max, scored))) if scored else (None, None)  # one axis for all
    for name, one in policies.items():
        if one.rewards:
            caption = of_policy("Distribution of rewards", name, policies)
            plots.append((caption, histogram(one.rewards, title=caption, x_label="reward", low=low, high=high)))
    for name, one in policies.items():
        plots += bar_plot(of_policy("Criteria", name, policies), one.criteria, "score")
    points = {name: one.points for name, one in policies.items()}
    if any(points.values()):
        caption = "Length against reward"
        plots.append((caption, scatter(points, title=caption, x_label="steps", y_label="reward")))
    failed = [Bar(boundary, float(count)) for boundary, count in failures.items()]
    return plots + bar_plot("Failures by boundary", failed, "rollouts")


def bar_plot(caption: str, rows: Sequence[Bar], x_label: str = "reward") -> list[CaptionedPlot]:
    """One plot of the first rows; none without a row."""
    if not rows:
        return []
    whole = caption if len(rows) <= MOST_BARS else f"{caption} (the first {MOST_BARS} of {len(rows)})"
    return [(whole, bars(rows[:MOST_BARS], title=caption, x_label=x_label))]


def of_policy(caption: str, policy: str, policies: Mapping[str, object]) -> str:
    """The caption of one policy's figure, with its name if there are several."""
    return f"{caption}: {policy}" if len(policies) > 1 else caption
