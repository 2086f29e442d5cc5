"""The flags of `deploy` and `modal-serve`, and the plan that they and the app's own declarations give."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli.options import env_files_option, options
from taskapp_kit.config import load
from taskapp_kit.deploy.modal import declared_requirements
from taskapp_kit.deploy.modal import plan as modal_plans
from taskapp_kit.deploy.modal import settings as modal_settings
from taskapp_kit.deploy.packaging import source_files
from taskapp_kit.deploy.tunnel.settings import on_loopback
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
