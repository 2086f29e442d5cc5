"""Functions that draw numbers as inline SVG. Each plot is one `<svg>` element without scripts.

The style sheet (`static/style.css`) sets the colors by class (`series-1` to `series-6`), for light and dark mode. Every plot
has a title and a description for screen readers, and each mark has a tooltip with its numbers. All text is escaped.
`result_plots` draws results by policy, for a run's page and an evaluation's report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from taskapp_kit.records.formatting import cut

WIDTH, HEIGHT = 440, 240
"""The size of a plot in SVG units. The style sheet scales it to the page's width, up to 480 pixels."""
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 14, 40
"""The space around the axes, for tick labels and axis names."""
SERIES = 6
"""The number of colors. Further series reuse the colors in the same order."""
MAX_BINS = 40
MAX_LABEL = 26
"""The maximum length of a bar's label, in characters. The tooltip contains the whole label."""
MAX_POINTS = 4000
"""The maximum number of points in a plot. If there are more, only every n-th point is drawn."""
MANY_POINTS = 80
"""A curve with more points than this has smaller marks."""
BAR_HEIGHT = 24
BESIDE = 0.03
"""The share of a scatter plot's x axis that stays empty on each side."""
STRIP_WIDTH, STRIP_HEIGHT = 1000, 56
CHARACTER = 6.6
"""The approximate width of a character at font size 12."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        label: The label on the left.
        value: The length of the bar. If it is None, the word "none" replaces the bar.
        low: The lower end of the interval.
        high: The upper end of the interval.
        note: Text next to the value, such as `n = 20`.
    """

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""


Point = tuple[float, float]


def histogram(
    values: Iterable[float | None],
    *,
    title: str,
    x_label: str = "",
    bins: int | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Markup:
    """Draw how many values fall into each bin. Undefined values are omitted. The description states their number.

    Args:
        values: The numbers. None and numbers that are not finite are undefined.
        title: The plot's title.
        x_label: The name of the x axis.
        bins: The number of bins. Defaults to a number that fits the number of values, at most 40.
        low: The start of the axis. Defaults to the smallest value.
        high: The end of the axis. Defaults to the largest value.
    """
    given = list(values)
    numbers = [float(value) for value in given if value is not None and math.isfinite(value)]
    left_out = len(given) - len(numbers)
    note = f"{len(numbers)} values" + (f", {left_out} undefined and omitted" if left_out else "")
    if not numbers:
        return _empty(title, note)
    start, end = _widened(min(numbers) if low is None else low, max(numbers) if high is None else high)
    count = bins or max(1, min(MAX_BINS, 2 * math.ceil(math.sqrt(len(numbers)))))
    heights = [0] * count
    for number in numbers:
        heights[min(count - 1, max(0, int((number - start) / (end - start) * count)))] += 1
    axes = _Axes(start, end, 0.0, float(max(heights)), whole_y=True)
    width = (end - start) / count
    marks = []
    for index, height in enumerate(heights):
        if height:
            here, there = start + index * width, start + (index + 1) * width
            x, y = axes.x(here), axes.y(height)
            marks.append(
                f'<rect class="series-1" x="{x:.1f}" y="{y:.1f}" width="{max(1.0, axes.x(there) - x - 1):.1f}" '
                f'height="{axes.bottom - y:.1f}"><title>{_number(here)} to {_number(there)}: {height}</title></rect>'
            )
    return _svg(title, note, axes.drawn(x_label, "rollouts") + "".join(marks))


def bars(
    rows: Sequence[Bar], *, title: str, x_label: str = "", low: float | None = None, high: float | None = None
) -> Markup:
    """Draw horizontal bars that start at 0. Each bar has its value as text and a line for its interval."""
    if not rows:
        return _empty(title, "no rows")
    numbers = [
        float(number)
        for row in rows
        for number in (row.value, row.low, row.high)
        if number is not None and _finite(number)
    ]
    start, end = _widened(
        min([0.0, *numbers]) if low is None else low, max([0.0, *numbers]) if high is None else high, keep=True
    )
    labels = [_short(row.label) for row in rows]
    left = min(190.0, 14 + CHARACTER * max(map(len, labels)))
    right = 12 + CHARACTER * max(len(_bar_words(row)) for row in rows)
    scale = (WIDTH - left - min(right, 150.0)) / (end - start)
    zero = left + (0.0 - start) * scale if start <= 0.0 <= end else left
    parts = []
    for index, (row, label) in enumerate(zip(rows, labels, strict=True)):
        middle = TOP + BAR_HEIGHT * (index + 0.5)
        words = _bar_words(row)
        parts.append(
            f"<g><title>{escape(row.label)}: {escape(words)}</title>"
            f'<text class="tick" x="{left - 6:.1f}" y="{middle + 4:.1f}" text-anchor="end">{escape(label)}</text>'
        )
        far = zero
        if _finite(row.value) and row.value is not None:
            at = left + (row.value - start) * scale
            far = max(at, zero)
            parts.append(
                f'<rect class="series-1" x="{min(at, zero):.1f}" y="{middle - 7:.1f}" '
                f'width="{max(1.0, abs(at - zero)):.1f}" height="14"/>'
            )
        if row.low is not None and row.high is not None and _finite(row.low) and _finite(row.high):
            one, two = (left + (number - start) * scale for number in (row.low, row.high))
            far = max(far, two)
            parts.append(
                f'<path class="interval" d="M{one:.1f} {middle:.1f}H{two:.1f}M{one:.1f} {middle - 4:.1f}v8'
                f'M{two:.1f} {middle - 4:.1f}v8"/>'
            )
        parts.append(f'<text class="value" x="{far + 5:.1f}" y="{middle + 4:.1f}">{escape(words)}</text></g>')
    height = TOP + BAR_HEIGHT * len(rows) + (22 if x_label else 8)
    parts.append(f'<path class="axis" d="M{zero:.1f} {TOP - 4}V{TOP + BAR_HEIGHT * len(rows) + 2}"/>')
    if x_label:
        parts.append(f'<text class="name" x="{left:.1f}" y="{height - 5}">{escape(x_label)}</text>')
    note = "; ".join(f"{row.label}: {_bar_words(row)}" for row in rows[:50])
    return _svg(title, note, "".join(parts), height=height)


def scatter(series: Mapping[str, Sequence[Point]], *, title: str, x_label: str = "", y_label: str = "") -> Markup:
    """Draw points, with a color for each series, and a legend if there are several series.

    Points that are not finite are omitted.
    """
    return _points(series, title, x_label, y_label, joined=False)


def line(series: Mapping[str, Sequence[Point]], *, title: str, x_label: str = "", y_label: str = "") -> Markup:
    """Draw points joined by a line in the order of x, with a color for each series.

    There is a legend if there are several series.
    """
    return _points(series, title, x_label, y_label, joined=True)


def _points(series: Mapping[str, Sequence[Point]], title: str, x_label: str, y_label: str, *, joined: bool) -> Markup:
    found = {
        name: [(float(x), float(y)) for x, y in points if _finite(x) and _finite(y)] for name, points in series.items()
    }
    found = {name: sorted(points) if joined else points for name, points in found.items() if points}
    total = sum(map(len, found.values()))
    if not total:
        return _empty(title, "no points")
    every = max(1, math.ceil(total / MAX_POINTS))
    note = f"{total} points" + (f", of which every {every}th is drawn" if every > 1 else "")
    xs = [x for points in found.values() for x, _ in points]
    ys = [y for points in found.values() for _, y in points]
    legend = len(found) > 1
    start, end = _widened(min(xs), max(xs))
    beside = 0.0 if joined else (end - start) * BESIDE  # so that no point is on the edge
    axes = _Axes(start - beside, end + beside, *_widened(min(ys), max(ys)), top=TOP + (18 if legend else 0))
    parts = [axes.drawn(x_label, y_label)]
    for number, (name, points) in enumerate(found.items()):
        colour = f"series-{number % SERIES + 1}"
        if joined:
            way = "L".join(f"{axes.x(x):.1f} {axes.y(y):.1f}" for x, y in points)
            parts.append(f'<path class="curve {colour}" d="M{way}"/>')
        radius = 3.5 if not joined or len(points) <= MANY_POINTS else 2
        for x, y in points[::every]:
            parts.append(
                f'<circle class="{colour}" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="{radius}">'
                f"<title>{escape(name)} {_number(x)}, {_number(y)}</title></circle>"
            )
    if legend:
        at = float(LEFT)
        for number, name in enumerate(found):
            parts.append(
                f'<rect class="series-{number % SERIES + 1}" x="{at:.1f}" y="4" width="10" height="10"/>'
                f'<text class="tick" x="{at + 14:.1f}" y="13">{escape(_short(name))}</text>'
            )
            at += 26 + CHARACTER * len(_short(name))
    return _svg(title, note, "".join(parts))


@dataclass(frozen=True, slots=True)
class StripStep:
    """One step of a strip.

    Attributes:
        label: The step's name.
        reward: The step's reward, or None for a step without a reward.
        href: The address that a click opens.
    """

    reward: float | None
    refused: bool
    href: str
    label: str


def strip(steps: Sequence[StripStep]) -> Markup:
    """Draw the rewards of steps as small adjacent bars above or below 0. Refused steps are marked."""
    if not steps:
        return Markup("")
    rewards = [step.reward or 0.0 for step in steps]
    largest = max(map(abs, rewards)) or 1.0
    below = any(reward < 0 for reward in rewards)
    zero = STRIP_HEIGHT / 2 if below else STRIP_HEIGHT - 6.0
    width = min(24.0, STRIP_WIDTH / len(steps))
    parts = []
    for index, (step, reward) in enumerate(zip(steps, rewards, strict=True)):
        x, size = index * width, abs(reward) / largest * (zero - 4)
        kind = "refused" if step.refused else "up" if reward > 0 else "down" if reward < 0 else "zero"
        y, height = (zero - size if reward > 0 else zero, size) if reward else (zero - 1, 3.0)
        words = (
            f"{step.label}: {'refused' if step.refused else 'no reward' if step.reward is None else _number(reward)}"
        )
        parts.append(
            f'<a href="{escape(step.href)}" tabindex="-1" aria-label="{escape(words)}"><title>{escape(words)}</title>'
            f'<rect class="hit" x="{x:.2f}" y="0" width="{width:.2f}" height="{STRIP_HEIGHT}"/>'
            f'<rect class="{kind}" x="{x + width * 0.1:.2f}" y="{y:.2f}" width="{width * 0.8:.2f}" height="{height:.2f}"/></a>'
        )
    total = f"{len(steps)} steps, rewards from {_number(min(rewards))} to {_number(max(rewards))}"
    return Markup(  # noqa: S704 - the parts above are numbers and escaped text
        f'<svg class="strip" viewBox="0 0 {STRIP_WIDTH} {STRIP_HEIGHT}" preserveAspectRatio="none" role="group" '
        f'aria-label="Rewards: {total}"><path class="axis" d="M0 {zero:.1f}H{STRIP_WIDTH}"/>{"".join(parts)}</svg>'
    )


class _Axes:
    """The two axes of a plot. They convert values to positions."""

    def __init__(self, x0: float, x1: float, y0: float, y1: float, *, whole_y: bool = False, top: float = TOP) -> None:
        self._whole_y = whole_y
        self.y_ticks = _ticks(y0, y1, 4, whole=whole_y)
        self._y_labels = _tick_labels(self.y_ticks)
        y0, y1 = min(y0, self.y_ticks[0]), max(y1, self.y_ticks[-1])
        self._x0, self._x1, self._y0, self._y1 = x0, x1, y0, y1
        self.top, self.bottom = top, float(HEIGHT - BOTTOM)
        self.left = max(float(LEFT), 22 + CHARACTER * max(map(len, self._y_labels)))

    def x(self, value: float) -> float:
        return self.left + (value - self._x0) / (self._x1 - self._x0) * (WIDTH - RIGHT - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self._y0) / (self._y1 - self._y0) * (self.bottom - self.top)

    def drawn(self, x_label: str, y_label: str) -> str:
        parts = []
        for tick, label in zip(self.y_ticks, self._y_labels, strict=True):
            y = self.y(tick)
            parts.append(
                f'<path class="grid" d="M{self.left:.1f} {y:.1f}H{WIDTH - RIGHT}"/>'
                f'<text class="tick" x="{self.left - 5:.1f}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
            )
        for tick in _ticks(self._x0, self._x1, 5):
            if self._x0 <= tick <= self._x1:
                parts.append(
                    f'<text class="tick" x="{self.x(tick):.1f}" y="{self.bottom + 15:.1f}" '
                    f'text-anchor="middle">{_number(tick)}</text>'
                )
        parts.append(f'<path class="axis" d="M{self.left:.1f} {self.top:.1f}V{self.bottom:.1f}H{WIDTH - RIGHT}"/>')
        if x_label:
            middle = (self.left + WIDTH - RIGHT) / 2
            parts.append(
                f'<text class="name" x="{middle:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>'
            )
        if y_label:
            middle = (self.top + self.bottom) / 2
            parts.append(
                f'<text class="name" x="11" y="{middle:.1f}" text-anchor="middle" '
                f'transform="rotate(-90 11 {middle:.1f})">{escape(y_label)}</text>'
            )
        return "".join(parts)


def _svg(title: str, description: str, body: str, *, height: float = HEIGHT) -> Markup:
    words = f"{title}. {description}"
    return Markup(  # noqa: S704 - the parts above are numbers and escaped text
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(words)}">{body}</svg>'
    )


def _empty(title: str, description: str) -> Markup:
    words = f'<text class="tick" x="{WIDTH / 2}" y="34" text-anchor="middle">nothing to draw</text>'
    return _svg(title, description, words, height=60)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _widened(low: float, high: float, *, keep: bool = False) -> tuple[float, float]:
    """Return the interval. If it is a single value, add space around it. keep: Whether to add space only above the value."""
    if low < high:
        return low, high
    space = abs(low) * 0.1 or 0.5
    return (low, low + (1.0 if low == 0.0 else space)) if keep else (low - space, low + space)


def _ticks(low: float, high: float, about: int, *, whole: bool = False) -> list[float]:
    """Return about `about` round values that cover the range from `low` to `high`."""
    rough = (high - low) / about
    size = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next((size * factor for factor in (1.0, 2.0, 2.5, 5.0) if size * factor >= rough), size * 10)
    if whole:
        step = max(1.0, math.ceil(step))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(first + 1, last) + 1)]


def _number(value: float) -> str:
    if value == 0 or abs(value) < 1e-12:
        return "0"
    return f"{value:.4g}" if abs(value) < 1e6 else f"{value:.3g}"


def _tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return the shortest labels that are all different."""
    labels = [_number(tick) for tick in ticks]
    digits = 5
    while len(set(labels)) < len(labels) and digits < 16:
        labels = [f"{tick:.{digits}g}" for tick in ticks]
        digits += 1
    return labels


def _bar_words(row: Bar) -> str:
    value = "none" if row.value is None or not _finite(row.value) else f"{row.value:.3g}"
    return f"{value} ({row.note})" if row.note else value


def _short(text: str) -> str:
    return cut(" ".join(text.split()), MAX_LABEL)


MOST_BARS = 40

CaptionedPlot = tuple[str, Markup]


@dataclass(frozen=True, slots=True)
class PolicyResults:
    """The results of one policy that the plots show.

    Attributes:
        reward: The mean reward with its interval.
        rewards: The rewards of the scored rollouts.
        points: The (length, reward) of each scored rollout.
        criteria: The mean scores.
    """

    reward: Bar
    rewards: Sequence[float]
    points: Sequence[Point]
    criteria: Sequence[Bar]


def result_plots(policies: Mapping[str, PolicyResults], failures: Mapping[str, int]) -> list[CaptionedPlot]:
    """Return the plots of results by policy. Empty plots are omitted. failures: The number of failed rollouts by boundary."""
    plots: list[CaptionedPlot] = []
    if len(policies) > 1:
        plots += bar_plot("Reward with 95 % intervals", [one.reward for one in policies.values()])
    scored = [one.rewards for one in policies.values() if one.rewards]
    low, high = (
        (min(map(min, scored)), max(map(max, scored))) if scored else (None, None)
    )  # the same axis for all policies
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
    """Return a list with one plot of the first MOST_BARS rows, or an empty list if `rows` is empty."""
    if not rows:
        return []
    whole = caption if len(rows) <= MOST_BARS else f"{caption} (the first {MOST_BARS} of {len(rows)})"
    return [(whole, bars(rows[:MOST_BARS], title=caption, x_label=x_label))]


def of_policy(caption: str, policy: str, policies: Mapping[str, object]) -> str:
    """Return the caption of one policy's plot. If there are several policies, the caption contains the policy's name."""
    return f"{caption}: {policy}" if len(policies) > 1 else caption
