"""The flags of `deploy` and `modal-serve`, and the settings that they give."""

from __future__ import annotations

from typing import Any

import click

from taskapp_kit.cli.options import env_files_option, options
from taskapp_kit.deploy.modal.settings import ModalSettings

_LISTS = {"region": "region", "apt": "apt_packages", "custom_domain": "custom_domains", "extra_secret": "extra_secrets"}
_SETTINGS = {
    "name": "app_name",
    "store": "store",
    "secret": "secret_name",
    "cpu": "cpu",
    "memory": "memory_mib",
    "min_containers": "min_containers",
    "max_containers": "max_containers",
    "buffer_containers": "buffer_containers",
    "scaledown_window": "scaledown_window_seconds",
    "timeout": "timeout_seconds",
    "startup_timeout": "startup_timeout_seconds",
    "max_inputs": "max_inputs",
    "target_inputs": "target_inputs",
    "memory_snapshot": "memory_snapshot",
}
"""Flag (as Modal calls it) to the setting that it overrides."""


_COUNT = click.IntRange(1)
deploy_options = options(
    click.argument("app"),
    click.option("--name", metavar="N", help="Name of the Modal app.  [default: that of APP]"),
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
    click.option("--secret", metavar="S", help="Name of the Secret.  [default: N-env]"),
    click.option("--extra-secret", multiple=True, metavar="S", help="A further Secret."),
    click.option("--cpu", type=float, metavar="CORES", help="Cores reserved."),
    click.option("--memory", type=_COUNT, metavar="MIB", help="Memory reserved."),
    click.option("--region", multiple=True, metavar="R", help="Where containers may run; dearer than anywhere."),
    click.option("--min-containers", type=click.IntRange(0), metavar="N", help="Kept warm; costs money while idle."),
    click.option("--max-containers", type=_COUNT, metavar="N", help="At most."),
    click.option("--buffer-containers", type=click.IntRange(0), metavar="N", help="Started ahead of the load."),
    click.option("--scaledown-window", type=_COUNT, metavar="T", help="How long an idle container stays, in seconds."),
    click.option("--timeout", type=_COUNT, metavar="T", help="Longest request, in seconds."),
    click.option("--startup-timeout", type=_COUNT, metavar="T", help="Longest start, in seconds."),
    click.option("--max-inputs", type=_COUNT, metavar="N", help="Requests in one container at once."),
    click.option("--target-inputs", type=_COUNT, metavar="N", help="How many of them scaling aims at."),
    click.option("--volume", multiple=True, metavar="DIR=NAME", help="A Modal Volume at a folder."),
    click.option("--apt", multiple=True, metavar="P", help="A Debian package to install."),
    click.option("--custom-domain", multiple=True, metavar="D", help="A domain of your own."),
    click.option(
        "--memory-snapshot/--no-memory-snapshot",
        default=None,
        help="Start containers from a picture of memory.",
    ),
    click.option("--no-rehearsal", is_flag=True, help="Do not import the app here first."),
    click.option("--wait/--no-wait", default=True, help="Wait until it answers, and play one rollout."),
)
"""The options of `deploy` and `modal-serve`: the app's name and settings, its Secret, Modal's environment."""


def said_by(given: dict[str, Any]) -> ModalSettings:
    """What the flags say. Raises ConfigError, click.BadParameter."""
    said = {setting: given[flag] for flag, setting in _SETTINGS.items() if given[flag] is not None}
    said |= {setting: tuple(given[flag]) for flag, setting in _LISTS.items() if given[flag]}
    volumes = [text.partition("=") for text in given["volume"]]
    if any(not name for _, _, name in volumes):
        raise click.BadParameter("expected DIR=NAME, such as /data=my-volume.", param_hint="--volume")
    if volumes:
        said["volumes"] = {folder: name for folder, _, name in volumes}
    if given["no_rehearsal"]:
        said["rehearse"] = False
    return ModalSettings(**said)
