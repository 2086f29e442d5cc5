"""Which evaluation directories this user made on this machine: a record outside of them, in the user's state directory.

A directory is data. Its config.json names an app, addresses and models; whoever made the directory chose them. So nothing
that it names is imported, and no key is sent to its addresses, unless the record of the same place names the same.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from taskapp_kit.config import process_variable
from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.plan import stored_policies
from taskapp_kit.system.private_files import make_private_folder, write_private

STATE_HOME = "XDG_STATE_HOME"


def remember(directory: Path, config: Mapping[str, Any]) -> None:
    """Record that this user evaluates here, with this app and these addresses. Raises OSError.

    config: the configuration that the running command computed, not one that it read from the directory.
    """
    place = _record_of(directory)
    make_private_folder(place.parent)
    waiting = place.with_suffix(f".{hashlib.sha256(str(directory).encode()).hexdigest()[:8]}.new")
    write_private(waiting, orjson.dumps(_recorded(directory, config)), flush_to_disk=True)
    waiting.replace(place)


def is_own(directory: Path, config: Mapping[str, Any]) -> bool:
    """Whether this user made the directory here, and its config.json still names the same app, addresses and models."""
    try:
        recorded = orjson.loads(_record_of(directory).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return False
    return bool(recorded == orjson.loads(orjson.dumps(_recorded(directory, config))))


def check_own(directory: Path, config: Mapping[str, Any], command: list[str]) -> None:
    """Raise ConfigError, with the whole command, unless the directory `is_own`.

    command: what does the same with the app and the addresses named by the user.
    """
    if is_own(directory, config):
        return
    named = [config.get("app_reference"), config.get("options", {}).get("url")]
    words = " and ".join(str(name) for name in named if name)
    raise ConfigError(
        f"{directory} was not made by you on this machine, so what it names was not imported and got no key"
        f"{f': {words}' if words else ''}.",
        hint=f"If you trust that, name it yourself: {shlex.join(command)}",
    )


def command_to_go_on(directory: Path, config: Mapping[str, Any]) -> list[str]:
    """The command that goes on with an evaluation and names everything that `eval DIR` would take from the directory."""
    asked, options = config["asked"], config.get("options", {})
    url, app = options.get("url"), config.get("app_reference")
    line = ["taskapp", "eval", str(url or app or "APP")]
    if url and app:
        line += ["--app-id", str(app)]
    line += policy_flags(config)
    for option, value in (
        ("--env", options.get("environment")),
        ("--split", asked.get("split")),
        ("--seeds", asked.get("seeds")),
        ("--repeats", asked.get("repeats")),
        ("--config", orjson.dumps(asked["config"]).decode() if asked.get("config") else None),
        ("--store", options.get("store")),
    ):
        if value is not None:
            line += [option, str(value)]
    return [*line, "--out", str(directory), "--resume"]


def policy_flags(config: Mapping[str, Any]) -> list[str]:
    """The options of `taskapp eval` that name an evaluation's policies."""
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
    chosen = Path(process_variable(STATE_HOME) or "")
    state = chosen if chosen.is_absolute() else Path.home() / ".local" / "state"
    name = hashlib.sha256(bytes(directory.resolve())).hexdigest()[:32]
    return state / "taskapp-kit" / "evaluations" / f"{name}.json"


def _recorded(directory: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a directory may decide later, because it was decided here: code, addresses, models."""
    options = config.get("options", {})
    return {
        "directory": str(directory.resolve()),
        "app": config.get("app_reference"),
        **{name: options.get(name) for name in ("url", "store", "cache", "models", "environment")},
        "policies": dict(stored_policies(config["asked"])),
    }
