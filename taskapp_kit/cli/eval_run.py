"""What `taskapp eval` does: reads the flags of a new evaluation or of one that goes on, runs it, prints its summary."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli.eval_again import played_again
from taskapp_kit.cli.eval_output import print_summary
from taskapp_kit.cli.eval_session import ELSEWHERE, STORED_OPTIONS, EvalOptions, Session
from taskapp_kit.cli.options import command_with, is_url
from taskapp_kit.cli.policy_options import ChosenPolicies, chosen_model, chosen_policies
from taskapp_kit.cli.show_output import print_worst, show_line
from taskapp_kit.cli.terminal import clean, complain, console, echo, exit_status, print_json, shown_from
from taskapp_kit.config import Settings, load
from taskapp_kit.errors import ConfigError, EvaluationStopped, KitError, TaskAppError
from taskapp_kit.evaluate.continued import NAMES_IN_FILE, is_evaluation, policies_again, summarise_again
from taskapp_kit.evaluate.directory import read_config
from taskapp_kit.evaluate.own_directories import check_own, is_own, model_addresses
from taskapp_kit.evaluate.plan import EvalPlan

OF_THE_PLAN = (
    "environment", "seeds", "split", "difficulty", "tags", "repeats", "policies", "models", "inference_urls", "output_mode",
    "action", "policy_config", "env_config", "ops", "max_time_seconds", "max_refusals", "max_rollout_tokens", "judges", "out",
    "seeds_from", "failed", "worst",
)  # fmt: skip
"""Options that an evaluation's directory has and that cannot be given beside it."""


def run(ctx: click.Context, app: str | None, options: dict[str, Any]) -> int:
    """The exit status. app: an APP, the URL of a server, or the directory of an evaluation. Raises UsageError, ConfigError."""
    env_files = options.pop("env_files")
    if app is not None and is_evaluation(app):
        path, config = Path(app), read_config(Path(app))
        own = is_own(path, config)
        given = _given(ctx, app, options, own=own)
        asked = _stored(path, config, given, options)
        with shown_from(app):
            finished = None if asked.retry_failed else summarise_again(path, asked.summary)
            if finished is not None:
                if not asked.as_json:
                    echo(f"Nothing is left to play in {app}.", err=True)
                return _print(finished, Session(asked, Settings(), ""), as_json=asked.as_json)
        if not own:
            config = _named(path, config, options)
        settings = _settings_again(path, config, given, options, env_files)
        asked, note = _to_play(asked, config, options, settings), ""
    else:
        settings = load({"store": options["store"], "cache": options["cache"]}, env_files=env_files)
        asked, note = _new(ctx, app, settings, options)
    session = Session(asked, settings, note)
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
        refused = isinstance(error, TaskAppError) and error.status == 422  # as a wrong request is here
        return 2 if refused else exit_status(error)
    return _print(summary, session, as_json=asked.as_json)


def _new(ctx: click.Context, app: str | None, settings: Settings, options: dict[str, Any]) -> tuple[EvalOptions, str]:
    """The options of a new evaluation, or of one that is named with --out; and what to say about the policy."""
    source, failed, worst = options.pop("seeds_from"), options.pop("failed"), options.pop("worst")
    again = None
    if source is not None:
        again = played_again(ctx, source, settings, failed=failed, worst=worst)
        app = app or options["app_id"] or again.app
        options |= {"environment": again.environment, "split": again.split, "seeds": again.seeds, "only": again.only}
        options |= again.options
        if options["env_config"] is None:
            options["env_config"] = again.env_config
    elif failed or worst is not None:
        raise click.UsageError("--failed and --worst go with --seeds-from DIR.")
    app_id, store, cache = options.pop("app_id"), options.pop("store"), options.pop("cache")
    played = app or app_id
    if played is None:
        raise click.UsageError("Which app? Give APP, or the URL of a running server.")
    policies = ("policies", "models", "inference_urls", "action", "policy_config")
    given = [options.pop(name) for name in policies]
    if again is not None and again.policies is not None:
        chosen = ChosenPolicies(again.policies, again.models)
    else:
        chosen = chosen_policies(settings, *given, app=played)
    local = app_id if app not in (None, app_id) and is_url(played) else None
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


def _given(ctx: click.Context, path: str, options: dict[str, Any], *, own: bool) -> set[str]:
    """The options on the command line beside a directory. Raises UsageError: one of them makes the directory's plan.

    own: whether it is the user's own; the models' addresses of another one are repeated to confirm them.
    """
    given = {name for name in options if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    for param in ctx.command.params:
        if param.name in given and param.name in OF_THE_PLAN and (own or param.name != "inference_urls"):
            raise click.UsageError(
                f"{path} is an evaluation that has its own {param.opts[0]}; start another one with APP and --out."
            )
    return given


def _stored(path: Path, config: dict[str, Any], given: set[str], options: dict[str, Any]) -> EvalOptions:
    """The options of a stored evaluation, but for those that are given; without app and keys. Raises ConfigError."""
    stored = config.get("options", {})
    later = {name: options[name] for name in (*STORED_OPTIONS, "retry_failed", "as_json")}
    later |= {name: stored[name] for name in STORED_OPTIONS if name in stored and name not in given}
    later["by"] = tuple(later["by"])
    plan = EvalPlan.of_stored(config["asked"])
    return EvalOptions("", None, {}, stored.get(NAMES_IN_FILE, {}), None, plan=plan, out=path, resume=True, **later)


def _named(path: Path, config: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a directory from elsewhere, with the app, the store and the cache of the command line alone.

    Raises ConfigError: the command line does not name all that the directory names. UsageError: another address.
    """
    stored, app, urls = dict(config.get("options", {})), options["app_id"], options["inference_urls"]
    addresses = model_addresses(config)
    if not set(urls) <= set(addresses):
        raise click.UsageError(f"{path} is an evaluation that has its own --inference-url.")
    missing = [word for url in addresses if url not in urls for word in ("--inference-url", url)]
    if stored.get("store") not in (None, ELSEWHERE) and options["store"] is None:
        missing += ["--store", str(stored["store"])]
    if app is None or ("url" in stored and not is_url(app)):
        missing += ["--app", str(stored.get("url") or config.get("app_reference") or "APP")]
    if missing:
        check_own(path, config, command_with(missing))
    named = {name: value for name, value in stored.items() if name not in ("url", "store", "cache")}
    return {
        **config,
        "app_reference": None if is_url(app) else app,
        "options": named | ({"url": app} if is_url(app) else {}),
    }


def _settings_again(
    path: Path, config: dict[str, Any], given: set[str], options: dict[str, Any], env_files: tuple[str, ...]
) -> Settings:
    """The settings with which an evaluation goes on: a flag, else what it had, else the environment. Raises ConfigError."""
    stored = {name: value for name, value in config.get("options", {}).items() if value != ELSEWHERE}
    flags = {name: options[name] if name in given else stored.get(name) for name in ("store", "cache")}
    settings = load(flags, env_files=env_files)
    if settings.store is None and "store" not in stored and "store" in config.get("options", {}):
        raise ConfigError(
            f"The rollouts of {path} are in a store whose address is not kept there.",
            hint="Give --store URL, or TASKAPP_STORE.",
        )
    return settings


def _to_play(asked: EvalOptions, config: dict[str, Any], options: dict[str, Any], settings: Settings) -> EvalOptions:
    """The same with its app and its keys. Raises ConfigError: one of them cannot be found again."""
    stored = config.get("options", {})
    app, local = stored.get("url") or config.get("app_reference"), None
    if options["app_id"] not in (None, app):
        app, local = (app, options["app_id"]) if "url" in stored else (options["app_id"], None)
    elif "url" in stored:
        local = config.get("app_reference")
    if app is None:
        raise ConfigError(f"{asked.out} does not name its app.", hint="Give it with --app-id APP, or --app-id URL.")
    policies = policies_again(config, lambda name: chosen_model(settings, name, None))
    sent = {"environment": stored.get("environment")} if stored else {}
    plan = EvalPlan.of_stored(config["asked"], policies, **sent)
    return replace(
        asked,
        app=str(app),
        local=local,
        policies=policies,
        key=options["key"] or settings.environment_api_key,
        plan=plan,
        judges="skip" if plan.skip_judges else "ask",
    )


def _print(summary: dict[str, Any], session: Session, *, as_json: bool) -> int:
    """The exit status."""
    assert session.path is not None, "it was written there"
    if as_json:
        print_json(summary)
    else:
        print_summary(summary, session.path)
        if session.without_app:
            console().print("\nNo aggregates: the app's own code is not here. --app-id APP computes them.")
        print_worst(session.path)
        if len(summary.get("by_policy") or ()) > 1:
            line = shlex.join(["taskapp", "compare", str(session.path)])
            console().print(f"`{clean(line)}` says which policy is better.", style="dim", soft_wrap=True)
    failed, problem = summary["rollouts"]["failed"], summary["aggregates_problem"]
    notes = []
    if summary.get("judges") == "skip":
        notes.append("Judges were skipped: their scores are null, and so is every reward that needs one.")
    if failed:
        unscored = sum(summary["failures"].get("scoring", {}).values())
        again = session.command_to_go_on(retry_failed=True)
        notes.append(
            f"{failed} of {summary['rollouts']['done']} rollouts failed; they are in no mean. "
            f"`{show_line(str(session.path), '--failed')}` says why. {session.how_to_score(unscored)}"
            f"{again[:1].upper()}{again[1:]} plays {'the failed ones' if unscored else 'them'} again."
        )
    idle = summary["rollouts"]["without_valid_action"]
    if idle:
        notes.append(
            f"Warning: in {idle} of {summary['rollouts']['done']} rollouts every action was refused or unusable; "
            f"`{show_line(str(session.path), 'ID')}` shows why."
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
