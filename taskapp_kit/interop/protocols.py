"""The wire protocols of other frameworks that an app can be served with, and helpers that their routes share.

A package next to this module is a protocol if it contains a module `protocol`, which is imported only when the protocol
is served or described. The module's `PROTOCOL` is a `WireProtocol`. A protocol without `PROTOCOL` has a command but no
routes. If a protocol needs an optional package, the kit's extra for the package has the protocol's name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request

from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import ConfigError, RequestError, closest
from taskapp_kit.net.body import read_json
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.records.content import Json
from taskapp_kit.rollout.session import EnvironmentSession, SessionStep
from taskapp_kit.serve.route import RouteContext, WireProtocol
from taskapp_kit.serve.routes.sessions import described_episode

ALL = "all"
READING = (404, 408, 413, 415, 422)
"""The error statuses for an unknown environment or an invalid body."""
ENVIRONMENT_PARAMETERS = ({"name": "environment", "in": "path", "required": True, "schema": {"type": "string"}},)
"""The OpenAPI description of the path parameter that names an environment."""
_PACKAGES = {"nemo": "nemo_gym"}
"""Maps each protocol whose package has a different name to that package."""
_DIRECTORY = Path(__file__).parent
_PARENT = __name__.rpartition(".")[0]


def protocol_names() -> list[str]:
    """Return the names of the protocols, sorted, without importing them."""
    names = {package: name for name, package in _PACKAGES.items()}
    packages = [module.name for module in pkgutil.iter_modules([str(_DIRECTORY)]) if module.ispkg]
    return sorted(names.get(name, name) for name in packages if (_DIRECTORY / name / "protocol.py").is_file())


def load_protocols(chosen: Sequence[str]) -> list[WireProtocol]:
    """Return the protocols with these names, without duplicates. `all` selects every protocol.

    Raises ConfigError if a name is unknown, a protocol has no routes, or a package that a protocol needs is not
    installed.
    """
    names = protocol_names()
    unknown = [name for name in chosen if name not in names and name != ALL]
    if unknown:
        meant = closest(unknown[0], [*names, ALL])
        raise ConfigError(
            f"The protocol {unknown[0][:80]!r} does not exist.",
            hint=f"Did you mean {meant!r}?" if meant else f"Choose from {', '.join(names)}, or {ALL}.",
        )
    if ALL in chosen:
        return [protocol for name in names if (protocol := _load(name)) is not None]
    return [_served(name) for name in dict.fromkeys(chosen)]


def environment_of_path(app: AppSpec, name: str) -> EnvironmentSpec:
    """Return the environment that a request's path names. Raises RequestRefused (404) if it does not exist."""
    environment = app.environments.get(name)
    if environment is None:
        names = ", ".join(app.environments)
        raise RequestRefused(
            "not_found", "The app has no environment with this name.", hint=f"The app's environments are {names}."
        )
    return environment


def check_environment(session: EnvironmentSession, environment: EnvironmentSpec, hint: str = "") -> None:
    """Raise RequestError if the session belongs to another environment."""
    if session.environment.name != environment.name:
        own, other = session.environment.name, environment.name
        raise RequestError(f"The session belongs to environment {own!r}, not to {other!r}.", hint=hint)


async def body_of(context: RouteContext, request: Request, *, required: bool = False) -> dict[str, Any]:
    """Return the JSON object in a request's body.

    Raises RequestError (422) if the body is not a JSON object, and RequestRefused if the body is late (408), too large
    (413), or has an unsupported type or encoding (415).
    """
    return await read_json(request.scope, request.receive, context.settings.max_body_bytes, required=required)


def tools_of(environment: EnvironmentSpec, schema_name: str) -> list[dict[str, Json]]:
    """Return the environment's actions as tools. schema_name: the name of the field for the arguments' JSON Schema."""
    return [
        {
            "name": action.name,
            "description": action.tool.description,
            schema_name: dict(action.tool.parameters),
        }
        for action in environment.actions.values()
    ]


def step_metadata(session: EnvironmentSession, step: SessionStep) -> dict[str, Json]:
    """Return the fields of a step that a protocol can only send as metadata."""
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
    protocol = _load(name)
    if protocol is None:
        raise ConfigError(
            f"The protocol {name!r} is not served over HTTP.",
            hint=f"Remove it from --protocols or TASKAPP_PROTOCOLS. `taskapp {name} --help` shows how to use it.",
        )
    return protocol


def _load(name: str) -> WireProtocol | None:
    """Import a protocol, or return None if it has a command but no routes.

    Raises ConfigError if a package is missing.
    """
    module = f"{_PARENT}.{_PACKAGES.get(name, name)}.protocol"
    try:
        protocol: WireProtocol | None = getattr(importlib.import_module(module), "PROTOCOL", None)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith(_PARENT):
            raise
        raise ConfigError(
            f"The protocol {name!r} needs the package {missing.name!r}, which is not installed.",
            hint=f"Install it: pip install 'taskapp-kit[{name}]'.",
        ) from None
    return protocol
