"""The values of env files that go into a Secret on Modal; a missing task app key is made."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dotenv import dotenv_values

from taskapp_kit.cli import env_file
from taskapp_kit.cli.terminal import echo
from taskapp_kit.config import load
from taskapp_kit.errors import ConfigError

if TYPE_CHECKING:
    from taskapp_kit.deploy.modal.plan import DeployPlan


DOOR, STORE = "ENVIRONMENT_API_KEY", "TASKAPP_STORE"
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


def values_for(plan: DeployPlan, env_files: Sequence[str], *, mint: bool) -> dict[str, str]:
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
            values |= {name: value or "" for name, value in dotenv_values(path, interpolate=False).items()}
    values = {name: value for name, value in values.items() if value and not name.startswith(STAYS)}
    if plan.settings.store == "none":
        values.pop(STORE, None)
    elif not values.get(STORE, "postgresql://").startswith(("postgresql://", "postgres://", "postgresql+")):
        raise ConfigError(
            f"{STORE} in the env file names no Postgres; a file on this machine is not there.",
            hint="Give the address of a database (postgresql://...), or --store none.",
        )
    if mint and DOOR not in values:
        values[DOOR] = key or secrets.token_hex(32)
        if key is None:
            env_file.write(files[-1], {DOOR: values[DOOR]})
            echo(f"{DOOR} was made and written to {files[-1]} (mode 600); it is shown nowhere.", err=True)
    return values
