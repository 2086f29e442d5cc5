"""The options of `taskapp eval`. Some groups of options are stored in an evaluation's directory."""

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
        "--seeds", metavar="LIST", help=f"Such as 1000-1299 or 0,5,9.  [default: the first {FIRST_SEEDS} of the split]"
    ),
    click.option(
        "--seeds-from",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Play the --failed or --worst rollouts of an evaluation again, by default with its app and policy.",
    ),
    click.option("--failed", is_flag=True, help="With --seeds-from, the failed rollouts."),
    click.option(
        "--worst", type=click.IntRange(1), metavar="N", help="With --seeds-from, the N rollouts with the lowest reward."
    ),
    click.option(
        "--split",
        metavar="NAME",
        help="The split of the seeds.  [default: inferred from the seeds; with rows, the first split]",
    ),
    click.option("--difficulty", multiple=True, metavar="X", help="Only rows of this difficulty; may be repeated."),
    click.option("--tags", metavar="A,B", help="Only rows with all of these tags."),
    click.option("--repeats", type=click.IntRange(1, 10_000), default=1, metavar="K", help="Play each seed K times."),
)
POLICIES = policy_options("random, noop, constant", several=True)
RUN = options(
    click.option(
        "--concurrency",
        type=AtOnce(),
        default=8,
        metavar="N",
        help="Concurrent rollouts. auto doubles the number until the model returns 429 or takes twice as long.",
    ),
    click.option(
        "--max-consecutive-failures",
        type=click.IntRange(0),
        default=MAX_CONSECUTIVE_FAILURES,
        metavar="N",
        help="Stop after N consecutive failures of the same model, judge or rubric. 0 disables the limit.",
    ),
    click.option(
        "--max-failures", type=click.IntRange(1), metavar="N", help="Stop once N rollouts of this run have failed."
    ),
    click.option(
        "--max-cost",
        type=click.FloatRange(0, min_open=True),
        metavar="USD",
        help="Stop once calls to models have cost this much, at the prices in models.toml.",
    ),
    click.option(
        "--max-total-tokens",
        type=click.IntRange(1),
        metavar="N",
        help="Stop once the policies' models have used N tokens, prompts and replies together.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(0, 256),
        metavar="N",
        help="Worker processes that play the rollouts; 0 uses threads.  [default: 0]",
    ),
)
OUT = click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="The directory for the results."
)
SUMMARY = options(
    click.option(
        "--by", multiple=True, metavar="FIELD", help="Group by difficulty, tag, seed or a row's field; may be repeated."
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
"""Options that `config.json` stores in addition to the plan, so that an evaluation can continue without flags."""
OF_THE_PLAN = names_of(EPISODES, POLICIES, ENV_CONFIG, LIMITS, OUT, JUDGES)
"""Options that cannot be combined with an evaluation's directory, because it stores them."""
OF_THE_LISTED = {*names_of(EPISODES)} - {"seeds_from", "failed", "worst"}
"""Options that cannot be combined with --seeds-from, because its rollouts determine them."""
OF_THE_LIMITS = names_of(LIMITS, JUDGES)
OF_THE_POLICIES = {*names_of(POLICIES)} - {"output_mode"}
ELSEWHERE = "elsewhere"
"""The placeholder in `config.json` for the address of a store, which may contain a password."""


@dataclass(frozen=True)
class EvalOptions:
    """What `taskapp eval` plays, and how.

    Attributes:
        app: The app's reference, or the URL of a server.
        local: For a URL, the app that computes the aggregates.
        models: Names of models in models.toml, by the policy's name.
        plan: All fields of EvalPlan except `seeds`. The policies include the API keys of their models.
        seeds: The seeds from the command line or from a stored plan.
        selected: Whether the seeds are final. If not, the split, the difficulty and the tags still filter them.
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
