"""`taskapp eval`: play many rollouts, in this process or on a server, and store them so that the evaluation can resume."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli import policy_options as policies
from taskapp_kit.cli.evaluate import eval_session
from taskapp_kit.cli.evaluate.eval_options import (
    ELSEWHERE,
    EPISODES,
    OF_THE_PLAN,
    OF_THE_POLICIES,
    OUT,
    POLICIES,
    RUN,
    STORED_OPTIONS,
    SUMMARY,
    EvalOptions,
)
from taskapp_kit.cli.options import (
    CACHE,
    ENV_CONFIG,
    ENV_FILES,
    JUDGES,
    LIMITS,
    SERVER_KEY,
    command_with,
    is_url,
    json_option,
    typed,
)
from taskapp_kit.cli.output import eval_output, show_output
from taskapp_kit.cli.output.terminal import clean, complain, console, echo, example, exit_status, print_json, shown_from
from taskapp_kit.config import Settings, load
from taskapp_kit.errors import ConfigError, EvaluationStopped, KitError
from taskapp_kit.evaluate import continued, directory, own_directories
from taskapp_kit.evaluate import plan as plans
from taskapp_kit.evaluate import summary as summaries
from taskapp_kit.records import seeds as seed_lists


@click.command(
    epilog=example(
        "taskapp eval crafter --policy random --seeds 1000-1299 --workers 2 --out r1",
        "taskapp eval r1",
        "taskapp eval adder.py --model m --inference-url http://127.0.0.1:8100/v1 --seeds 0-99 --repeats 4",
        "taskapp eval adder.py --model small --model large --policy random --seeds 0-99 --max-cost 2",
        "taskapp eval http://127.0.0.1:8001 --policy gold --seeds 0,5,9 --json",
        "taskapp eval --seeds-from r1 --worst 5 --out r2",
    )
)
@click.argument("app", metavar="APP|URL|DIR", required=False)
@click.option(
    "--app-id",
    "--app",
    "app_id",
    metavar="APP",
    help="The same as APP. For a URL, the app that computes aggregates. For another user's DIR, its app or URL.",
)
@EPISODES
@POLICIES
@ENV_CONFIG
@LIMITS
@RUN
@OUT
@click.option("--resume/--no-resume", default=False, help="Continue the evaluation in --out DIR, if it exists.")
@click.option("--retry-failed", is_flag=True, help="With --resume or DIR, play failed rollouts again.")
@SUMMARY
@click.option("--store", metavar="URL", help="The store for complete rollouts, or none.  [default: DIR/rollouts.db]")
@CACHE
@JUDGES
@SERVER_KEY
@ENV_FILES
@json_option("Print only the summary, as JSON.")
@click.pass_context
def command(ctx: click.Context, /, app: str | None, **options: Any) -> None:
    """Play many rollouts and summarize them.

    Each finished rollout is stored as a line of DIR/results.jsonl. After an interruption, `taskapp eval DIR` plays only the
    remaining rollouts. Failed rollouts are counted by cause and do not affect any mean. Ctrl-C stops the evaluation.

    Exit status: 0 if no rollout failed, 1 if some failed or the command was stopped, 2 if the command line is wrong.
    """
    ctx.exit(_run(ctx, app, options))


def _run(ctx: click.Context, app: str | None, options: dict[str, Any]) -> int:
    """Run the command and return its exit status. Raises UsageError or ConfigError for an invalid command line."""
    env_files, note = options.pop("env_files"), ""
    if app is not None and continued.is_evaluation(app):
        path, config = Path(app), directory.read_config(Path(app))
        own = own_directories.is_own(path, config)
        flags = _flags_for_directory(ctx, app, own=own)
        with shown_from(app):
            stored = config.get("options", {})
            options |= {name: stored[name] for name in STORED_OPTIONS if name in stored and name not in flags}
            options["by"] = tuple(options["by"])
            how = summaries.SummaryOptions(options["by"], options["pass_at"], options["interval"])
            finished = None if options["retry_failed"] else continued.summarise_again(path, how)
            if finished is not None:
                if not options["as_json"]:
                    echo(f"Every rollout in {app} has been played.", err=True)
                ended = _evaluation(
                    options, app="", local=None, key=None, models={}, plan={}, seeds=None, selected=True, out=path
                )
                return _print(finished, eval_session.Session(ended, Settings(), note), as_json=options["as_json"])
        if not own:
            config = _confirmed(path, config, options)
        settings = _settings_again(path, config, flags, options, env_files)
        evaluation = _again(path, config, options, settings)
    else:
        settings = load({"store": options["store"], "cache": options["cache"]}, env_files=env_files)
        evaluation, note = _new(ctx, app, settings, options)
    session = eval_session.Session(evaluation, settings, note)
    try:
        summary = session.run()
    except KeyboardInterrupt:
        session.display.close()
        echo("\nStopped.", err=True)
        session.how_to_go_on()
        return 1
    except EvaluationStopped as error:
        complain(error)
        session.how_to_go_on(retry_failed=True)
        return 1
    except KitError as error:
        complain(error)
        session.how_to_go_on()
        return exit_status(error)
    return _print(summary, session, as_json=evaluation.as_json)


def _evaluation(options: dict[str, Any], **more: Any) -> EvalOptions:
    """Return the evaluation's options. Fields that are not options of the command are passed in `more`."""
    names = (*STORED_OPTIONS, "out", "resume", "retry_failed", "as_json")
    return EvalOptions(**({name: options[name] for name in names} | more))


def _new(ctx: click.Context, app: str | None, settings: Settings, options: dict[str, Any]) -> tuple[EvalOptions, str]:
    """Return the options of a new evaluation, and a note for the user about the policy.

    Raises UsageError if options are missing or contradict each other.
    """
    source, failed, worst = (options[name] for name in ("seeds_from", "failed", "worst"))
    again = None
    if source is not None:
        again = eval_session.played_again(ctx, source, settings, failed=failed, worst=worst)
        app = app or options["app_id"] or again.app
        options |= {"environment": again.environment, "split": again.split, "seeds": again.seeds, **again.options}
        if options["env_config"] is None:
            options["env_config"] = again.env_config
    elif failed or worst is not None:
        raise click.UsageError("--failed and --worst need --seeds-from DIR.")
    app_id = options["app_id"]
    played = app or app_id
    if played is None:
        raise click.UsageError("No app was given. Pass APP, or the URL of a running server.")
    if again is not None and again.policies is not None:
        chosen = policies.ChosenPolicies(again.policies, again.models)
    else:
        flags = {name: options[name] for name in OF_THE_POLICIES}
        chosen = policies.chosen_policies(settings, **flags, app=played)
    if app is not None and app_id is not None and not is_url(app) and app_id != app:
        raise click.UsageError("APP and --app-id name different apps. Omit one of them.")
    if is_url(played):
        for name in ("workers", "store", "cache"):
            if options[name] is not None:
                raise click.UsageError(f"--{name} applies only to an app in this process. Omit it for a server.")
        if options["judges"] == "skip":
            raise click.UsageError("--judges skip applies only to an app in this process. Omit it for a server.")
    if options["retry_failed"] and not options["resume"]:
        raise click.UsageError("--retry-failed needs --resume.")
    evaluation = _evaluation(
        options,
        app=played,
        local=app_id if app not in (None, app_id) and is_url(played) else None,
        key=options["key"] or settings.environment_api_key,
        models=chosen.in_models_file,
        plan=_plan_of(options, chosen.configs, () if again is None else again.only),
        seeds=None if options["seeds"] is None else seed_lists.Seeds.read(options["seeds"]),
        selected=False,
    )
    return evaluation, chosen.note


def _plan_of(
    options: dict[str, Any], configs: dict[str, dict[str, Any]], only: tuple[tuple[int, int], ...]
) -> dict[str, Any]:
    """Return all fields of EvalPlan except `seeds`, by name. configs: each `policy.config` by the policy's name."""
    return {
        **{name: options[name] for name in plans.AS_STORED if name in options},
        "policies": tuple(configs.values()),
        "names": tuple(configs),
        "config": options["env_config"] or {},
        "ops": options["ops"] or 0,
        "skip_judges": options["judges"] == "skip",
        "tags": tuple(tag.strip() for tag in (options["tags"] or "").split(",") if tag.strip()),
        "only": only,
    }


def _flags_for_directory(ctx: click.Context, path: str, *, own: bool) -> set[str]:
    """Return the names of the options that the command line sets in addition to a directory.

    Raises UsageError if an option would change the directory's plan.

    own: Whether the directory belongs to this user. If not, --inference-url is allowed, because it confirms the model's
    address.
    """
    flags = typed(ctx)
    for name, flag in flags.items():
        if name in OF_THE_PLAN and (own or name != "inference_urls"):
            raise click.UsageError(
                f"{flag} cannot be changed for the evaluation in {path}. "
                "Omit it, or start a new evaluation with APP and --out."
            )
    return set(flags)


def _confirmed(path: Path, config: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of another user's directory. Its app, store and cache come only from the command line.

    Raises ConfigError if the command line does not repeat the app, the store and every address that the directory names,
    and UsageError for an address that the directory does not name.
    """
    stored, app, urls = dict(config.get("options", {})), options["app_id"], options["inference_urls"]
    addresses = own_directories.model_addresses(config)
    if not set(urls) <= set(addresses):
        raise click.UsageError(
            f"The evaluation in {path} does not use this --inference-url. Pass only URLs that it uses."
        )
    missing = [word for url in addresses if url not in urls for word in ("--inference-url", url)]
    if stored.get("store") not in (None, ELSEWHERE) and options["store"] is None:
        missing += ["--store", str(stored["store"])]
    if app is None or ("url" in stored and not is_url(app)):
        missing += ["--app", str(stored.get("url") or config.get("app_reference") or "APP")]
    if missing:
        own_directories.check_own(path, config, command_with(missing))
    kept = {name: value for name, value in stored.items() if name not in ("url", "store", "cache")}
    if is_url(app):
        return {**config, "app_reference": None, "options": {**kept, "url": app}}
    return {**config, "app_reference": app, "options": kept}


def _settings_again(
    path: Path, config: dict[str, Any], flags: set[str], options: dict[str, Any], env_files: tuple[str, ...]
) -> Settings:
    """Return the settings with which to continue an evaluation.

    Flags take precedence over the evaluation's stored options, which take precedence over the environment. Raises
    ConfigError if the store's address is neither stored nor set.
    """
    stored = {name: value for name, value in config.get("options", {}).items() if value != ELSEWHERE}
    values = {name: options[name] if name in flags else stored.get(name) for name in ("store", "cache")}
    settings = load(values, env_files=env_files)
    if settings.store is None and "store" not in stored and "store" in config.get("options", {}):
        raise ConfigError(
            f"The address of the store for {path} was not saved, because it may contain a password.",
            hint="Pass --store URL or set TASKAPP_STORE.",
        )
    return settings


def _again(path: Path, config: dict[str, Any], options: dict[str, Any], settings: Settings) -> EvalOptions:
    """Return the options of a stored evaluation, with its app and API keys.

    Raises ConfigError if the app is not known, or if a model or its API key cannot be found.
    """
    stored = config.get("options", {})
    app, local = stored.get("url") or config.get("app_reference"), None
    if options["app_id"] not in (None, app):
        app, local = (app, options["app_id"]) if "url" in stored else (options["app_id"], None)
    elif "url" in stored:
        local = config.get("app_reference")
    if app is None:
        raise ConfigError(f"The evaluation in {path} does not name its app.", hint="Pass --app-id APP or --app-id URL.")
    configs = continued.policies_again(config, lambda name: policies.chosen_model(settings, name, None))
    sent = {"environment": stored.get("environment")} if stored else {}
    plan = plans.EvalPlan.of_stored(config["asked"], configs, **sent)
    return _evaluation(
        options,
        app=str(app),
        local=local,
        key=options["key"] or settings.environment_api_key,
        models=stored.get(continued.NAMES_IN_FILE, {}),
        plan={member.name: getattr(plan, member.name) for member in fields(plan) if member.name != "seeds"},
        seeds=plan.seeds,
        selected=True,
        out=path,
        resume=True,
    )


def _print(summary: dict[str, Any], session: eval_session.Session, *, as_json: bool) -> int:
    """Print the summary and notes, and return the exit status."""
    assert session.path is not None
    if as_json:
        print_json(summary)
    else:
        eval_output.print_summary(summary, session.path)
        if session.without_app:
            console().print("\nAggregates need the app's code. Pass --app-id APP to compute them.")
        show_output.print_worst(session.path)
        if len(summary.get("by_policy") or ()) > 1:
            line = shlex.join(["taskapp", "compare", str(session.path)])
            console().print(f"`{clean(line)}` shows which policy is better.", style="dim", soft_wrap=True)
    failed, problem = summary["rollouts"]["failed"], summary["aggregates_problem"]
    notes = []
    if summary.get("judges") == "skip":
        notes.append("Judges were skipped. Their scores are null, and so is every reward that depends on one.")
    if failed:
        unscored = sum(summary["failures"].get("scoring", {}).values())
        again = session.command_to_go_on(retry_failed=True)
        notes.append(
            f"{failed} of {summary['rollouts']['done']} rollouts failed and are not included in any mean. "
            f"`{show_output.show_line(str(session.path), '--failed')}` shows why. {session.how_to_score(unscored)}"
            f"{again[:1].upper()}{again[1:]} plays {'the failed ones' if unscored else 'them'} again."
        )
    idle = summary["rollouts"]["without_valid_action"]
    if idle:
        notes.append(
            f"Warning: in {idle} of {summary['rollouts']['done']} rollouts, no action was accepted. "
            f"`{show_output.show_line(str(session.path), 'ID')}` shows why."
        )
    notes += [f"Warning: {clean(warning)}" for warning in session.warnings]
    if problem:
        notes.append(f"The aggregates could not be computed: {clean(problem)}")
    errors = console(stderr=True)
    for paragraph in notes:
        errors.print(f"\n{paragraph}", soft_wrap=not errors.is_terminal)
    if session.stopped is not None:
        echo("", err=True)
        complain(session.stopped)
        session.how_to_go_on()
    return 1 if failed or problem or session.stopped is not None else 0
