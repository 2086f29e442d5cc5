"""The options of `taskapp eval`, declared once: for the command, and for what a directory keeps of them."""

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
        help="With --failed or --worst N: play those of an evaluation again, with its app and policy unless others are given.",
    ),
    click.option(
        "--failed", is_flag=True, help="With --seeds-from: those that failed, as `show DIR --failed` lists them."
    ),
    click.option(
        "--worst", type=click.IntRange(1), metavar="N", help="With --seeds-from: those that `show DIR --worst N` lists."
    ),
    click.option(
        "--split", metavar="NAME", help="The split of the seeds.  [default: as the seeds have it; of rows, the first]"
    ),
    click.option("--difficulty", multiple=True, metavar="X", help="Only rows of this difficulty; may repeat."),
    click.option("--tags", metavar="A,B", help="Only rows that have all of these tags."),
    click.option("--repeats", type=click.IntRange(1, 10_000), default=1, metavar="K", help="Play each seed so often."),
)
POLICIES = policy_options("random, noop, constant", several=True)
RUN = options(
    click.option(
        "--concurrency",
        type=AtOnce(),
        default=8,
        metavar="N",
        help="Rollouts at once; auto doubles them until the model says 429 or takes twice as long.",
    ),
    click.option(
        "--max-consecutive-failures",
        type=click.IntRange(0),
        default=MAX_CONSECUTIVE_FAILURES,
        metavar="N",
        help="Stop after N rollouts that failed because of the same model, judge or rubric, none succeeding; 0 never stops.",
    ),
    click.option(
        "--max-failures", type=click.IntRange(1), metavar="N", help="Stop when N rollouts of this run failed."
    ),
    click.option(
        "--max-cost",
        type=click.FloatRange(0, min_open=True),
        metavar="USD",
        help="Stop when the models' answers have cost so much; prices are those of models.toml.",
    ),
    click.option(
        "--max-total-tokens",
        type=click.IntRange(1),
        metavar="N",
        help="Stop when the policies' models have read and written N tokens.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(0, 256),
        metavar="N",
        help="Processes that play them; 0 for threads.  [default: 0]",
    ),
)
OUT = click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Keep the results there."
)
SUMMARY = options(
    click.option(
        "--by", multiple=True, metavar="FIELD", help="Group by difficulty, tag, seed, or a row's field; may repeat."
    ),
    click.option("--pass-at", type=float, default=PASS_AT, metavar="X", help="A rollout passes from this reward on."),
    click.option(
        "--interval",
        type=click.Choice(["bootstrap", "t"]),
        default="bootstrap",
        help="How the 95 % interval of the reward is computed, over seeds.",
    ),
)

STORED_OPTIONS = names_of(RUN, SUMMARY)
"""What `config.json` has beside the plan, for the command that goes on without flags."""
OF_THE_PLAN = names_of(EPISODES, POLICIES, ENV_CONFIG, LIMITS, OUT, JUDGES)
"""What an evaluation's directory has and cannot be given beside it."""
OF_THE_LISTED = {*names_of(EPISODES)} - {"seeds_from", "failed", "worst"}
"""What the rollouts of --seeds-from have and cannot be given beside it."""
OF_THE_LIMITS = names_of(LIMITS, JUDGES)
OF_THE_POLICIES = {*names_of(POLICIES)} - {"output_mode"}
ELSEWHERE = "elsewhere"
"""Stands in `config.json` for a store whose address may have a password."""


@dataclass(frozen=True)
class EvalOptions:
    """What is played and how. app: or the address of one. local: the app beside an address.

    models: for a policy by name, the model of models.toml that it is. plan: members of EvalPlan, all but the seeds, with
    the policies' keys. seeds: those that are given; selected: whether they stand, as the plan of a stored evaluation does,
    and need not fit the split, difficulty and tags. The others are STORED_OPTIONS, and what the command does.
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
