"""Records in the user's state directory which evaluation directories this user created on this machine.

The config.json in a directory names an app, addresses and models. Another person may have written it. So the app is only
imported, and API keys are only sent to the addresses, if this user's record for the same path has the same values.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from taskapp_kit.config import process_variable
from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.plan import stored_policies
from taskapp_kit.system.private_files import make_private_folder, write_durable

OTHERS_WRITE = 0o022
STATE_HOME = "XDG_STATE_HOME"


def remember(directory: Path, config: Mapping[str, Any]) -> None:
    """Record that this user runs the evaluation in `directory`, with the app and the addresses in `config`.

    config: The configuration of the running command. Never pass a configuration that was read from the directory.

    Raises OSError if the record cannot be written.
    """
    place = _record_of(directory)
    make_private_folder(place.parent)
    write_durable(place, orjson.dumps(_recorded(directory, config)))


def is_own(directory: Path, config: Mapping[str, Any]) -> bool:
    """Return whether this user created the directory on this machine, with the app, addresses and models of `config`."""
    try:
        recorded = orjson.loads(_record_of(directory).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return False
    return bool(recorded == orjson.loads(orjson.dumps(_recorded(directory, config))))


def check_own(directory: Path, config: Mapping[str, Any], command: list[str]) -> None:
    """Raise ConfigError if `is_own` is false for the directory.

    command: The command that the hint shows. Its arguments are the app and the addresses.
    """
    if is_own(directory, config):
        return
    named = [config.get("app_reference"), config.get("options", {}).get("url")]
    words = " and ".join(str(name) for name in named if name)
    raise ConfigError(
        f"You did not create {directory} on this machine with its current config.json, so its app was not imported and "
        f"no API key was sent to its addresses{f' (the config names {words})' if words else ''}.",
        hint=f"If you trust the app and the addresses, pass them in the command: {shlex.join(command)}",
    )


def model_addresses(config: Mapping[str, Any]) -> list[str]:
    """Return the addresses of models in an evaluation's configuration, except models from models.toml."""
    aliases = config.get("options", {}).get("models", {})
    policies = stored_policies(config["asked"]).items()
    return list(
        dict.fromkeys(url for name, policy in policies if name not in aliases and (url := policy.get("inference_url")))
    )


def policy_flags(config: Mapping[str, Any]) -> list[str]:
    """Return the options of `taskapp eval` that select an evaluation's policies."""
    aliases = config.get("options", {}).get("models", {})
    flags: list[str] = []
    for name, policy in stored_policies(config["asked"]).items():
        for option, value in (
            ("--policy", policy.get("policy")),
            ("--model", aliases.get(name) or policy.get("model")),
            ("--inference-url", None if name in aliases else policy.get("inference_url")),
            ("--action", policy.get("action")),
        ):
            if value is not None:
                flags += [option, value if isinstance(value, str) else orjson.dumps(value).decode()]
    return flags


def _record_of(directory: Path) -> Path:
    """Return the path of a directory's record. Raises OSError if other users can write to the state directory."""
    chosen = Path(process_variable(STATE_HOME) or "")
    try:
        state = chosen if chosen.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:  # HOME is not set, and the user has no entry in the user database
        raise FileNotFoundError(errno.ENOENT, "no home directory") from None
    for folder in (state / "taskapp-kit", state / "taskapp-kit" / "evaluations"):
        if folder.exists() and (folder.stat().st_uid != os.geteuid() or folder.stat().st_mode & OTHERS_WRITE):
            raise PermissionError(errno.EPERM, "other users can write to it")
    name = hashlib.sha256(bytes(directory.resolve())).hexdigest()[:32]
    return state / "taskapp-kit" / "evaluations" / f"{name}.json"


def _recorded(directory: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a directory's `config.json` must equal to be trusted: the app, addresses and models."""
    options = config.get("options", {})
    return {
        "directory": str(directory.resolve()),
        "app": config.get("app_reference"),
        **{name: options.get(name) for name in ("url", "store", "cache", "models", "environment")},
        "policies": dict(stored_policies(config["asked"])),
    }
