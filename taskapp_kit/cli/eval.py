"""`taskapp eval`: many rollouts, here or at a server, stored in a directory from which it can be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.eval_session import ELSEWHERE, STORED_OPTIONS, EvalOptions, Session
from taskapp_kit.cli.options import (
    CACHE,
    ENV_CONFIG,
    ENV_FILES,
    ENVIRONMENT,
    JUDGES,
    LIMITS,
    SERVER_KEY,
    AtOnce,
    is_url,
    json_option,
    policy_options,
)
from taskapp_kit.cli.terminal import clean, complain, console, example, exit_status, print_json
from taskapp_kit.errors import ConfigError, EvaluationStopped, TaskAppError, TaskappError
from taskapp_kit.evaluate.consecutive_failures import MAX_CONSECUTIVE_FAILURES
from taskapp_kit.evaluate.pass_rates import PASS_AT
from taskapp_kit.evaluate.seeds import FIRST_SEEDS

if TYPE_CHECKING:
    from taskapp_kit.config import Settings

OF_THE_PLAN = (
    "environment", "seeds", "split", "difficulty", "tags", "repeats", "policies", "models", "inference_urls", "output_mode",
    "action", "policy_config", "env_config", "ops", "max_time_seconds", "max_refusals", "max_rollout_tokens", "judges", "out",
)  # fmt: skip
"""Options that an evaluation's directory has and that cannot be given beside it."""


@click.command(
    epilog=example(
        "taskapp eval crafter --policy random --seeds 1000-1299 --workers 2 --out r1",
        "taskapp eval r1",
        "taskapp eval adder.py --model m --inference-url http://127.0.0.1:8100/v1 --seeds 0-99 --repeats 4",
        "taskapp eval adder.py --model small --model large --policy random --seeds 0-99 --max-cost 2",
        "taskapp eval http://127.0.0.1:8001 --policy gold --seeds 0,5,9 --json",
    )
)
@click.argument("app", metavar="APP|URL|DIR", required=False)
@click.option("--app-id", metavar="APP", help="The same as APP. Beside a URL: the app whose aggregates are computed.")
@ENVIRONMENT
@click.option("--seeds", metavar="LIST", help=f"1000-1299, or 0,5,9.  [default: the first {FIRST_SEEDS} of the split]")
@click.option(
    "--split", metavar="NAME", help="The split of the seeds.  [default: as the seeds have it; of rows, the first]"
)
@click.option("--difficulty", multiple=True, metavar="X", help="Only rows of this difficulty; may repeat.")
@click.option("--tags", metavar="A,B", help="Only rows that have all of these tags.")
@click.option("--repeats", type=click.IntRange(1, 10_000), default=1, metavar="K", help="Play each seed so often.")
@policy_options("random, noop, constant", several=True)
@ENV_CONFIG
@LIMITS
@click.option(
    "--concurrency",
    type=AtOnce(),
    default=8,
    metavar="N",
    help="Rollouts at once; auto doubles them until the model says 429 or takes twice as long.",
)
@click.option(
    "--max-consecutive-failures",
    type=click.IntRange(0),
    default=MAX_CONSECUTIVE_FAILURES,
    metavar="N",
    help="Stop after N rollouts that failed because the model cannot be asked, none succeeding meanwhile; 0 never stops.",
)
@click.option("--max-failures", type=click.IntRange(1), metavar="N", help="Stop when N rollouts of this run failed.")
@click.option(
    "--max-cost",
    type=click.FloatRange(0, min_open=True),
    metavar="USD",
    help="Stop when the models' answers have cost so much; prices are those of models.toml.",
)
@click.option(
    "--max-total-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Stop when the policies' models have read and written N tokens.",
)
@click.option(
    "--workers", type=click.IntRange(0, 256), metavar="N", help="Processes that play them; 0 for threads.  [default: 0]"
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Keep the results there.")
@click.option("--resume/--no-resume", default=False, help="Go on with what DIR holds, where it holds something.")
@click.option("--retry-failed", is_flag=True, help="With --resume or DIR: play failed rollouts again.")
@click.option(
    "--by", multiple=True, metavar="FIELD", help="Group by difficulty, tag, seed, or a row's field; may repeat."
)
@click.option("--pass-at", type=float, default=PASS_AT, metavar="X", help="A rollout passes from this reward on.")
@click.option(
    "--interval",
    type=click.Choice(["bootstrap", "t"]),
    default="bootstrap",
    help="How the 95 % interval of the reward is computed, over seeds.",
)
@click.option("--store", metavar="URL", help="Where whole rollouts are stored, or none.  [default: DIR/rollouts.db]")
@CACHE
@JUDGES
@SERVER_KEY
@ENV_FILES
@json_option("Print the summary as JSON, and nothing else.")
@click.pass_context
def command(ctx: click.Context, /, app: str | None, **options: Any) -> None:
    """Play many rollouts and summarise them.

    Each finished rollout is a line of DIR/results.jsonl; whatever ends the command, `taskapp eval DIR` goes on from there and
    plays none twice. A failed rollout is counted by where it broke, never averaged. Ctrl-C stops.

    Exit status: 0 no rollout failed, 1 some failed, or it was stopped, 2 the command line is wrong.
    """
    import asyncio

    from taskapp_kit.config import load
    from taskapp_kit.evaluate.continued import is_evaluation

    env_files = options.pop("env_files")
    if app is not None and is_evaluation(app):
        asked, settings, note = _continued(ctx, Path(app), env_files, options)
    else:
        settings = load({"store": options["store"], "cache": options["cache"]}, env_files=env_files)
        asked, note = _new(app, settings, options)
    session = Session(asked, settings, note)
    try:
        summary = session.finished() or asyncio.run(session.run())
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


def _new(app: str | None, settings: Settings, options: dict[str, Any]) -> tuple[EvalOptions, str]:
    """The options of a new evaluation, or of one that is named with --out; and what to say about the policy."""
    from taskapp_kit.cli.policy_options import chosen_policies

    app_id, store, cache = options.pop("app_id"), options.pop("store"), options.pop("cache")
    played = app or app_id
    if played is None:
        raise click.UsageError("Which app? Give APP, or the URL of a running server.")
    policies = ("policies", "models", "inference_urls", "action", "policy_config")
    chosen = chosen_policies(settings, *(options.pop(name) for name in policies), app=played)
    local = app_id if app is not None and is_url(app) else None
    if app is not None and app_id is not None and not is_url(app) and app_id != app:
        raise click.UsageError("APP and --app-id name two apps.")
    if is_url(played):
        for name, value in (("--workers", options["workers"]), ("--store", store), ("--cache", cache)):
            if value is not None:
                raise click.UsageError(f"{name} is for an app in this process; a server has its own.")
        if options["judges"] == "skip":
            raise click.UsageError("--judges skip is for an app in this process; a server asks its own judges.")
    if options["retry_failed"] and not options["resume"]:
        raise click.UsageError("--retry-failed goes with --resume.")
    options["tags"] = tuple(tag.strip() for tag in (options["tags"] or "").split(",") if tag.strip())
    key = options.pop("key") or settings.environment_api_key
    return EvalOptions(played, local, chosen.configs, chosen.in_models_file, key, **options), chosen.note


def _continued(
    ctx: click.Context, path: Path, env_files: tuple[str, ...], options: dict[str, Any]
) -> tuple[EvalOptions, Settings, str]:
    """The options of an evaluation that goes on: those of its directory, but for flags that do not change its plan.

    Raises UsageError, ConfigError.
    """
    from taskapp_kit.cli.policy_options import chosen_model
    from taskapp_kit.config import load
    from taskapp_kit.evaluate.continued import NAMES_IN_FILE, policies_again
    from taskapp_kit.evaluate.directory import read_config
    from taskapp_kit.evaluate.plan import EvalPlan

    given = {name for name in options if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    for param in ctx.command.params:
        if param.name in given and param.name in OF_THE_PLAN:
            raise click.UsageError(
                f"{path} is an evaluation that has its own {param.opts[0]}; start another one with APP and --out."
            )
    config = read_config(path)
    stored = config.get("options", {})
    settings = load(
        {name: options[name] if name in given else stored.get(name) for name in ("store", "cache")}, env_files=env_files
    )
    if settings.store == ELSEWHERE:
        raise ConfigError(
            f"The rollouts of {path} are in a store whose address is not kept there.",
            hint="Give --store URL, or TASKAPP_STORE.",
        )
    app, local = stored.get("url") or config.get("app_reference"), None
    if options["app_id"] is not None:
        app, local = (app, options["app_id"]) if "url" in stored else (options["app_id"], None)
    elif "url" in stored:
        local = config.get("app_reference")
    if app is None:
        raise ConfigError(f"{path} does not name its app.", hint="Give it with --app-id APP, or --app-id URL.")
    policies = policies_again(config, lambda name: chosen_model(settings, name, None))
    later = {name: options[name] for name in (*STORED_OPTIONS, "retry_failed", "as_json")}
    later |= {name: stored[name] for name in STORED_OPTIONS if name in stored and name not in given}
    later["by"] = tuple(later["by"])
    sent = {"environment": stored.get("environment")} if stored else {}
    plan = EvalPlan.of_stored(config["asked"], policies, **sent)
    return EvalOptions(
        str(app),
        local,
        policies,
        stored.get(NAMES_IN_FILE, {}),
        options["key"] or settings.environment_api_key,
        plan=plan,
        judges="skip" if plan.skip_judges else "ask",
        out=path,
        resume=True,
        **later,
    ), settings, ""  # fmt: skip


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
    if session.stopped is not None:
        click.echo("", err=True)
        complain(session.stopped)
        session.how_to_go_on()
    return 1 if failed or problem or session.stopped is not None else 0
