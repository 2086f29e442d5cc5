"""Converts a job's metric points to curves, grouped for the viewer's plots and for images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Curve = Sequence[tuple[int, float]]
"""(step, value), sorted by step. An evaluation before the first iteration has step 0."""

EVALUATION = "eval_"
"""The prefix of evaluation metrics."""

REWARD = "Mean reward"


@dataclass(frozen=True, slots=True)
class CurveGroup:
    """The curves of one plot. curves: The curves by their legend names, or by the metric's name if the plot has no legend."""

    title: str
    unit: str
    curves: Mapping[str, Curve]


def _both(metric: str) -> dict[str, str]:
    return {"training": metric, "evaluation": EVALUATION + metric}


GROUPS: Sequence[tuple[str, str, Mapping[str, str]]] = (
    (REWARD, "reward", _both("reward")),
    ("Loss", "loss", _both("loss")),
    ("Learning rate", "of an update", {"learning_rate": "learning_rate"}),
    (
        "Evaluations without a better one",
        "evaluations in a row",
        {"evaluations_without_better": "evaluations_without_better"},
    ),
    ("KL divergence from the reference model", "nats per token", {"kl": "kl"}),
    ("Entropy", "nats per token", {"entropy": "entropy"}),
    ("Clip fraction", "share of tokens", {"clip_fraction": "clip_fraction"}),
    ("Value loss", "loss", {"value_loss": "value_loss"}),
    ("Returns that the values explain", "share of variance", {"explained_variance": "explained_variance"}),
    ("Gradient norm", "norm", {"gradient_norm": "gradient_norm"}),
    ("Sampled tokens of a rollout", "tokens", _both("sampled_tokens")),
    ("Turns of a rollout", "turns", _both("turns")),
    ("Answers cut at max_tokens", "share of turns", _both("truncated_share")),
    ("Failed rollouts", "share of rollouts", _both("failed_share")),
    ("Groups without spread", "share of groups", {"groups_without_spread": "groups_without_spread"}),
    ("Sampling speed", "tokens per second", _both("tokens_per_second")),
    (
        "Token faithfulness",
        "calls of the model",
        {name: f"calls_{name}" for name in ("exact", "continued", "forked", "refused", "repeated")},
    ),
    ("Sampler against trainer", "mean |Δ log p|", {"log_prob_mismatch": "log_prob_mismatch"}),
    ("Effective sample size", "share of tokens", {"effective_share": "effective_share"}),
    ("Age at the update", "versions", {"oldest token": "age", "mean of the rows": "age_mean"}),
    ("Rollouts that wait for their update", "rollouts", {"waiting_rollouts": "waiting_rollouts"}),
    ("Level of the curriculum", "index", {"level": "level"}),
)
"""The title, the unit and the metrics of each plot, in the order of drawing. Metrics are given by their legend names."""


def curve_groups(points: Iterable[tuple[str, int, float]]) -> tuple[list[CurveGroup], list[CurveGroup]]:
    """Return the groups of GROUPS that have points, and one group for each other metric, ordered by name.

    points: The points as (name, step, value). Values that are not finite are ignored. A metric and its `eval_` variant share
    a plot.
    """
    by_name: dict[str, dict[int, float]] = {}
    for name, step, value in points:
        if math.isfinite(value):
            by_name.setdefault(name, {})[step] = value
    grouped = {metric for _, _, metrics in GROUPS for metric in metrics.values()}
    others = sorted({name.removeprefix(EVALUATION) for name in by_name.keys() - grouped})
    return _found(GROUPS, by_name), _found([(name, "", _both(name)) for name in others], by_name)


def _found(
    groups: Sequence[tuple[str, str, Mapping[str, str]]], by_name: Mapping[str, Mapping[int, float]]
) -> list[CurveGroup]:
    made = [
        CurveGroup(
            title, unit, {label: sorted(by_name[name].items()) for label, name in metrics.items() if name in by_name}
        )
        for title, unit, metrics in groups
    ]
    return [group for group in made if group.curves]
