"""Creates methods with annotated parameters for tools that another library describes with JSON Schema.

The policy sees the schemas of the parameters with references resolved. Values are checked and converted with Python
types that cover `type`, `enum`, `const`, `anyOf`, bounds and lengths. Other constraints of a schema, such as patterns
and fields of nested objects, are only checked by the server that receives the value.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Annotated, Any, Literal, Union

from pydantic import Field, WithJsonSchema

from taskapp_kit.declare.marks import action
from taskapp_kit.interop.class_parts import ClassParts
from taskapp_kit.records.content import Json
from taskapp_kit.records.json_schema import Schema, read_schema, referenced

SIMPLE = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None, "array": list[Any]}
LIMITS = {
    "minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt",
    "minLength": "min_length", "maxLength": "max_length", "minItems": "min_length", "maxItems": "max_length",
}  # fmt: skip
"""Maps keywords of JSON Schema to their names in pydantic."""
LIMITED = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "array": ("minItems", "maxItems"),
}
HIDDEN_KEYWORDS = ("title", "discriminator", "$defs", "definitions")
"""Keywords that are generated, or that only references need."""

Sample = Callable[..., Mapping[str, Any]]
"""`fn(rng) -> arguments`, which samples the arguments of a tool for the policy `random`."""
Call = Callable[[Any, dict[str, Json]], Any]
"""Performs an action, given the environment and the policy's arguments, and returns the result."""


def tool_method(
    parts: ClassParts,
    name: str,
    description: str,
    schema: Mapping[str, Any],
    call: Call,
    *,
    left_out: Sequence[str] = (),
    noop: Mapping[str, Any] | None = None,
    sample: Callable[..., Any] | None = None,
) -> Any:
    """Return a method for the class that `parts` creates, marked as the action `name`.

    schema: a JSON Schema of the arguments, with type object. left_out: arguments that the policy does not pass. If the
    policy omits an optional argument without a default, `call` does not receive it. Raises DeclarationError if the
    schema does not describe an object, or an argument's name is not a valid parameter name.
    """
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping) or schema.get("type", "object") != "object":
        raise parts.wrong(
            f"of {parts.name}: the arguments of {name!r} have a schema that does not describe an object",
            "a JSON Schema of an object",
            "change the schema where the tool is declared",
        )
    required = schema.get("required", ())
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    absent = set()
    for field, part in properties.items():
        if field in left_out:
            continue
        if not field.isidentifier() or keyword.iskeyword(field):
            raise parts.wrong(
                f"of {parts.name}: {name!r} has an argument named {field!r}",
                "a valid Python parameter name",
                "rename the argument where the tool is declared",
            )
        shown = resolved(part, schema)
        default: Any = inspect.Parameter.empty
        if field not in required:
            default = shown.get("default")
            if "default" not in shown:
                absent.add(field)
        annotation: Any = Annotated[type_of_schema(read_schema(shown)), WithJsonSchema(shown)]
        parameters.append(
            inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )

    def called(self: Any, **arguments: Any) -> Any:
        return call(self, {key: value for key, value in arguments.items() if not (value is None and key in absent)})

    file, line = parts.place
    code = called.__code__.replace(co_filename=file, co_firstlineno=line)
    method: Any = FunctionType(code, called.__globals__, name, None, called.__closure__)
    method.__kwdefaults__ = None
    method.__doc__ = description
    method.__annotations__ = {item.name: item.annotation for item in parameters[1:]}
    method.__signature__ = inspect.Signature(parameters)
    return action(name=name, noop=noop, sample=sample)(method)


def tool_methods(
    parts: ClassParts,
    tools: Iterable[Mapping[str, Any]],
    send: Callable[[Any, str, dict[str, Json]], Any],
    sample: Mapping[str, Sample],
) -> dict[str, Any]:
    """Return a method for each tool of another library. Raises DeclarationError if a tool's arguments are invalid.

    send: `fn(self, tool, arguments)`, which calls the tool. sample: maps a tool's name to the sampler of its arguments.
    """
    methods = {}
    for index, tool in enumerate(tools):
        name = str(tool["name"])

        def call(self: Any, arguments: dict[str, Json], name: str = name) -> Any:
            return send(self, name, arguments)

        about = str(tool.get("description") or f"Call {name}.")
        schema = tool.get("input_schema") or {}
        methods[f"tool_{index}"] = tool_method(parts, name, about, schema, call, sample=sample.get(name))
    return methods


def resolved(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the references in a schema with their targets.

    A schema that contains itself is replaced with a schema that accepts any JSON.

    root: the document that contains the targets.
    """
    shown: dict[str, Any] = _resolved(schema, root, ())
    return shown if isinstance(shown, dict) else {}


def _resolved(schema: Any, root: Mapping[str, Any], within: tuple[str, ...], names: bool = False) -> Any:
    """Resolve a schema.

    within: the enclosing references. names: whether the keys are field names instead of keywords.
    """
    if isinstance(schema, list):
        return [_resolved(item, root, within) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    reference = None if names else schema.get("$ref")
    if isinstance(reference, str):
        if reference in within:
            return {}
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        target = referenced(reference, root)
        return {**_resolved(target, root, (*within, reference)), **_resolved(siblings, root, within)}
    return {
        key: value
        if key in ("default", "const", "enum", "examples") and not names
        else _resolved(value, root, within, names=key == "properties" and not names)
        for key, value in schema.items()
        if names or key not in HIDDEN_KEYWORDS
    }


def type_of_schema(schema: Schema) -> Any:
    """Return the Python type of a schema's values, or Any if no type corresponds to the schema."""
    if schema.choices:
        simple = all(type(value) in (str, int, bool, type(None)) for value in schema.choices)
        return Literal[tuple(schema.choices)] if simple else Any
    if schema.branches:
        types = [type_of_schema(branch) for branch in schema.branches]
        return Any if Any in types else Union[tuple(types)]  # noqa: UP007 — the types are only known at run time
    kind = schema.kind
    if kind == "object":
        return dict[str, Any]
    if kind not in SIMPLE:
        return Any
    annotation: Any = SIMPLE[kind]
    if kind == "array" and "items" in schema.keywords and not schema.first_items:
        annotation = list[type_of_schema(schema.items)]  # type: ignore[misc]
    limits = {
        LIMITS[keyword]: schema.keywords[keyword]
        for keyword in LIMITED.get(kind, ())
        if isinstance(schema.keywords.get(keyword), int | float) and not isinstance(schema.keywords[keyword], bool)
    }
    return Annotated[annotation, Field(**limits)] if limits else annotation
