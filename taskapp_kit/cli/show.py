"""`taskapp show`: stored rollouts as a list, or one of them turn by turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from taskapp_kit.cli.options import ENV_FILES, SERVER_KEY, WIDTH, json_option, shown_source
from taskapp_kit.cli.selection import CHOICE, FILTERS, LIMIT, selection
from taskapp_kit.cli.terminal import example, shown_from
from taskapp_kit.contract.protocols import RowOrder

SORTS = tuple(name for name in get_args(RowOrder) if name not in ("worst", "best"))


@click.command(
    epilog=example(
        "taskapp show r1 --worst 5",
        "taskapp show r1 4fd1d0d5",
        "taskapp show r1 --failed --boundary policy",
        "taskapp show .taskapp/rollouts.db --sort cost --limit 3",
        "taskapp show http://127.0.0.1:8001 --reward-below 0.5 --json",
        "taskapp show r1 4fd1d0d5 --html rollout.html",
    )
)
@click.argument("source", metavar="DIR|STORE|URL")
@click.argument("rollout_id", metavar="[ID]", required=False)
@CHOICE
@FILTERS
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    help="newest first, or the largest first.  [default: an evaluation's by seed, others newest first]",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help=f"Rows of the list.  [default: {LIMIT}]")
@click.option("--scores", "scorer", metavar="VERSION", help="With the scores of this version; see `taskapp rescore`.")
@click.option("--app", metavar="APP", help="With --private: the app whose row is shown.")
@click.option("--private", is_flag=True, help="With --app, of one rollout: show the private fields of its task, too.")
@SERVER_KEY
@ENV_FILES
@click.option("--full", is_flag=True, help="Leave nothing out and cut nothing: every turn, prompt and metric.")
@WIDTH
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the rollout as one HTML file, with its pictures, in place of printing it.",
)
@json_option("Print the rows, or the rollout, as JSON.")
def command(
    source: str,
    rollout_id: str | None,
    worst: int | None,
    best: int | None,
    failed: bool,
    sort: RowOrder | None,
    limit: int | None,
    environment: str | None,
    policy: str | None,
    status: str | None,
    boundary: str | None,
    reward_below: float | None,
    reward_above: float | None,
    **options: Any,
) -> None:
    """List stored rollouts, or show one of them turn by turn.

    DIR is an evaluation's directory, STORE the address of a store (a path, sqlite:///PATH, postgresql://…), URL a running
    task app. ID is a rollout's id or the beginning of one. A list of one, such as --worst 1, is shown turn by turn, too.

    A rollout that failed or whose reward is undefined is in neither --worst nor --best.
    """
    from taskapp_kit.cli import show_run

    filters = {
        "environment": environment,
        "policy": policy,
        "status": status,
        "boundary": boundary,
        "reward_below": reward_below,
        "reward_above": reward_above,
    }
    chosen = selection(worst=worst, best=best, failed=failed, sort=sort, limit=limit, **filters)
    with shown_from(shown_source(source)):
        show_run.run(source, rollout_id, chosen, options)
