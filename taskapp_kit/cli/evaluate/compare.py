"""`taskapp compare`: compare policies on pairs of rollouts with the same environment, split, seed and sample."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from taskapp_kit.cli.options import ENV_FILES, ENVIRONMENT, SERVER_KEY, json_option, shown_source
from taskapp_kit.cli.output import compare_output
from taskapp_kit.cli.output.terminal import example, print_json, shown_from
from taskapp_kit.config import load
from taskapp_kit.evaluate import compare as comparisons
from taskapp_kit.evaluate import source as sources
from taskapp_kit.records.protocols import RolloutQuery

CHANGES = 10
"""How many changed seeds are listed by default."""


@click.command(
    epilog=example(
        "taskapp compare evals/small evals/large",
        "taskapp compare evals/both --by difficulty",
        "taskapp compare evals/before .taskapp/rollouts.db --policy scripted --force",
        "taskapp compare evals/small evals/large --json",
    )
)
@click.argument("references", metavar="DIR|STORE|URL…", nargs=-1, required=True)
@click.option("--policy", metavar="NAME", help="Compare only this policy or model of each source.")
@click.option("--baseline", metavar="NAME", help="The policy to compare the others with.  [default: the first]")
@ENVIRONMENT
@click.option(
    "--by",
    multiple=True,
    metavar="FIELD",
    help="Break the reward down by difficulty, tag, seed or another public field of a row; may be repeated.",
)
@click.option("--method", type=click.Choice(["bootstrap", "t"]), default="bootstrap", help="How to compute intervals.")
@click.option(
    "--confidence", type=click.FloatRange(0.5, 0.999), default=0.95, metavar="C", help="Confidence level of intervals."
)
@click.option("--pass-at", type=float, default=1.0, metavar="X", help="A rollout passes if its reward is at least X.")
@click.option("--changes", type=click.IntRange(0), default=CHANGES, metavar="N", help="List at most N changes.")
@click.option("--force", is_flag=True, help="Compare rollouts even if their declarations (spec hashes) differ.")
@SERVER_KEY
@ENV_FILES
@json_option()
def command(
    references: tuple[str, ...],
    policy: str | None,
    baseline: str | None,
    environment: str | None,
    key: str | None,
    env_files: tuple[str, ...],
    changes: int,
    as_json: bool,
    **statistics: Any,
) -> None:
    """Compare the rewards of policies that played the same episodes.

    Each source may contain the rollouts of several policies. Rollouts are paired by environment, split, seed and sample. The
    confidence interval of the difference is computed over seeds. Failed rollouts and undefined rewards are counted
    separately and do not affect any mean.

    Exit status: 0 if policies were compared, 2 if nothing can be compared, or if the rollouts come from
    different declarations of the app and --force is not set.
    """
    settings, how = load({}, env_files=env_files), comparisons.ComparisonSettings(**statistics)

    async def read() -> list[comparisons.Side]:
        sides = []
        for reference in references:
            source = sources.open_source(reference, key=key or settings.environment_api_key)
            try:
                query = RolloutQuery(environment=environment)
                sides += await comparisons.read_sides(source, shown_source(reference), wanted=query)
            finally:
                await source.close()
        return sides

    with shown_from(", ".join(map(shown_source, references))):
        chosen = comparisons.chosen_sides(asyncio.run(read()), policy, baseline)
        compared = comparisons.compare(chosen, how)
    if as_json:
        print_json({"comparisons": [comparison.to_json() for comparison in compared]})
    else:
        compare_output.print_comparisons(compared, how, changes=changes)
