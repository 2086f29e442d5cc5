"""`taskapp deploy`: an app on Modal, from what it declares, with its Secret, and one rollout to see that it runs.

The flags, the plan that they and the app's own declarations give, and the steps are also those of `modal-serve`.
"""

from __future__ import annotations

import dataclasses
import secrets
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import dotenv

from taskapp_kit.cli import env_file
from taskapp_kit.cli.options import env_files_option, json_option, options
from taskapp_kit.cli.output import deploy_output
from taskapp_kit.cli.output.terminal import clean, echo, example, print_json
from taskapp_kit.client import blocking_portal
from taskapp_kit.config import load
from taskapp_kit.deploy.modal import account as modal_account
from taskapp_kit.deploy.modal import check as modal_check
from taskapp_kit.deploy.modal import container as modal_container
from taskapp_kit.deploy.modal import declared_requirements, modal_settings
from taskapp_kit.deploy.modal import plan as modal_plans
from taskapp_kit.deploy.modal import run as modal_run
from taskapp_kit.deploy.packaging import source_files
from taskapp_kit.deploy.tunnel.tunnel_settings import on_loopback
from taskapp_kit.errors import ConfigError
from taskapp_kit.wire.chat.conversation import role_variable

_COUNT = click.IntRange(1)
deploy_options = options(
    click.argument("app"),
    click.option("--name", "app_name", metavar="N", help="Name of the Modal app.  [default: that of APP]"),
    click.option("--env", "-e", "modal_environment", metavar="E", help="Modal environment.  [default: the account's]"),
    env_files_option("Keys for the Secret; a later file wins."),
    click.option(
        "--create-secret",
        is_flag=True,
        help="Make the Secret from the env files; one that exists is used as it is.",
    ),
    click.option(
        "--update-secret",
        is_flag=True,
        help="Set the env files' keys in the Secret that exists; leave its others.",
    ),
    click.option("--take-over", is_flag=True, help="Replace an app of this name that taskapp did not deploy."),
    click.option(
        "--store",
        type=click.Choice(["postgres-secret", "none"]),
        help="Where rollouts are stored: TASKAPP_STORE of the Secret, or nowhere.  [default: none]",
    ),
    click.option("--secret", "secret_name", metavar="S", help="Name of the Secret.  [default: N-env]"),
    click.option("--extra-secret", "extra_secrets", multiple=True, metavar="S", help="A further Secret."),
    click.option("--cpu", type=float, metavar="CORES", help="Cores reserved."),
    click.option("--memory", "memory_mib", type=_COUNT, metavar="MIB", help="Memory reserved."),
    click.option("--region", multiple=True, metavar="R", help="Where containers may run; dearer than anywhere."),
    click.option("--min-containers", type=click.IntRange(0), metavar="N", help="Kept warm; costs money while idle."),
    click.option("--max-containers", type=_COUNT, metavar="N", help="At most."),
    click.option("--buffer-containers", type=click.IntRange(0), metavar="N", help="Started ahead of the load."),
    click.option(
        "--scaledown-window",
        "scaledown_window_seconds",
        type=_COUNT,
        metavar="T",
        help="How long an idle container stays, in seconds.",
    ),
    click.option("--timeout", "timeout_seconds", type=_COUNT, metavar="T", help="Longest request, in seconds."),
    click.option(
        "--startup-timeout", "startup_timeout_seconds", type=_COUNT, metavar="T", help="Longest start, in seconds."
    ),
    click.option("--max-inputs", type=_COUNT, metavar="N", help="Requests in one container at once."),
    click.option("--target-inputs", type=_COUNT, metavar="N", help="How many of them scaling aims at."),
    click.option("--volume", multiple=True, metavar="DIR=NAME", help="A Modal Volume at a folder."),
    click.option("--apt", "apt_packages", multiple=True, metavar="P", help="A Debian package to install."),
    click.option("--custom-domain", "custom_domains", multiple=True, metavar="D", help="A domain of your own."),
    click.option(
        "--memory-snapshot/--no-memory-snapshot",
        default=None,
        help="Start containers from a picture of memory.",
    ),
    click.option("--no-rehearsal", is_flag=True, help="Do not import the app here first."),
    click.option("--wait/--no-wait", default=True, help="Wait until it answers, and play one rollout."),
)
"""The options of `deploy` and `modal-serve`: the app's name and settings, its Secret, Modal's environment."""


def settings_of(flags: dict[str, Any]) -> modal_settings.ModalSettings:
    """What the flags say; a flag's parameter has its setting's name. Raises ConfigError, click.BadParameter."""
    names = {field.name for field in dataclasses.fields(modal_settings.ModalSettings)}
    said = {name: value for name, value in flags.items() if name in names and value not in (None, ())}
    volumes = [text.partition("=") for text in flags["volume"]]
    if any(not name for _, _, name in volumes):
        raise click.BadParameter("expected DIR=NAME, such as /data=my-volume.", param_hint="--volume")
    if volumes:
        said["volumes"] = {folder: name for folder, _, name in volumes}
    if flags["no_rehearsal"]:
        said["rehearse"] = False
    return modal_settings.ModalSettings(**said)


def planned(app: str, said: modal_settings.ModalSettings, *, env_files: Sequence[str] = ()) -> modal_plans.DeployPlan:
    """The plan; the app's own name is the default for Modal's. Raises DiscoveryError, ConfigError.

    env_files: where the Secret's values would come from; an address of a model in them that only this machine reaches is
    a warning.
    """
    here = Path.cwd()
    parsed = source_files.parse_target(source_files.resolve(app, beside=here))
    if parsed.kind == "file" and _is_entry(here / parsed.name):
        raise ConfigError(
            f"{parsed.name} is an entry for Modal's own command, not a task app.",
            hint=f"Run `modal deploy {parsed.name}`, or give the app's own file here.",
        )
    declared = declared_requirements.read_needs(parsed, beside=here).settings
    if said.app_name is None and declared.app_name is None:
        said = dataclasses.replace(said, app_name=_own_name(parsed, here))
    plan = modal_plans.make_plan(app, said, beside=here)
    return dataclasses.replace(plan, warnings=(*plan.warnings, *_unreachable(plan, env_files)))


def _unreachable(plan: modal_plans.DeployPlan, env_files: Sequence[str]) -> Iterator[str]:
    """A warning for each model's address that leads to the container itself; of any role, where not all are known."""
    settings = load(env_files=env_files)
    rehearsal = plan.rehearsal
    names = None if rehearsal is None or rehearsal.context else {*plan.required_keys, *rehearsal.optional}
    start, end = role_variable("{role}").split("{ROLE}")
    for name in sorted(settings.variables if names is None else names):
        url = settings.variable(name) if name.startswith(start) and name.endswith(end) else None
        if url and on_loopback(url):
            yield f"{name} is a loopback address: a container would look for the model in itself. Give one that it reaches."


def _is_entry(path: Path) -> bool:
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    return "taskapp_kit.deploy.modal" in text and "TaskApp(" not in text


def _own_name(parsed: source_files.Target, here: Path) -> str:
    """The file's, of an `app.py` its folder's; of a package or a bundled app its own."""
    if parsed.kind != "file":
        return parsed.name.partition(".")[0]
    path = (here / parsed.name).resolve()
    return path.parent.name if path.stem == "app" and path.parent.name else path.stem


@click.command(
    epilog=example(
        "taskapp deploy adder.py --name adder --dry-run",
        "taskapp deploy adder.py --name adder --env-file .env --create-secret",
        "taskapp deploy crafter --name crafter --store postgres-secret --min-containers 1 --tag v3",
    )
)
@deploy_options
@click.option("--tag", default="", show_default=False, metavar="T", help="A label of this version, shown by Modal.")
@click.option(
    "--strategy",
    type=click.Choice(["rolling", "recreate"]),
    default="rolling",
    help="Let the old containers finish, or stop them first.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and its cost; needs no account.")
@json_option("Print the plan, or what was deployed, as JSON.")
def command(
    app: str,
    modal_environment: str | None,
    tag: str,
    strategy: Any,
    dry_run: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Deploy an app to Modal.

    What the app needs is read from its # /// script block or pyproject.toml, with [tool.taskapp.modal]; flags win. The
    app is imported here first, with only what would be installed there. Keys reach it through a named Secret alone.
    """
    said = settings_of(flags)
    plan = planned(app, said, env_files=flags["env_files"])
    if dry_run:  # needs neither Modal nor an account; a deploy does what this plan shows
        if as_json:
            print_json(deploy_output.plan_json(plan))
            return
        deploy_output.show_plan(plan)
        echo("\nNothing was sent to Modal. Without --dry-run this is deployed.")
        return
    how = modal_run.DeployOptions(modal_environment or "", tag, strategy)
    end_on_signals()
    key = ready(plan, how, flags)
    with modal_run.entry(plan, said, beside=Path.cwd(), rehearsed=True) as module:
        modal_run.deploy(module, how, report=print_line)
    after(plan, how, key, wait=flags["wait"], as_json=as_json)


KEY, STORE = "ENVIRONMENT_API_KEY", "TASKAPP_STORE"
STAYS = (
    "SYNTH_API_KEY",
    "DEV_ENVIRONMENT_API_KEY",
    "MODAL_",
    "TASKAPP_KEYS_FILE",
    "TASKAPP_MODEL_ALIASES",
    "TASKAPP_MODELS",
    "TASKAPP_VLLM",
    "TASKAPP_CACHE",
    "TASKAPP_HOST",
    "TASKAPP_PORT",
)
"""Prefixes of names that are not sent: keys that a container does not need, and paths and addresses of this machine."""


def ready(plan: modal_plans.DeployPlan, how: modal_run.DeployOptions, flags: dict[str, Any]) -> str | None:
    """Check that the name is free or ours, and make sure of the Secret; the key, where it is known here.

    Raises ModalRefused, ConfigError, Unavailable.
    """
    modal_account.require_client()
    apart = modal_container.why_not_shared(
        plan.coordinator, max_containers=plan.settings.max_containers, keeps=plan.settings.store == "postgres-secret"
    )
    if apart is not None:
        raise modal_account.ModalRefused(f"{plan.app_name!r} is not deployed: {apart}")
    for warning in plan.warnings:
        echo(f"Warning: {clean(warning)}", err=True)
    echo("Asking Modal about the app's name and its Secret ...", err=True)
    account = modal_account.look(plan.app_name, plan.secret_names, plan.required_keys, environment=how.environment)
    if account.owner == "others" and not flags["take_over"]:
        raise modal_account.ModalRefused(
            f"An app {plan.app_name!r} is deployed there already, and taskapp did not deploy it.",
            hint="Give another --name, or replace it with --take-over.",
        )
    _secrets(plan, how, flags, account)
    return load(env_files=flags["env_files"]).environment_api_key


def _secrets(
    plan: modal_plans.DeployPlan, how: modal_run.DeployOptions, flags: dict[str, Any], account: modal_account.Account
) -> None:
    """Make or update the app's own Secret where a flag says so. Raises ModalRefused: a Secret or key is missing."""
    own, lacking = plan.secret_names[-1], set(account.lacking)
    for name in account.missing:
        if name != own:
            raise modal_account.ModalRefused(
                f"There is no Secret {name!r} on Modal.", hint=f"Make it: modal secret create {name} --from-dotenv F"
            )
    missing = own in account.missing
    if missing and not flags["create_secret"]:
        raise modal_account.ModalRefused(
            f"There is no Secret {own!r} on Modal, which holds the keys ({', '.join(plan.required_keys)}).",
            hint="--create-secret makes it, from .env here or an --env-file F, with a new key where they have none.",
        )
    if missing or flags["update_secret"]:
        lacking = set(plan.required_keys) if missing else lacking
        values = secret_values(plan, flags["env_files"], mint=KEY in lacking)
        lacking -= set(values)
        if lacking and missing:
            raise modal_account.ModalRefused(
                f"The env files lack {', '.join(sorted(lacking))}, which the Secret {own!r} must hold.",
                hint="Add it to an --env-file.",
            )
        if not modal_account.make_secret(own, values, environment=how.environment, update=flags["update_secret"]):
            raise modal_account.ModalRefused(
                f"The Secret {own!r} was made by another process meanwhile, and is not changed.",
                hint="Run this again to use it.",
            )
        echo(f"Secret {own}: {'made' if missing else 'set'} {', '.join(sorted(values))}.", err=True)
    elif flags["create_secret"]:
        echo(f"Secret {own} exists and stays as it is; --update-secret sets keys in it.", err=True)
    if lacking:
        raise modal_account.ModalRefused(
            f"The Secret {own!r} on Modal lacks {', '.join(sorted(lacking))}.",
            hint="Add it with --update-secret and an env file that has it.",
        )


def after(
    plan: modal_plans.DeployPlan, how: modal_run.DeployOptions, key: str | None, *, wait: bool, as_json: bool
) -> None:
    """Print where the app is, once it answers there, and what to do next. Raises ModalRefused."""
    url = modal_account.address(plan.app_name, modal_settings.WEB_FUNCTION, environment=how.environment)
    deployed: dict[str, Any] = {"app_name": plan.app_name, "url": url, "environment": how.environment}
    if wait:
        deployed["smoke"] = look_at(plan, url, key)
    if as_json:
        print_json(deployed)
        return
    echo(
        f"\n{clean(plan.app_name)} answers at {clean(url)}" if wait else f"\n{clean(plan.app_name)} is at {clean(url)}"
    )
    echo(f"Next: taskapp rollout {clean(url)}   (its key as ENVIRONMENT_API_KEY)")


def look_at(plan: modal_plans.DeployPlan, url: str, key: str | None) -> dict[str, Any] | None:
    """Wait for /health, then play one short rollout, reported on stderr. None without the key. Raises ModalRefused."""
    echo(f"Waiting for {clean(url)}/health ...", err=True)
    seconds = float(plan.settings.startup_timeout_seconds or 0) + 60.0
    last: list[str] = []

    def report_progress(text: str) -> None:
        if last != [text]:
            echo(clean(text), err=True)
        last[:] = [text]

    known = blocking_portal.run(modal_check.healthy(url, key, seconds=seconds, report=report_progress))
    if key is None or not known:
        why = "The key here is not the one in the Secret" if key else "It answers; its key is not known here"
        echo(f"{why}, so no rollout was tried. Give --env-file, or ENVIRONMENT_API_KEY.", err=True)
        return None
    rehearsal = plan.rehearsal
    if rehearsal is None or not rehearsal.policy:
        why = (
            "Without a rehearsal no policy is known"
            if rehearsal is None
            else "No policy of the app plays without a model"
        )
        echo(f"It answers. {why}, so no rollout was tried.", err=True)
        return None
    smoke = blocking_portal.run(
        modal_check.smoke(
            url,
            key,
            rehearsal.policy,
            environment=rehearsal.environment,
            seed=rehearsal.seed,
            seconds=float(plan.settings.timeout_seconds or 0),
        )
    )
    reward = "no reward" if smoke.reward is None else f"reward {smoke.reward:.6g}"
    echo(f"One rollout with policy {smoke.policy}: {smoke.steps} steps, {reward}, {smoke.seconds:.1f} s.", err=True)
    return {"policy": smoke.policy, "reward": smoke.reward, "steps": smoke.steps, "seconds": round(smoke.seconds, 3)}


def end_on_signals() -> None:
    """Let a closed terminal and SIGTERM end a command as Ctrl-C does: what Modal runs for it is then stopped."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup asks to ignore one
            signal.signal(number, signal.default_int_handler)


def print_line(line: str) -> None:
    """A line of Modal's, on stderr."""
    echo(clean(line), err=True)


def secret_values(plan: modal_plans.DeployPlan, env_files: Sequence[str], *, mint: bool) -> dict[str, str]:
    """The values for the Secret, from the env files; without --env-file from `.env` here.

    mint: an ENVIRONMENT_API_KEY that neither they nor the process environment have is made, and written into the last
    env file, mode 600, before it goes anywhere: Modal never shows it again. It is not printed.

    Raises ConfigError: an env file cannot be read or written, or TASKAPP_STORE names no Postgres.
    """
    key = load(env_files=env_files).environment_api_key  # and each file can be read
    files = [Path(name) for name in env_files] or [Path(".env")]
    values: dict[str, str] = {}
    for path in files:
        if path.is_file():
            values |= {name: value or "" for name, value in dotenv.dotenv_values(path, interpolate=False).items()}
    values = {name: value for name, value in values.items() if value and not name.startswith(STAYS)}
    if plan.settings.store == "none":
        values.pop(STORE, None)
    elif not values.get(STORE, "postgresql://").startswith(("postgresql://", "postgres://", "postgresql+")):
        raise ConfigError(
            f"{STORE} in the env file names no Postgres; a file on this machine is not there.",
            hint="Give the address of a database (postgresql://...), or --store none.",
        )
    if mint and KEY not in values:
        values[KEY] = key or secrets.token_hex(32)
        if key is None:
            env_file.write(files[-1], {KEY: values[KEY]})
            echo(f"{KEY} was made and written to {files[-1]} (mode 600); it is shown nowhere.", err=True)
    return values
