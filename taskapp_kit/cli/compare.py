"""`taskapp compare`: two or more policies, paired by environment, split, seed and sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.options import ENV_FILES, ENVIRONMENT, SERVER_KEY, json_option
from taskapp_kit.cli.terminal import example, print_json

if TYPE_CHECKING:
    from taskapp_kit.evaluate.compare import Comparison, ComparisonSettings

CHANGES = 10
"""Changed seeds that are listed, unless --changes gives another number."""


@click.command(
    epilog=example(
        "taskapp compare evals/small evals/large",
        "taskapp compare evals/both",
        "taskapp compare evals/before .taskapp/rollouts.db --policy scripted --force",
        "taskapp compare evals/small evals/large --json",
    )
)
@click.argument("references", metavar="DIR|STORE|URL…", nargs=-1, required=True)
@click.option("--policy", metavar="NAME", help="Only this policy or model of each place.")
@click.option("--baseline", metavar="NAME", help="The policy with which the others are compared.  [default: the first]")
@ENVIRONMENT
@click.option(
    "--method", type=click.Choice(["bootstrap", "t"]), default="bootstrap", help="How intervals are computed."
)
@click.option(
    "--confidence", type=click.FloatRange(0.5, 0.999), default=0.95, metavar="C", help="What the intervals cover."
)
@click.option("--pass-at", type=float, default=1.0, metavar="X", help="A rollout passes when its reward is at least X.")
@click.option("--changes", type=click.IntRange(0), default=CHANGES, metavar="N", help="List N seeds that changed.")
@click.option("--force", is_flag=True, help="Compare rollouts of different declarations (spec hashes), too.")
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
    **given: Any,
) -> None:
    """Compare policies by the rollouts that both played.

    Each place may have the rollouts of several policies; one place with several compares those. Rollouts are paired by
    environment, split, seed and sample, and the interval of the difference is over seeds. A failed rollout and an undefined
    reward are counted apart and are never a number.

    Exit status: 0 compared, 2 nothing can be compared, or the declarations differ.
    """
    import asyncio

    from taskapp_kit.cli.compare_output import print_comparisons
    from taskapp_kit.config import load
    from taskapp_kit.evaluate.compare import ComparisonSettings

    settings = load({}, env_files=env_files)
    how = ComparisonSettings(**given)
    compared = asyncio.run(
        _compared(references, environment, policy, baseline, how, key or settings.environment_api_key)
    )
    if as_json:
        print_json({"comparisons": [one.to_json() for one in compared]})
    else:
        print_comparisons(compared, how, changes=changes)


async def _compared(
    references: tuple[str, ...],
    environment: str | None,
    policy: str | None,
    baseline: str | None,
    how: ComparisonSettings,
    key: str | None,
) -> list[Comparison]:
    from taskapp_kit.contract.protocols import RolloutQuery
    from taskapp_kit.evaluate.compare import chosen_sides, compare, read_sides
    from taskapp_kit.evaluate.source import open_source

    sides = []
    for reference in references:
        source = open_source(reference, key=key)
        try:
            sides += await read_sides(source, reference, wanted=RolloutQuery(environment=environment))
        finally:
            await source.close()
    return compare(chosen_sides(sides, policy, baseline), how)
