"""The wire protocols of other frameworks, in which a served app can be driven.

A package beside this module that has a module `protocol` is one: nothing lists them, none imports another, and one is
imported only when it is served or asked about. Its `PROTOCOL` is a `WireProtocol`; without one, the protocol has a command
and no routes. An optional package that it needs is the extra of its name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path

from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import ConfigError, closest
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.serve.wire_protocol import WireProtocol

ALL = "all"
_PACKAGES = {"nemo": "nemo_gym"}
"""Protocols whose package has another name."""
_FOLDER = Path(__file__).parent
_PARENT = __name__.rpartition(".")[0]


def protocol_names() -> list[str]:
    """Return the names of the protocols, sorted. Imports none of them."""
    names = {package: name for name, package in _PACKAGES.items()}
    packages = [found.name for found in pkgutil.iter_modules([str(_FOLDER)]) if found.ispkg]
    return sorted(names.get(name, name) for name in packages if (_FOLDER / name / "protocol.py").is_file())


def load_protocols(chosen: Sequence[str]) -> list[WireProtocol]:
    """Return the protocols of these names, each once; `all` stands for every one.

    Raises ConfigError: there is no such protocol, or a package that it needs is not installed.
    """
    known = protocol_names()
    unknown = [name for name in chosen if name not in known and name != ALL]
    if unknown:
        meant = closest(unknown[0], [*known, ALL])
        raise ConfigError(
            f"There is no protocol {unknown[0][:80]!r}.",
            hint=f"Did you mean {meant!r}?" if meant else f"There are {', '.join(known)}, and {ALL} for every one.",
        )
    if ALL in chosen:
        return [found for name in known if (found := _load(name)) is not None]
    return [_served(name) for name in dict.fromkeys(chosen)]


def environment_of_path(app: AppSpec, name: str) -> EnvironmentSpec:
    """Return the environment that the path of a request names. Raises RequestRefused (404)."""
    environment = app.environments.get(name)
    if environment is None:
        names = ", ".join(app.environments)
        raise RequestRefused("not_found", "There is no environment of this name.", hint=f"There is {names}.")
    return environment


def _served(name: str) -> WireProtocol:
    found = _load(name)
    if found is None:
        raise ConfigError(
            f"The protocol {name!r} is not served over HTTP.",
            hint=f"Leave it out; `taskapp {name} --help` describes it.",
        )
    return found


def _load(name: str) -> WireProtocol | None:
    """Return the protocol; None for one that has a command of its own and no routes."""
    place = f"{_PARENT}.{_PACKAGES.get(name, name)}.protocol"
    try:
        found: WireProtocol | None = getattr(importlib.import_module(place), "PROTOCOL", None)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith(_PARENT):
            raise
        raise ConfigError(
            f"The protocol {name!r} needs the package {missing.name!r}, which is not installed.",
            hint=f"Install it: pip install 'taskapp-kit[{name}]'.",
        ) from None
    return found
