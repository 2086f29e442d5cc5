"""`taskapp compare`: two or more policies, paired by environment, split, seed and sample."""

from __future__ import annotations

from typing import Any

import click

from taskapp_kit.cli.options import ENV_FILES, ENVIRONMENT, SERVER_KEY, json_option
from taskapp_kit.cli.terminal import example, print_json

CHANGES = 10
"""Changed seeds that are listed, unless --changes gives another number."""


@click.command(
    epilog=example(
        "taskapp compare evals/small evals/large",
        "taskapp compare evals/both --by difficulty",
        "taskapp compare evals/before .taskapp/rollouts.db --policy scripted --force",
        "taskapp compare evals/small evals/large --json",
    )
)
@click.argument("references", metavar="DIR|STORE|URL…", nargs=-1, required=True)
@click.option("--policy", metavar="NAME", help="Only this policy or model of each place.")
@click.option("--baseline", metavar="NAME", help="The policy with which the others are compared.  [default: the first]")
@ENVIRONMENT
@click.option(
    "--by", multiple=True, metavar="FIELD",
    help="Break the reward down by difficulty, tag, seed or another public field of a row; may repeat.",
)  # fmt: skip
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
    from taskapp_kit.cli import compare_run

    compared, how = compare_run.compared(references, env_files, environment, policy, baseline, key, given)
    if as_json:
        print_json({"comparisons": [one.to_json() for one in compared]})
    else:
        compare_run.print_comparisons(compared, how, changes=changes)
