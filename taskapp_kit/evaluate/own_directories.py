"""Records of the evaluation directories that this user made on this machine, in the user's state directory.

The config.json of a directory names an app, addresses and models, which another person may have chosen. So its app is only
imported, and keys are only sent to its addresses, if the record of the same path contains the same values.
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
    """Record that this user evaluates here, with this app and these addresses. Raises OSError.

    config: the configuration of the running command, not a configuration that it read from the directory.
    """
    place = _record_of(directory)
    make_private_folder(place.parent)
    write_durable(place, orjson.dumps(_recorded(directory, config)))


def is_own(directory: Path, config: Mapping[str, Any]) -> bool:
    """Whether this user made the directory here, and its config.json still names the same app, addresses and models."""
    try:
        recorded = orjson.loads(_record_of(directory).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return False
    return bool(recorded == orjson.loads(orjson.dumps(_recorded(directory, config))))


def check_own(directory: Path, config: Mapping[str, Any], command: list[str]) -> None:
    """Raise ConfigError unless the directory `is_own`.

    command: the command for the hint, in which the user names the app and the addresses.
    """
    if is_own(directory, config):
        return
    named = [config.get("app_reference"), config.get("options", {}).get("url")]
    words = " and ".join(str(name) for name in named if name)
    raise ConfigError(
        f"You did not create {directory} on this machine, so its app was not imported and its addresses got no key"
        f"{f': {words}' if words else ''}.",
        hint=f"If you trust it, name them yourself: {shlex.join(command)}",
    )


def model_addresses(config: Mapping[str, Any]) -> list[str]:
    """Return the models' addresses in a directory's `config.json`, without the models of models.toml."""
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
    """Return the path of a directory's record. Raises OSError without a state directory that only this user can write."""
    chosen = Path(process_variable(STATE_HOME) or "")
    try:
        state = chosen if chosen.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:  # no HOME, and a user without an entry
        raise FileNotFoundError(errno.ENOENT, "no home directory") from None
    for folder in (state / "taskapp-kit", state / "taskapp-kit" / "evaluations"):
        if folder.exists() and (folder.stat().st_uid != os.geteuid() or folder.stat().st_mode & OTHERS_WRITE):
            raise PermissionError(errno.EPERM, "other users may write it")
    name = hashlib.sha256(bytes(directory.resolve())).hexdigest()[:32]
    return state / "taskapp-kit" / "evaluations" / f"{name}.json"


def _recorded(directory: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a directory may later decide because it was decided here: code, addresses and models."""
    options = config.get("options", {})
    return {
        "directory": str(directory.resolve()),
        "app": config.get("app_reference"),
        **{name: options.get(name) for name in ("url", "store", "cache", "models", "environment")},
        "policies": dict(stored_policies(config["asked"])),
    }
