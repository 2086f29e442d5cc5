"""The wire protocols of other frameworks, in which a served app can be driven; and what their routes share.

A package beside this module that has a module `protocol` is one: nothing lists them, none imports another, and one is
imported only when it is served or asked about. Its `PROTOCOL` is a `WireProtocol`; without one, the protocol has a command
and no routes. An optional package that it needs is the extra of its name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request

from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import ConfigError, closest
from taskapp_kit.net.body import read_json
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.records.content import Json
from taskapp_kit.rollout.session import EnvironmentSession, SessionStep
from taskapp_kit.serve.route import RouteContext, WireProtocol
from taskapp_kit.serve.routes.sessions import described_episode

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


async def body_of(context: RouteContext, request: Request, *, required: bool = False) -> dict[str, Any]:
    """Return the JSON object of a request's body. Raises RequestError (422), RequestRefused (413, 408)."""
    return await read_json(request.scope, request.receive, context.settings.max_body_bytes, required=required)


def tools_of(environment: EnvironmentSpec, schema_name: str) -> list[dict[str, Json]]:
    """Return the actions as tools. schema_name: the member with the JSON Schema of the arguments."""
    return [
        {
            "name": action.name,
            "description": action.tool.description,
            schema_name: dict(action.tool.parameters),
        }
        for action in environment.actions.values()
    ]


def step_metadata(session: EnvironmentSession, step: SessionStep) -> dict[str, Json]:
    """Return what a protocol without members for it says of a step, as metadata."""
    last = step.steps[-1] if step.steps else None
    metadata: dict[str, Json] = {
        "rollout_id": session.rollout_id,
        "turn": step.turn,
        "reward_parts": dict(step.parts),
        "terminated": step.terminated,
        "truncated": step.truncated,
        "refused": None if last is None else last.refused,
        "info": {} if last is None else last.info,
    }
    if step.end is not None:
        metadata["episode"] = described_episode(step.end)
    return metadata


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
