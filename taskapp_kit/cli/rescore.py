"""`taskapp rescore`: today's rubrics and judges on stored rollouts, without asking the policy again."""

from __future__ import annotations

from typing import Any

import click

from taskapp_kit.cli.compare import CHANGES
from taskapp_kit.cli.options import ENV_FILES, ENVIRONMENT, JUDGES, json_option
from taskapp_kit.cli.terminal import example, print_json

CONCURRENCY = 8


@click.command(
    epilog=example(
        "taskapp rescore evals/small",
        "taskapp rescore evals/small --dry-run",
        "taskapp rescore .taskapp/rollouts.db --app adder.py --policy scripted",
        "taskapp show evals/small --scores 1.1.0-3f2a90b1c4d5 --worst 5",
    )
)
@click.argument("source", metavar="DIR|STORE")
@click.option("--app", "app_option", metavar="APP", help="The app.  [default: the one that the evaluation names]")
@click.option("--scores", "scorer", metavar="VERSION", help="Store the scores as this version.  [default: computed]")
@click.option("--policy", metavar="NAME", help="Only the rollouts of this policy or model.")
@ENVIRONMENT
@JUDGES
@click.option(
    "--concurrency", type=click.IntRange(1, 4096), default=CONCURRENCY, metavar="N", help="Rollouts scored at once."
)
@click.option(
    "--dry-run", is_flag=True, help="Compute nothing: count rollouts and judge calls, and estimate their cost."
)
@click.option("--changes", type=click.IntRange(0), default=CHANGES, metavar="N", help="List N rollouts that changed.")
@ENV_FILES
@json_option()
@click.pass_context
def command(
    ctx: click.Context,
    /,
    source: str,
    app_option: str | None,
    changes: int,
    env_files: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """Score stored rollouts with today's rubrics and judges.

    The policy is not asked: what it did is read from the store, also of rollouts whose scoring failed. The answered scores
    stay as they are; the new ones are stored beside them, by the version of the scorer, and `taskapp show --scores VERSION`
    shows them. What moved is printed as a comparison. A rollout whose task has changed since is refused.

    Rollouts that this version has scored are not scored again, so an interrupted run goes on where it was.

    Exit status: 0 all were scored, 1 some were refused or their scoring failed, 2 the command line is wrong.
    """
    from taskapp_kit.cli import rescore_run

    report, compared = rescore_run.rescore(source, app_option, env_files, **given)
    if as_json:
        print_json({**report.to_json(), "comparison": None if compared is None else compared.to_json()})
    else:
        rescore_run.print_report(report, compared, changes)
    if report.refused or report.failed:
        ctx.exit(1)
