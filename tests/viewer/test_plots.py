"""Plots: the marks lie where the numbers say, and nothing but escaped text gets in."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
from markupsafe import Markup

from taskapp_kit.viewer.plots import MAX_POINTS, Bar, StripStep, bars, histogram, line, scatter, strip

HOSTILE = "<script>alert(1)</script>\"'& onload=x"


def tree(plot: str) -> ET.Element:
    return ET.fromstring(plot)


def rects(plot: str) -> list[dict[str, str]]:
    return [item.attrib for item in tree(plot).iter("rect")]


def test_a_histogram_counts_each_finite_value_once_and_says_what_it_left_out() -> None:
    plot = histogram([0.0, 0.0, 0.5, 1.0, None, math.nan], title="Rewards", bins=4, low=0.0, high=1.0)
    counts = [int(item.text.rpartition(": ")[2]) for item in tree(plot).iter("title")]
    assert counts == [2, 1, 1]
    assert "4 values, 2 undefined and omitted" in tree(plot).attrib["aria-label"]
    heights = [float(rect["height"]) for rect in rects(plot)]
    assert heights[0] == pytest.approx(2 * heights[1], rel=0.02)


@pytest.mark.parametrize(
    "plot",
    [
        histogram([], title="t"),
        histogram([None, math.inf], title="t"),
        histogram([1.0] * 5, title="t"),
        histogram([1e300, -1e300], title="t"),
        histogram([5e-324, 0.0], title="t"),
        bars([], title="t"),
        bars([Bar("a", None), Bar("b", math.nan, 0.1, math.inf)], title="t"),
        bars([Bar("a", 0.0)], title="t"),
        bars([Bar("a", -2.0, -3.0, 1.0, "n = 3")], title="t", x_label="reward"),
        scatter({}, title="t"),
        scatter({"a": [(1.0, math.nan)], "b": [(1.0, 1.0)]}, title="t"),
        line({"a": [(0, 0)], "b": [(3, 1.5), (1, 2.5)]}, title="t", x_label="x", y_label="y"),
        scatter({"a": [(float(n), 0.5) for n in range(3 * MAX_POINTS)]}, title="t"),
        strip([StripStep(None, False, "#a", "x")]),
        strip([StripStep(-1.0, True, "#a", "x")] * 3),
    ],
)  # fmt: skip
def test_every_plot_is_well_formed_and_has_finite_coordinates(plot: Markup) -> None:
    assert isinstance(plot, Markup)
    root = tree(plot)
    assert root.attrib["aria-label"]
    assert not re.search(r'="[^"]*\b(nan|inf)\b', plot)
    assert "style=" not in plot, "the pages' policy for content allows no style in an attribute"


def test_labels_are_text() -> None:
    for plot in (
        histogram([1.0, 2.0], title=HOSTILE, x_label=HOSTILE),
        bars([Bar(HOSTILE, 1.0, note=HOSTILE)], title=HOSTILE, x_label=HOSTILE),
        scatter({HOSTILE: [(0, 0)], "b": [(1, 1)]}, title=HOSTILE, x_label=HOSTILE, y_label=HOSTILE),
        strip([StripStep(1.0, False, HOSTILE, HOSTILE)]),
    ):
        assert {item.tag for item in tree(plot).iter()} <= {"svg", "g", "a", "path", "rect", "circle", "text", "title"}
        assert not [name for item in tree(plot).iter() for name in item.attrib if name.startswith("on")]


def test_bars_of_negative_and_positive_values_meet_at_zero() -> None:
    low, high = rects(bars([Bar("a", -1.0), Bar("b", 1.0)], title="t"))
    assert float(low["x"]) + float(low["width"]) == pytest.approx(float(high["x"]), abs=0.2)


def test_curves_are_drawn_in_the_order_of_x() -> None:
    (way,) = (item.attrib["d"] for item in tree(line({"a": [(2, 0), (0, 0), (1, 0)]}, title="t")).iter("path")
              if item.attrib["class"].startswith("curve"))  # fmt: skip
    xs = [float(pair.split()[0]) for pair in way.removeprefix("M").split("L")]
    assert xs == sorted(xs)


def test_no_two_ticks_of_an_axis_read_the_same() -> None:
    plot = line({"a": [(0, 0.999991), (1, 0.999999)]}, title="t", x_label="", y_label="")
    labels = [item.text for item in tree(plot).iter("text") if item.attrib.get("text-anchor") == "end"]
    assert len(labels) > 2
    assert len(set(labels)) == len(labels)
    assert "1" not in labels[:-1]


def test_a_strip_shows_the_sign_of_each_reward_and_what_was_refused() -> None:
    steps = [StripStep(1.0, False, "#turn-1", "step 1"), StripStep(-2.0, False, "#turn-2", "step 2"),
             StripStep(None, False, "#turn-3", "step 3"), StripStep(None, True, "#turn-4", "step 4")]  # fmt: skip
    kinds = [rect["class"] for rect in rects(strip(steps)) if rect["class"] != "hit"]
    assert kinds == ["up", "down", "zero", "refused"]
    assert [item.attrib["href"] for item in tree(strip(steps)).iter("a")] == [step.href for step in steps]
    assert strip([]) == ""
