"""Converts OpenEnv's actions to actions of an environment.

If an environment has one action, the fields of OpenEnv's action are the arguments. If it has several, OpenEnv's action
is `{"tool": NAME, "args": {…}}`. In both cases, OpenEnv's `{"type": "call_tool", "tool_name": NAME, "arguments": {…}}`
and `{"type": "list_tools"}` also work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.records.content import Json
from taskapp_kit.wire.field_problems import invalid_member

METADATA = "metadata"
"""A field of OpenEnv's actions that clients may use for themselves. The server ignores it."""


@dataclass(frozen=True, slots=True)
class OpenEnvAction:
    """An action. tool: None requests the list of tools. named: whether it was sent as OpenEnv's call-tool action."""

    tool: str | None
    args: Json = None
    named: bool = False


def read_action(environment: EnvironmentSpec, data: Mapping[str, Json]) -> OpenEnvAction:
    """Parse the action in a step request. Raises RequestError for unknown fields. The session checks the values."""
    single = _only_parameters(environment)
    names = () if single is None else single.get("properties", {})
    if data.get("type") == "list_tools" and "type" not in names:
        _check_fields(data, ("type",))
        return OpenEnvAction(None)
    if data.get("type") == "call_tool" and "tool_name" not in names:
        _check_fields(data, ("type", "tool_name", "arguments"))
        return OpenEnvAction(_tool(data, "tool_name"), data.get("arguments", {}), named=True)
    if single is None or ("tool" in data and "tool" not in names):
        _check_fields(data, ("tool", "args"))
        return OpenEnvAction(_tool(data, "tool"), data.get("args", {}))
    if not single.get("additionalProperties"):
        _check_fields(data, tuple(names))
    args = {name: value for name, value in data.items() if name != METADATA or METADATA in names}
    return OpenEnvAction(next(iter(environment.actions)), args)


def action_schema(environment: EnvironmentSpec) -> dict[str, Json]:
    """Return the JSON Schema of the environment's actions."""
    metadata = {METADATA: {"type": "object", "description": "The client's own; nothing reads it."}}
    single = _only_parameters(environment)
    if single is not None:
        properties = {**metadata, **single.get("properties", {})}
        return {"type": "object", "additionalProperties": False, **single, "properties": properties}
    definitions: dict[str, Json] = {}
    forms = []
    for action in environment.actions.values():
        parameters = dict(action.tool.parameters)
        for name, definition in parameters.pop("$defs", {}).items():
            if definitions.setdefault(name, definition) != definition:  # two different models with the same name
                parameters = {"type": "object"}
        tool = {"const": action.name, "description": action.tool.description}
        forms.append({"properties": {"tool": tool, "args": parameters}})
    return {
        "type": "object",
        "properties": {"tool": {"enum": list(environment.actions)}, "args": {"type": "object"}, **metadata},
        "required": ["tool"],
        "additionalProperties": False,
        "oneOf": forms,
        **({"$defs": definitions} if definitions else {}),
    }


def _only_parameters(environment: EnvironmentSpec) -> Mapping[str, Any] | None:
    """Return the JSON Schema of the arguments if the environment has only one action, else None."""
    if len(environment.actions) != 1:
        return None
    return next(iter(environment.actions.values())).tool.parameters


def _tool(data: Mapping[str, Json], field: str) -> str:
    name = data.get(field)
    if not isinstance(name, str):
        message = "is missing" if field not in data else "should be a string"
        raise invalid_member("action", field, message, "action")
    return name


def _check_fields(data: Mapping[str, Json], fields: tuple[str, ...]) -> None:
    unknown = [name for name in data if name not in fields and name != METADATA]
    if unknown:
        raise RequestError(
            f"The action has an unknown field {unknown[0][:64]}; expected {', '.join(fields) or 'no fields'}.",
            fields=tuple(
                FieldProblem(("body", "action", name[:64]), "is not a field of the action", "extra_forbidden")
                for name in unknown[:10]
            ),
            hint="The response of /schema describes the fields of actions.",
        )
