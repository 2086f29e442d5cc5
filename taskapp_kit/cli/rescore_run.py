"""What `taskapp rescore` does: opens the store and the app, scores, and prints what moved."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli.compare_output import print_comparisons
from taskapp_kit.cli.local_app import local_service, open_app
from taskapp_kit.cli.options import command_with, shown_source
from taskapp_kit.cli.terminal import clean, console
from taskapp_kit.config import Settings, load
from taskapp_kit.contract.protocols import RolloutQuery
from taskapp_kit.contract.words import counted, dollars
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.evaluate.compare import Comparison, ComparisonSettings
from taskapp_kit.evaluate.own_directories import check_own
from taskapp_kit.evaluate.rescore import Rescored, Rescorer, RescoreReport, compared_scores, scorer_version
from taskapp_kit.evaluate.runners import judge_models
from taskapp_kit.evaluate.source import open_source
from taskapp_kit.rollout.source import RolloutSource

PROBLEMS = 10
"""Refusals and failures that are printed; `--json` has all of them."""


def rescore(
    reference: str,
    app_option: str | None,
    env_files: Sequence[str],
    *,
    scorer: str | None,
    policy: str | None,
    environment: str | None,
    judges: str,
    concurrency: int,
    dry_run: bool,
) -> tuple[RescoreReport, Comparison | None]:
    """Score the matching rollouts of a directory or store. Returns the report, and what moved where something was scored.

    app_option: in place of the app that the evaluation names. Raises UsageError, DiscoveryError, DeclarationError,
    ConfigError, StoreError, Unavailable.
    """
    settings, skip = load({}, env_files=env_files), judges == "skip"

    async def rescored(source: RolloutSource) -> tuple[RescoreReport, Comparison | None]:
        app = _app(app_option, reference, source.config, settings)
        spec = app.freeze()
        version = scorer or scorer_version(spec, app.file, judge_models(spec, settings), skip_judges=skip)
        wanted = RolloutQuery(app=spec.name, environment=environment, policy=policy)
        seen = 0
        with console(stderr=True).status("") as status:

            def watch(_: Rescored) -> None:
                nonlocal seen
                seen += 1
                status.update(f"{counted(seen, 'rollout')} scored")

            async with local_service(app, settings, skip_judges=skip, concurrency=concurrency) as service:
                rescorer = Rescorer(service, source, version, concurrency=concurrency)
                report = await rescorer.run(wanted, dry=dry_run, watch=watch)
        return report, None if dry_run else compared_scores(report, spec, shown_source(reference))

    async def run() -> tuple[RescoreReport, Comparison | None]:
        source = open_source(reference)
        try:
            return await rescored(source)
        finally:
            await source.close()

    return asyncio.run(run())


def _app(given: str | None, source: str, config: Mapping[str, Any], settings: Settings) -> TaskApp:
    """The app that --app or the user's own evaluation names. Raises UsageError, DiscoveryError, ConfigError."""
    stored = config.get("app_reference")
    if given is None and isinstance(stored, str):
        check_own(Path(source), config, command_with(["--app", stored]))
        given = stored
    if given is None:
        raise click.UsageError("Which app? Give --app APP; only an evaluation's directory can name it.")
    return open_app(given, settings)


def print_report(report: RescoreReport, compared: Comparison | None, changes: int) -> None:
    """Print how many were scored, what could not be, and what moved. changes: the most rollouts to list."""
    out = console()
    before = sum(one.scores is not None and not one.new for one in report.rollouts)
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
            (report.unplayed, "without a whole episode"),
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
        print_comparisons([compared], ComparisonSettings(), changes=changes, rescored=report.scorer)


def _print_problems(report: RescoreReport) -> None:
    out = console()
    problems = [(one, one.refusal or "") for one in report.refused]
    problems += [(one, str((one.scores.failure or {}).get("message"))) for one in report.failed if one.scores]
    for one, problem in problems[:PROBLEMS]:
        row = one.row
        kind = "refused" if one.refusal is not None else "failed"
        where = f"{row.environment} {row.split} {row.seed} ({row.rollout_id})"
        out.print(clean(f"  {kind}: {where}: {problem}"), soft_wrap=True)
    if len(problems) > PROBLEMS:
        out.print(f"  … and {len(problems) - PROBLEMS} more, with --json.")
