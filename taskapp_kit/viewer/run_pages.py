"""The pages of all runs, and of one run with breakdowns and plots."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.records.formatting import counted
from taskapp_kit.records.protocols import RolloutQuery, RolloutRow
from taskapp_kit.records.scorecard import known_sum, summed, unpriced_words
from taskapp_kit.records.statistics import UNBOUNDED, mean_interval
from taskapp_kit.viewer.page import NEWEST, Page, PageRequest, not_found, redirect
from taskapp_kit.viewer.plots import Bar, CaptionedPlot, PolicyResults, result_plots
from taskapp_kit.viewer.source import UiSource

BREAKDOWNS: dict[str, Callable[[RolloutRow], str]] = {
    "policy": lambda row: row.model or row.policy or "unknown",
    "environment": lambda row: row.environment,
    "split": lambda row: row.split,
}
MOST_SEEDS = 2000
"""The maximum number of seeds in the table of a run."""


async def runs(request: PageRequest) -> Page | EncodedResponse:
    """Return the page with the runs of the newest rollouts, newest first. For a backend, redirect to its jobs."""
    if request.source.runs_jobs:
        return redirect(request.link("jobs"))
    found = await request.source.rows(RolloutQuery(limit=NEWEST), "newest", request.caller)
    listed = await asyncio.to_thread(_runs_of, found, request.source)
    return Page(
        "runs.html", "Runs", {"runs": listed, "rollouts": len(found), "complete": len(found) < NEWEST}, section="runs"
    )


async def run(request: PageRequest) -> Page:
    """Return the page of one run, with figures, breakdowns, plots and seeds."""
    name = request.text("run_id")
    rows = (
        []
        if name is None
        else await request.source.rows(RolloutQuery(run_id=name, limit=NEWEST), "newest", request.caller)
    )
    if name is None or not rows:
        raise not_found("run")
    return await asyncio.to_thread(_run_page, name, rows, request.source)


def _runs_of(rows: Sequence[RolloutRow], source: UiSource) -> list[dict[str, Any]]:
    groups = _grouped(rows, lambda row: row.run_id or "")
    return [{"run_id": name, **run_figures(group, source)} for name, group in groups.items()]


def _run_page(name: str, rows: Sequence[RolloutRow], source: UiSource) -> Page:
    breakdowns = {
        what: [{"name": key, **run_figures(group, source)} for key, group in groups.items()]
        for what, of in BREAKDOWNS.items()
        if len(groups := _grouped(rows, of)) > 1 or what == "policy"
    }
    by_seed = [
        {"environment": key[0], "split": key[1], "seed": key[2], **run_figures(group, source)}
        for key, group in sorted(_grouped(rows, lambda row: (row.environment, row.split, row.seed)).items())
    ]
    data = {
        "run_id": name,
        **run_figures(rows, source),
        "complete": len(rows) < NEWEST,
        "breakdowns": breakdowns,
        "criteria": _criteria(rows),
        "failures": _failures(rows),
        "stop_reasons": dict(Counter(row.stop_reason or "none" for row in rows).most_common()),
        "by_seed": by_seed[:MOST_SEEDS],
    }
    return Page("run.html", f"Run {name}", data, {"plots": _plots(rows, data)}, "runs")


def _grouped(rows: Iterable[RolloutRow], of: Callable[[RolloutRow], Any]) -> dict[Any, list[RolloutRow]]:
    groups: dict[Any, list[RolloutRow]] = {}
    for row in rows:
        groups.setdefault(of(row), []).append(row)
    return groups


def run_figures(rows: Sequence[RolloutRow], source: UiSource) -> dict[str, Any]:
    """Return the figures of a set of rollouts.

    Failures and undefined rewards are counted separately and do not affect any mean.
    """
    scored = [row for row in rows if row.reward is not None and row.status != "failed"]
    scored.sort(
        key=lambda row: (row.environment, row.split, row.seed)
    )  # sorted, because a bootstrap depends on the order
    ranges = [source.reward_ranges.get(name, UNBOUNDED) for name in {row.environment for row in scored}]
    interval = mean_interval(
        [row.reward for row in scored if row.reward is not None],
        [(row.environment, row.split, row.seed) for row in scored],
        method=source.interval,
        bounds=(min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else UNBOUNDED,
    )
    unpriced = sum(row.cost is None and bool(row.tokens) for row in rows)
    tokens = [row.tokens for row in rows if row.tokens is not None]
    times = [row.created_at for row in rows if row.created_at is not None]
    return {
        "rollouts": len(rows),
        "seeds": len({(row.environment, row.split, row.seed) for row in rows}),
        "failed": sum(row.status == "failed" for row in rows),
        "undefined": sum(row.reward is None and row.status != "failed" for row in rows),
        "truncated": sum(row.status == "truncated" for row in rows),
        "reward": asdict(interval),
        "length": _mean([row.length for row in rows if row.length is not None and row.status != "failed"]),
        "tokens": sum(tokens) if tokens else None,
        "cost": known_sum(row.cost for row in rows),
        "unpriced": unpriced_words(summed(use for row in rows for use in row.models))
        or (f"no price for {counted(unpriced, 'rollout')}" if unpriced else ""),
        "seconds": _mean([row.seconds for row in rows if row.seconds is not None]),
        "first": min(times, default=None),
        "last": max(times, default=None),
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _criteria(rows: Sequence[RolloutRow]) -> list[dict[str, Any]]:
    names = dict.fromkeys(name for row in rows for name in row.criteria)
    found = []
    for name in names:
        scores = [row.criteria[name] for row in rows if name in row.criteria]
        known = [score for score in scores if score is not None]
        found.append({"name": name, "mean": _mean(known), "scored": len(known), "undefined": len(scores) - len(known)})
    return found


def _failures(rows: Sequence[RolloutRow]) -> list[dict[str, Any]]:
    counted = Counter((row.boundary or "unknown", row.code or "") for row in rows if row.status == "failed")
    return [{"boundary": where, "code": code, "rollouts": count} for (where, code), count in counted.most_common()]


def _plots(rows: Sequence[RolloutRow], data: dict[str, Any]) -> list[CaptionedPlot]:
    means = {item["name"]: item["reward"] for item in data["breakdowns"]["policy"]}
    policies = {}
    for name, group in _grouped(rows, BREAKDOWNS["policy"]).items():
        scored = [(float(row.length or 0), row.reward) for row in group if row.reward is not None]
        mean = means[name]
        policies[name] = PolicyResults(
            Bar(name, mean["mean"], mean["low"], mean["high"], f"n = {mean['n']}"),
            [reward for _, reward in scored],
            scored,
            [Bar(item["name"], item["mean"], note=f"n = {item['scored']}") for item in _criteria(group)],
        )
    failed = Counter[str]()
    for item in data["failures"]:
        failed[item["boundary"]] += item["rollouts"]
    return result_plots(policies, dict(failed.most_common()))
