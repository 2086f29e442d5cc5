"""The options of `taskapp eval`, and which of them an evaluation's directory stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.options import (
    ENV_CONFIG,
    ENVIRONMENT,
    JUDGES,
    LIMITS,
    AtOnce,
    names_of,
    options,
    policy_options,
)
from taskapp_kit.evaluate.limits import MAX_CONSECUTIVE_FAILURES
from taskapp_kit.evaluate.summary import PASS_AT
from taskapp_kit.records.seeds import FIRST_SEEDS

if TYPE_CHECKING:
    from taskapp_kit.records.seeds import Seeds
    from taskapp_kit.records.statistics import IntervalMethod

EPISODES = options(
    ENVIRONMENT,
    click.option(
        "--seeds", metavar="LIST", help=f"1000-1299, or 0,5,9.  [default: the first {FIRST_SEEDS} of the split]"
    ),
    click.option(
        "--seeds-from",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="With --failed or --worst N: play those rollouts of an evaluation again, by default with its app and policy.",
    ),
    click.option(
        "--failed", is_flag=True, help="With --seeds-from: the failed rollouts, as listed by `show DIR --failed`."
    ),
    click.option(
        "--worst", type=click.IntRange(1), metavar="N", help="With --seeds-from: the rollouts of `show DIR --worst N`."
    ),
    click.option(
        "--split",
        metavar="NAME",
        help="The split of the seeds.  [default: inferred from the seeds; the first for rows]",
    ),
    click.option("--difficulty", multiple=True, metavar="X", help="Only rows of this difficulty; may be repeated."),
    click.option("--tags", metavar="A,B", help="Only rows that have all of these tags."),
    click.option("--repeats", type=click.IntRange(1, 10_000), default=1, metavar="K", help="Play each seed K times."),
)
POLICIES = policy_options("random, noop, constant", several=True)
RUN = options(
    click.option(
        "--concurrency",
        type=AtOnce(),
        default=8,
        metavar="N",
        help="Concurrent rollouts. auto doubles them until the model answers 429 or takes twice as long.",
    ),
    click.option(
        "--max-consecutive-failures",
        type=click.IntRange(0),
        default=MAX_CONSECUTIVE_FAILURES,
        metavar="N",
        help="Stop after N failures in a row with the same model, judge or rubric as the cause; 0 never stops.",
    ),
    click.option(
        "--max-failures", type=click.IntRange(1), metavar="N", help="Stop once N rollouts of this run have failed."
    ),
    click.option(
        "--max-cost",
        type=click.FloatRange(0, min_open=True),
        metavar="USD",
        help="Stop once the models' answers have cost this much, at the prices in models.toml.",
    ),
    click.option(
        "--max-total-tokens",
        type=click.IntRange(1),
        metavar="N",
        help="Stop once the policies' models have read and written N tokens.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(0, 256),
        metavar="N",
        help="Worker processes that play the rollouts; 0 for threads.  [default: 0]",
    ),
)
OUT = click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="The directory for the results."
)
SUMMARY = options(
    click.option(
        "--by", multiple=True, metavar="FIELD", help="Group by difficulty, tag, seed, or a row's field; repeatable."
    ),
    click.option(
        "--pass-at", type=float, default=PASS_AT, metavar="X", help="A rollout passes if its reward is at least X."
    ),
    click.option(
        "--interval",
        type=click.Choice(["bootstrap", "t"]),
        default="bootstrap",
        help="The method for the 95 % interval of the reward over seeds.",
    ),
)

STORED_OPTIONS = names_of(RUN, SUMMARY)
"""Options that `config.json` stores in addition to the plan, so that the evaluation continues without flags."""
OF_THE_PLAN = names_of(EPISODES, POLICIES, ENV_CONFIG, LIMITS, OUT, JUDGES)
"""Options that cannot be combined with an evaluation's directory, because it stores them."""
OF_THE_LISTED = {*names_of(EPISODES)} - {"seeds_from", "failed", "worst"}
"""Options that cannot be combined with --seeds-from, whose rollouts have them already."""
OF_THE_LIMITS = names_of(LIMITS, JUDGES)
OF_THE_POLICIES = {*names_of(POLICIES)} - {"output_mode"}
ELSEWHERE = "elsewhere"
"""Replaces the address of a store in `config.json`, because the address may contain a password."""


@dataclass(frozen=True)
class EvalOptions:
    """What to play, and how.

    Attributes:
        app: The app's reference, or the URL of a server.
        local: For a URL, the app that computes the aggregates.
        models: The model in models.toml, by the policy's name.
        plan: The members of EvalPlan except the seeds, with the policies' keys.
        seeds: The seeds on the command line or of a stored plan.
        selected: Whether the seeds are final. Otherwise they have to match the split, difficulty and tags.
    """

    app: str
    local: str | None
    key: str | None = field(repr=False)
    models: Mapping[str, str]
    plan: Mapping[str, Any] = field(repr=False)
    seeds: Seeds | None
    selected: bool
    concurrency: int | str
    max_consecutive_failures: int
    max_failures: int | None
    max_cost: float | None
    max_total_tokens: int | None
    workers: int | None
    by: tuple[str, ...]
    pass_at: float
    interval: IntervalMethod
    out: Path | None
    resume: bool
    retry_failed: bool
    as_json: bool
