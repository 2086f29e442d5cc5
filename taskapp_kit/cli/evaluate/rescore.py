"""`taskapp rescore`: score stored rollouts again with the current rubrics and judges, without calling the policy."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from taskapp_kit.cli import local_app
from taskapp_kit.cli.evaluate.compare import CHANGES
from taskapp_kit.cli.options import ENV_FILES, ENVIRONMENT, JUDGES, json_option, shown_source
from taskapp_kit.cli.output import compare_output
from taskapp_kit.cli.output.terminal import clean, console, example, print_json
from taskapp_kit.config import Settings, load
from taskapp_kit.evaluate import compare as comparisons
from taskapp_kit.evaluate import rescore as rescoring
from taskapp_kit.evaluate import runners
from taskapp_kit.evaluate import source as sources
from taskapp_kit.records.formatting import counted, dollars
from taskapp_kit.records.protocols import RolloutQuery

CONCURRENCY = 8
PROBLEMS = 10
"""The maximum number of rejections and failures to print. `--json` prints all of them."""


@click.command(
    epilog=example(
        "taskapp rescore evals/small",
        "taskapp rescore evals/small --dry-run",
        "taskapp rescore .taskapp/rollouts.db --app adder.py --policy scripted",
        "taskapp show evals/small --scores 1.1.0-3f2a90b1c4d5 --worst 5",
    )
)
@click.argument("source", metavar="DIR|STORE")
@click.option("--app", "app_option", metavar="APP", help="The app.  [default: the evaluation's app]")
@click.option("--scores", "scorer", metavar="VERSION", help="The version of the new scores.  [default: computed]")
@click.option("--policy", metavar="NAME", help="Only rollouts of this policy or model.")
@ENVIRONMENT
@JUDGES
@click.option(
    "--concurrency",
    type=click.IntRange(1, 4096),
    default=CONCURRENCY,
    metavar="N",
    help="Rollouts to score concurrently.",
)
@click.option("--dry-run", is_flag=True, help="Only count rollouts and judge calls, and estimate the judges' cost.")
@click.option("--changes", type=click.IntRange(0), default=CHANGES, metavar="N", help="List at most N changes.")
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
    **how: Any,
) -> None:
    """Score stored rollouts again with the current rubrics and judges.

    The policy is not called. Its actions are read from the store, even for rollouts whose scoring failed. The original
    scores are not changed. The new scores are stored separately, under a scorer version, and `taskapp show --scores VERSION`
    shows them. The old and new scores are printed as a comparison. A rollout whose task has changed is not scored.

    Rollouts that already have scores of this version are skipped, so an interrupted run can be continued.

    Exit status: 0 if all were scored, 1 if some could not be scored, 2 if the command line is wrong.
    """
    settings = load({}, env_files=env_files)
    report, compared = asyncio.run(_rescored(source, app_option, settings, **how))
    if as_json:
        print_json({**report.to_json(), "comparison": None if compared is None else compared.to_json()})
    else:
        _print_report(report, compared, changes)
    if report.refused or report.failed:
        ctx.exit(1)


async def _rescored(
    reference: str,
    app_option: str | None,
    settings: Settings,
    *,
    scorer: str | None,
    policy: str | None,
    environment: str | None,
    judges: str,
    concurrency: int,
    dry_run: bool,
) -> tuple[rescoring.RescoreReport, comparisons.Comparison | None]:
    """Score the matching rollouts of a directory or store. Return the report and, unless dry_run, a comparison.

    Raises UsageError if no app is known, DiscoveryError or DeclarationError if the app cannot be loaded, ConfigError
    for an invalid source or setting, StoreError if the store cannot be read or written, and Unavailable if a judge has
    no model.
    """
    skip, scored = judges == "skip", 0
    source = sources.open_source(reference)
    try:
        name = local_app.app_named(app_option, reference, source.config)
        if name is None:
            raise click.UsageError("No app was given. Pass --app APP, because a store does not name the app.")
        app = local_app.open_app(name, settings)
        spec = app.freeze()
        models = runners.judge_models(spec, settings)
        version = scorer or rescoring.scorer_version(spec, app.file, models, skip_judges=skip)
        query = RolloutQuery(app=spec.name, environment=environment, policy=policy)
        with console(stderr=True).status("") as status:

            def watch(_: rescoring.Rescored) -> None:
                nonlocal scored
                scored += 1
                status.update(f"{counted(scored, 'rollout')} scored")

            async with local_app.local_service(app, settings, skip_judges=skip, concurrency=concurrency) as service:
                rescorer = rescoring.Rescorer(service, source, version, concurrency=concurrency)
                report = await rescorer.run(query, dry=dry_run, watch=watch)
        return report, None if dry_run else rescoring.compared_scores(report, spec, shown_source(reference))
    finally:
        await source.close()


def _print_report(report: rescoring.RescoreReport, compared: comparisons.Comparison | None, changes: int) -> None:
    """Print how many rollouts were scored, which were not, and which scores changed.

    changes: how many rollouts to list at most.
    """
    out = console()
    before = sum(rollout.scores is not None and not rollout.new for rollout in report.rollouts)
    if report.dry:
        words = f"{counted(report.ready, 'rollout')} would be scored as version {report.scorer}"
    else:
        words = f"{counted(report.new, 'rollout')} scored as version {report.scorer}"
    notes = [
        f"{count} {what}"
        for count, what in (
            (before, "scored before"),
            (len(report.failed), "failed"),
            (len(report.refused), "refused"),
            (report.unplayed, "without a complete episode"),
        )
        if count
    ]
    out.print(clean("; ".join([words, *notes]) + "."), soft_wrap=True)
    if report.dry:
        calls = ", ".join(
            f"{count} of the role {role}, {'at an unknown cost' if cost is None else f'about {dollars(cost)}'}"
            for (role, count), cost in zip(report.judge_calls.items(), report.judge_costs.values(), strict=True)
        )
        out.print(clean(f"Judge calls: {calls or 'none'}."), soft_wrap=True)
    _print_problems(report)
    if compared is not None:
        out.print()
        compare_output.print_comparisons(
            [compared], comparisons.ComparisonSettings(), changes=changes, rescored=report.scorer
        )


def _print_problems(report: rescoring.RescoreReport) -> None:
    out = console()
    problems = [("refused", rollout.row, rollout.refusal) for rollout in report.refused]
    problems += [
        ("failed", rollout.row, str((rollout.scores.failure or {}).get("message")))
        for rollout in report.failed
        if rollout.scores
    ]
    for kind, row, problem in problems[:PROBLEMS]:
        where = f"{row.environment} {row.split} {row.seed} ({row.rollout_id})"
        out.print(clean(f"  {kind}: {where}: {problem}"), soft_wrap=True)
    if len(problems) > PROBLEMS:
        out.print(f"  … and {len(problems) - PROBLEMS} more; --json prints them.")
