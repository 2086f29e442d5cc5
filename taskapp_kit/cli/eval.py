"""`taskapp eval`: many rollouts, here or at a server, stored in a directory from which it can be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli.eval_session import FIRST_SEEDS, EvalOptions, Session
from taskapp_kit.cli.options import (
    CACHE,
    ENV_CONFIG,
    ENV_FILES,
    ENVIRONMENT,
    JUDGES,
    LIMITS,
    SERVER_KEY,
    is_url,
    json_option,
    policy_options,
)
from taskapp_kit.cli.terminal import clean, complain, console, example, exit_status, print_json
from taskapp_kit.errors import EvaluationStopped, TaskAppError, TaskappError
from taskapp_kit.evaluate.consecutive_failures import MAX_CONSECUTIVE_FAILURES


@click.command(
    epilog=example(
        "taskapp eval crafter --policy random --seeds 1000-1299 --workers 2 --out r1",
        "taskapp eval crafter --policy random --seeds 1000-1299 --workers 2 --out r1 --resume",
        "taskapp eval adder.py --model m --inference-url http://127.0.0.1:8100/v1 --seeds 0-99 --repeats 4",
        "taskapp eval http://127.0.0.1:8001 --policy gold --seeds 0,5,9 --json",
    )
)
@click.argument("app", metavar="APP|URL", required=False)
@click.option("--app-id", metavar="APP", help="The same as APP. Beside a URL: the app whose aggregates are computed.")
@ENVIRONMENT
@click.option("--seeds", metavar="LIST", help=f"1000-1299, or 0,5,9.  [default: the first {FIRST_SEEDS} of the split]")
@click.option(
    "--split", metavar="NAME", help="The split of the seeds.  [default: as the seeds have it; of rows, the first]"
)
@click.option("--repeats", type=click.IntRange(1, 10_000), default=1, metavar="K", help="Play each seed so often.")
@policy_options("random, noop, constant")
@ENV_CONFIG
@LIMITS
@click.option("--concurrency", type=click.IntRange(1, 4096), default=8, metavar="N", help="Rollouts at once.")
@click.option(
    "--max-consecutive-failures",
    type=click.IntRange(0),
    default=MAX_CONSECUTIVE_FAILURES,
    metavar="N",
    help="Stop after N rollouts that failed because the model cannot be asked, none succeeding meanwhile; 0 never stops.",
)
@click.option(
    "--workers", type=click.IntRange(0, 256), metavar="N", help="Processes that play them; 0 for threads.  [default: 0]"
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Keep the results there.")
@click.option("--resume/--no-resume", default=False, help="Go on with what DIR holds, where it holds something.")
@click.option("--retry-failed", is_flag=True, help="With --resume: play failed rollouts again.")
@click.option("--store", metavar="URL", help="Where whole rollouts are stored, or none.  [default: DIR/rollouts.db]")
@CACHE
@JUDGES
@SERVER_KEY
@ENV_FILES
@json_option("Print the summary as JSON, and nothing else.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    app: str | None,
    app_id: str | None,
    policy: str | None,
    model: str | None,
    inference_url: str | None,
    action: Any,
    policy_config: dict[str, Any] | None,
    env_files: tuple[str, ...],
    key: str | None,
    store: str | None,
    cache: Path | None,
    **options: Any,
) -> None:
    """Play many rollouts and summarise them.

    Each finished rollout is a line of DIR/results.jsonl; whatever ends the command, --resume continues from there and plays
    none twice. A failed rollout is counted by where it broke, never averaged. Ctrl-C stops.

    Exit status: 0 no rollout failed, 1 some failed, or it was stopped, 2 the command line is wrong.
    """
    import asyncio

    from taskapp_kit.cli.policy_options import chosen_policy
    from taskapp_kit.config import load

    settings = load({"store": store, "cache": cache}, env_files=env_files)
    played = app or app_id
    if played is None:
        raise click.UsageError("Which app? Give APP, or the URL of a running server.")
    given, note = chosen_policy(settings, policy, model, inference_url, action, policy_config, app=played)
    local = app_id if app is not None and is_url(app) else None
    if app is not None and app_id is not None and not is_url(app) and app_id != app:
        raise click.UsageError("APP and --app-id name two apps.")
    if is_url(played):
        for name, value in (("--workers", options["workers"]), ("--store", store), ("--cache", cache)):
            if value is not None:
                raise click.UsageError(f"{name} is for an app in this process; a server has its own.")
        if options["judges"] == "skip":
            raise click.UsageError("--judges skip is for an app in this process; a server asks its own judges.")
    asked = EvalOptions(played, local, given, key or settings.environment_api_key, **options)
    if asked.retry_failed and not asked.resume:
        raise click.UsageError("--retry-failed goes with --resume.")
    session = Session(asked, settings, note)
    try:
        summary = asyncio.run(session.run())
    except KeyboardInterrupt:
        session.display.close()
        click.echo("\nStopped.", err=True)
        session.how_to_go_on()
        ctx.exit(1)
    except EvaluationStopped as error:
        complain(error)
        session.how_to_go_on(retry_failed=True)
        ctx.exit(1)
    except TaskappError as error:
        complain(error)
        session.how_to_go_on()
        refused = isinstance(error, TaskAppError) and error.status == 422  # as a wrong request is here
        ctx.exit(2 if refused else exit_status(error))
    ctx.exit(_print(summary, session, as_json=asked.as_json))


def _print(summary: dict[str, Any], session: Session, *, as_json: bool) -> int:
    """The exit status."""
    from taskapp_kit.cli.eval_output import print_summary

    assert session.path is not None, "it was written there"
    if as_json:
        print_json(summary)
    else:
        print_summary(summary, session.path)
        if session.without_app:
            console().print("\nNo aggregates: the app's own code is not here. --app-id APP computes them.")
    failed, problem = summary["rollouts"]["failed"], summary["aggregates_problem"]
    notes = []
    if summary.get("judges") == "skip":
        notes.append("Judges were skipped: their scores are null, and so is every reward that needs one.")
    if failed:
        notes.append(
            f"{failed} of {summary['rollouts']['done']} rollouts failed; they are in no mean. `taskapp rollout` with one of "
            "their seeds shows more; the same command with --resume --retry-failed plays them again."
        )
    idle = summary["rollouts"]["without_valid_action"]
    if idle:
        notes.append(
            f"Warning: in {idle} of {summary['rollouts']['done']} rollouts every action was refused or unusable; "
            "`taskapp rollout` with one of their seeds shows why."
        )
    notes += [f"Warning: {clean(warning)}" for warning in session.warnings]
    if problem:
        notes.append(f"The aggregates could not be computed: {clean(problem)}")
    errors = console(stderr=True)
    for paragraph in notes:
        errors.print(f"\n{paragraph}", soft_wrap=not errors.is_terminal)
    return 1 if failed or problem else 0
