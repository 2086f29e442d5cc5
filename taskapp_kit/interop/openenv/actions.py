"""OpenEnv's actions as actions of an environment.

For an environment with one action, the fields of OpenEnv's action are its arguments. With several actions they are
`{"tool": NAME, "args": {…}}`. OpenEnv's own `{"type": "call_tool", "tool_name": NAME, "arguments": {…}}` and
`{"type": "list_tools"}` work for both.
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
"""A field of OpenEnv's actions for the client's own use. It is ignored."""


@dataclass(frozen=True, slots=True)
class OpenEnvAction:
    """An action. tool: None requests the list of tools. named: it was sent as OpenEnv's call-tool action."""

    tool: str | None
    args: Json = None
    named: bool = False


def read_action(environment: EnvironmentSpec, data: Mapping[str, Json]) -> OpenEnvAction:
    """Return the action of a step. Raises RequestError for unknown fields. The session checks values."""
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
    """Return the JSON Schema of an action's fields."""
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
            if definitions.setdefault(name, definition) != definition:  # two models with the same name
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
    """Return the JSON Schema of the arguments if the environment has one action."""
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
            f"The action is invalid: it has no field {unknown[0][:64]}; expected {', '.join(fields) or 'none'}.",
            fields=tuple(
                FieldProblem(("body", "action", name[:64]), "is not a field of the action", "extra_forbidden")
                for name in unknown[:10]
            ),
            hint="/schema describes the fields of an action.",
        )
