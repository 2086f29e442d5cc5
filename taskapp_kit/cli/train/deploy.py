"""`taskapp deploy`: deploy an app and its Secret to Modal, and play one rollout to check the deployment.

`modal-serve` uses the same flags, plan and steps.
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
    click.option("--name", "app_name", metavar="N", help="Name of the Modal app.  [default: APP's name]"),
    click.option("--env", "-e", "modal_environment", metavar="E", help="Modal environment.  [default: the account's]"),
    env_files_option("Keys for the Secret; later files take precedence."),
    click.option("--create-secret", is_flag=True, help="Create the Secret from the env files if it does not exist."),
    click.option("--update-secret", is_flag=True, help="Set the env files' keys in the existing Secret."),
    click.option("--take-over", is_flag=True, help="Replace an app of this name that taskapp did not deploy."),
    click.option(
        "--store",
        type=click.Choice(["postgres-secret", "none"]),
        help="Store rollouts in the database of TASKAPP_STORE in the Secret, or not at all.  [default: none]",
    ),
    click.option("--secret", "secret_name", metavar="S", help="Name of the Secret.  [default: N-env]"),
    click.option("--extra-secret", "extra_secrets", multiple=True, metavar="S", help="An additional Secret."),
    click.option("--cpu", type=float, metavar="CORES", help="Reserved cores."),
    click.option("--memory", "memory_mib", type=_COUNT, metavar="MIB", help="Reserved memory, in MiB."),
    click.option("--region", multiple=True, metavar="R", help="Run containers only in this region, at a higher price."),
    click.option("--min-containers", type=click.IntRange(0), metavar="N", help="Containers that run even if idle."),
    click.option("--max-containers", type=_COUNT, metavar="N", help="Maximum number of containers."),
    click.option("--buffer-containers", type=click.IntRange(0), metavar="N", help="Extra idle containers under load."),
    click.option(
        "--scaledown-window",
        "scaledown_window_seconds",
        type=_COUNT,
        metavar="T",
        help="How long an idle container keeps running, in seconds.",
    ),
    click.option("--timeout", "timeout_seconds", type=_COUNT, metavar="T", help="Longest request, in seconds."),
    click.option(
        "--startup-timeout", "startup_timeout_seconds", type=_COUNT, metavar="T", help="Longest startup, in seconds."
    ),
    click.option("--max-inputs", type=_COUNT, metavar="N", help="Maximum concurrent requests per container."),
    click.option("--target-inputs", type=_COUNT, metavar="N", help="Target concurrent requests per container."),
    click.option("--volume", multiple=True, metavar="DIR=NAME", help="A Modal Volume to mount at DIR."),
    click.option("--apt", "apt_packages", multiple=True, metavar="P", help="A Debian package to install."),
    click.option("--custom-domain", "custom_domains", multiple=True, metavar="D", help="A custom domain."),
    click.option("--memory-snapshot/--no-memory-snapshot", default=None, help="Start from a memory snapshot."),
    click.option("--no-rehearsal", is_flag=True, help="Do not import the app on this machine first."),
    click.option("--wait/--no-wait", default=True, help="Wait until the app responds, and play one rollout."),
)
"""The options of `deploy` and `modal-serve`."""


def settings_of(flags: dict[str, Any]) -> modal_settings.ModalSettings:
    """Return the settings that the flags set. Raises ConfigError or click.BadParameter if a flag's value is invalid."""
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
    """Return the plan of a deployment. The default name on Modal is the app's name.

    env_files: The files with the Secret's values. For each model address in them that only this machine can reach, the
    plan contains a warning.

    Raises DiscoveryError if the app cannot be loaded, and ConfigError if a setting is invalid.
    """
    here = Path.cwd()
    parsed = source_files.parse_target(source_files.resolve(app, beside=here))
    if parsed.kind == "file" and _is_entry(here / parsed.name):
        raise ConfigError(
            f"{parsed.name} is a file for the command `modal deploy`, not a task app.",
            hint=f"Run `modal deploy {parsed.name}`, or pass the app's file to this command.",
        )
    declared = declared_requirements.read_needs(parsed, beside=here).settings
    if said.app_name is None and declared.app_name is None:
        said = dataclasses.replace(said, app_name=_own_name(parsed, here))
    plan = modal_plans.make_plan(app, said, beside=here)
    return dataclasses.replace(plan, warnings=(*plan.warnings, *_unreachable(plan, env_files)))


def _unreachable(plan: modal_plans.DeployPlan, env_files: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each variable that sets a model's address to a loopback address."""
    settings = load(env_files=env_files)
    rehearsal = plan.rehearsal
    names = None if rehearsal is None or rehearsal.context else {*plan.required_keys, *rehearsal.optional}
    start, end = role_variable("{role}").split("{ROLE}")
    for name in sorted(settings.variables if names is None else names):
        url = settings.variable(name) if name.startswith(start) and name.endswith(end) else None
        if url and on_loopback(url):
            yield f"{name} is a loopback address, so the container cannot reach the model on this machine."


def _is_entry(path: Path) -> bool:
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    return "taskapp_kit.deploy.modal" in text and "TaskApp(" not in text


def _own_name(parsed: source_files.Target, here: Path) -> str:
    """Return the name of the package, the bundled app or the file. For `app.py`, return the directory's name."""
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
@click.option("--tag", default="", show_default=False, metavar="T", help="A label for this version, which Modal shows.")
@click.option(
    "--strategy",
    type=click.Choice(["rolling", "recreate"]),
    default="rolling",
    help="rolling lets old containers finish. recreate stops them first.",
)
@click.option("--dry-run", is_flag=True, help="Only show the plan and its cost. Needs no account.")
@json_option("Print the plan or the result as JSON.")
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

    The app's requirements and the settings in [tool.taskapp.modal] are read from its # /// script block or pyproject.toml.
    Flags take precedence. Before the deployment, the app is imported on this machine with only the packages that will be
    installed on Modal. Keys are passed only in a named Secret.
    """
    said = settings_of(flags)
    plan = planned(app, said, env_files=flags["env_files"])
    if dry_run:
        if as_json:
            print_json(deploy_output.plan_json(plan))
            return
        deploy_output.show_plan(plan)
        echo("\nNothing was sent to Modal. To deploy this plan, run the command without --dry-run.")
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
"""Prefixes of variables that are not sent to Modal.

Containers do not need these keys, and the paths and addresses are valid only on this machine.
"""


def ready(plan: modal_plans.DeployPlan, how: modal_run.DeployOptions, flags: dict[str, Any]) -> str | None:
    """Check the app's name and prepare its Secret. Return the app's key, or None if it is not known on this machine.

    Raises ModalRefused if the name is taken, or if a Secret or key is missing, ConfigError if an env file is invalid, and
    Unavailable if Modal's client is not installed.
    """
    modal_account.require_client()
    apart = modal_container.why_not_shared(
        plan.coordinator, max_containers=plan.settings.max_containers, keeps=plan.settings.store == "postgres-secret"
    )
    if apart is not None:
        raise modal_account.ModalRefused(f"{plan.app_name!r} was not deployed: {apart}")
    for warning in plan.warnings:
        echo(f"Warning: {clean(warning)}", err=True)
    echo("Checking the app's name and its Secret on Modal ...", err=True)
    account = modal_account.look(plan.app_name, plan.secret_names, plan.required_keys, environment=how.environment)
    if account.owner == "others" and not flags["take_over"]:
        raise modal_account.ModalRefused(
            f"The name {plan.app_name!r} belongs to an app on Modal that taskapp did not deploy.",
            hint="Choose another --name, or replace the app with --take-over.",
        )
    _secrets(plan, how, flags, account)
    return load(env_files=flags["env_files"]).environment_api_key


def _secrets(
    plan: modal_plans.DeployPlan, how: modal_run.DeployOptions, flags: dict[str, Any], account: modal_account.Account
) -> None:
    """Create or update the app's own Secret if a flag requests it. Raises ModalRefused if a Secret or key is missing."""
    own, lacking = plan.secret_names[-1], set(account.lacking)
    for name in account.missing:
        if name != own:
            raise modal_account.ModalRefused(
                f"The Secret {name!r} does not exist on Modal.",
                hint=f"Run: modal secret create {name} --from-dotenv FILE",
            )
    missing = own in account.missing
    if missing and not flags["create_secret"]:
        raise modal_account.ModalRefused(
            f"The Secret {own!r}, which must contain {', '.join(plan.required_keys)}, does not exist on Modal.",
            hint="Pass --create-secret to create it from .env or --env-file FILE, with a new key if they contain none.",
        )
    if missing or flags["update_secret"]:
        lacking = set(plan.required_keys) if missing else lacking
        values = secret_values(plan, flags["env_files"], mint=KEY in lacking)
        lacking -= set(values)
        if lacking and missing:
            raise modal_account.ModalRefused(
                f"The env files do not set {', '.join(sorted(lacking))}, which the Secret {own!r} needs.",
                hint="Add the missing variables to an --env-file.",
            )
        if not modal_account.make_secret(own, values, environment=how.environment, update=flags["update_secret"]):
            raise modal_account.ModalRefused(
                f"Another process has just created the Secret {own!r}, so this command did not change it.",
                hint="To use the Secret, run the command again.",
            )
        echo(f"{'Created' if missing else 'Updated'} the Secret {own} with {', '.join(sorted(values))}.", err=True)
    elif flags["create_secret"]:
        echo(f"Secret {own} already exists and was not changed. To add keys to it, pass --update-secret.", err=True)
    if lacking:
        raise modal_account.ModalRefused(
            f"The Secret {own!r} on Modal does not contain {', '.join(sorted(lacking))}.",
            hint="Add the missing variables to an env file, and pass --update-secret.",
        )


def after(
    plan: modal_plans.DeployPlan, how: modal_run.DeployOptions, key: str | None, *, wait: bool, as_json: bool
) -> None:
    """Print the app's address and the next command. With `wait`, first wait until the app responds.

    Raises ModalRefused if Modal does not return the address, the app does not respond, or its first rollout fails.
    """
    url = modal_account.address(plan.app_name, modal_settings.WEB_FUNCTION, environment=how.environment)
    deployed: dict[str, Any] = {"app_name": plan.app_name, "url": url, "environment": how.environment}
    if wait:
        deployed["smoke"] = look_at(plan, url, key)
    if as_json:
        print_json(deployed)
        return
    echo(f"\n{clean(plan.app_name)} {'responds' if wait else 'is'} at {clean(url)}")
    echo(f"Next: taskapp rollout {clean(url)}   (with the app's key in ENVIRONMENT_API_KEY)")


def look_at(plan: modal_plans.DeployPlan, url: str, key: str | None) -> dict[str, Any] | None:
    """Wait for /health, play one short rollout, and return its result. Return None if no key or no policy is known.

    Raises ModalRefused if the app does not respond or the rollout fails.
    """
    echo(f"Waiting for {clean(url)}/health ...", err=True)
    seconds = float(plan.settings.startup_timeout_seconds or 0) + 60.0
    last: list[str] = []

    def report_progress(text: str) -> None:
        if last != [text]:
            echo(clean(text), err=True)
        last[:] = [text]

    known = blocking_portal.run(modal_check.healthy(url, key, seconds=seconds, report=report_progress))
    if key is None or not known:
        why = "the key on this machine is not the key in the Secret" if key else "its key is not known"
        echo(
            f"The app responds. No rollout was played, because {why}. Pass --env-file or ENVIRONMENT_API_KEY.", err=True
        )
        return None
    rehearsal = plan.rehearsal
    if rehearsal is None or not rehearsal.policy:
        why = "--no-rehearsal leaves its policies unknown" if rehearsal is None else "every policy needs a model"
        echo(f"The app responds. No rollout was played, because {why}.", err=True)
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
    """Make SIGTERM and SIGHUP act like Ctrl-C, so that the command stops everything on Modal before it ends."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # with nohup, SIGHUP is ignored and must stay so
            signal.signal(number, signal.default_int_handler)


def print_line(line: str) -> None:
    """Print a line of the Modal client's output on stderr."""
    echo(line, err=True)


def secret_values(plan: modal_plans.DeployPlan, env_files: Sequence[str], *, mint: bool) -> dict[str, str]:
    """Return the values for the Secret from the env files, or from `.env` if `env_files` is empty.

    If `mint` is true and neither the files nor the process environment set ENVIRONMENT_API_KEY, a key is created and
    written to the last env file, because Modal never shows the key again. The file then has mode 600. The key is not
    printed.

    Raises ConfigError if an env file cannot be read or written, or if TASKAPP_STORE is not a Postgres address.
    """
    key = load(env_files=env_files).environment_api_key  # raises ConfigError if a file cannot be read
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
            f"{STORE} in the env file is not a Postgres address. Containers cannot use a file on this machine.",
            hint="Set it to the address of a database (postgresql://...), or pass --store none.",
        )
    if mint and KEY not in values:
        values[KEY] = key or secrets.token_hex(32)
        if key is None:
            env_file.write(files[-1], {KEY: values[KEY]})
            echo(f"Created {KEY} and wrote it to {files[-1]} (mode 600).", err=True)
    return values
