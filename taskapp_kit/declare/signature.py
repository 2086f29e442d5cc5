"""A Python signature becomes a JSON Schema and a reader of arguments.

Lenient where models slip ("2" for 2), strict where leniency would lie (never a bool for an int). pydantic is imported at
the first use, so that `import taskapp_kit` stays quick.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from taskapp_kit.contract.content import Json


class BadArguments(ValueError):
    """Arguments do not fit. `fields` holds (path, sentence) pairs; str() is one sentence fit for a model to read."""

    def __init__(self, fields: list[tuple[tuple[str | int, ...], str]]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, path)) or 'arguments'}: {text}" for path, text in fields))
        self.fields = fields


class SignatureProblem(ValueError):
    """A signature cannot be described as JSON. The sentence says which parameter and what to write instead."""


@dataclass(frozen=True)
class Parameter:
    """One parameter: its annotation, and its default (`inspect.Parameter.empty` when there is none)."""

    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True)
class Arguments:
    """The arguments of one function, ready to be described and read."""

    owner: str
    parameters: tuple[Parameter, ...]

    @cached_property
    def _model(self) -> Any:
        import pydantic

        fields: dict[str, Any] = {
            item.name: (item.annotation, ... if item.default is inspect.Parameter.empty else item.default)
            for item in self.parameters
        }
        return pydantic.create_model(
            self.owner, __config__=pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
        )

    @cached_property
    def schema(self) -> Mapping[str, Json]:
        """JSON Schema of an object with one property for each parameter. Raises SignatureProblem."""
        import pydantic

        try:
            schema = self._model.model_json_schema()
        except (
            pydantic.errors.PydanticUserError,
            pydantic.errors.PydanticInvalidForJsonSchema,
            TypeError,
            NameError,
        ) as error:
            first = str(error).split("\n", 1)[0]
            raise SignatureProblem(f"{self.owner} has a parameter that JSON cannot carry: {first}") from error
        return typing.cast("dict[str, Json]", _without_titles(schema))

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in order."""
        return tuple(item.name for item in self.parameters)

    def read(self, given: Json) -> tuple[dict[str, Any], int]:
        """The arguments as Python values, and how many had to be converted. Raises BadArguments."""
        import pydantic

        if not isinstance(given, Mapping):
            raise BadArguments([((), f"expected an object with {self._wanted()}, got {type(given).__name__}")])
        values = dict(given)
        coerced = 0
        for _ in range(1 + len(values)):
            try:
                model = self._model.__pydantic_validator__.validate_python(values)
                break
            except pydantic.ValidationError as error:
                repaired = _repair_choices(values, error)
                if repaired is None:
                    raise BadArguments(
                        [(tuple(item["loc"]), _sentence(item)) for item in error.errors(include_url=False)]
                    ) from None
                values = repaired
                coerced += 1
        else:
            raise BadArguments([((), f"expected an object with {self._wanted()}")])
        result = model.__dict__
        for name, value in values.items():
            coerced += _conversions(value, result[name], (name,))
        return dict(result), coerced

    def _wanted(self) -> str:
        return ", ".join(self.names) or "no members"


def _sentence(item: Mapping[str, Any]) -> str:
    kind = item["type"]
    if kind == "extra_forbidden":
        return "there is no such argument"
    if kind == "missing":
        return "is missing"
    text = str(item["msg"])
    return f"{text[:1].lower()}{text[1:]}"


def _repair_choices(values: dict[str, Any], error: Any) -> dict[str, Any] | None:
    """`"2"` where the choices are 1, 2, 3: pydantic compares choices exactly, models do not. None when nothing helps."""
    for item in error.errors(include_url=False):
        if item["type"] not in ("literal_error", "enum") or not isinstance(item["input"], (str, int)):
            continue
        if isinstance(item["input"], bool):
            continue
        expected = str(item["ctx"]["expected"])
        for choice in expected.replace(" or ", ", ").split(", "):
            literal: Any = choice.strip("'") if choice.startswith("'") else _number(choice)
            if literal is not None and type(literal) is not type(item["input"]) and str(literal) == str(item["input"]):
                repaired = _replaced(values, item["loc"], literal)
                if repaired is not None:
                    return typing.cast("dict[str, Any]", repaired)
    return None


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _replaced(values: Any, path: tuple[str | int, ...], new: Any) -> Any:
    if not path:
        return new
    head, rest = path[0], path[1:]
    if isinstance(values, dict) and head in values:
        inner = _replaced(values[head], rest, new)
        return None if inner is None else {**values, head: inner}
    if isinstance(values, list) and isinstance(head, int) and head < len(values):
        inner = _replaced(values[head], rest, new)
        return None if inner is None else [*values[:head], inner, *values[head + 1 :]]
    return None  # the path runs through a union's branch; leave it to the error


def _conversions(given: Any, read: Any, path: tuple[str | int, ...]) -> int:
    """How many values changed their type on the way. Raises BadArguments for a bool that became a number or words."""
    kind = type(given)
    if kind is type(read):
        if kind is list and len(given) == len(read):
            return sum(_conversions(a, b, (*path, i)) for i, (a, b) in enumerate(zip(given, read, strict=True)))
        if kind is dict:
            return sum(_conversions(given[key], read[key], (*path, key)) for key in given if key in read)
        return 0
    if kind is bool and isinstance(read, (int, float)):
        raise BadArguments([(path, "expected a number, got a boolean")])
    if kind is str:
        return 1 if isinstance(read, (int, float)) else 0
    if kind is float and isinstance(read, int):
        return 1
    if kind is int and isinstance(read, bool):
        return 1
    if kind is dict and hasattr(read, "__dict__"):
        inner = read.__dict__
        return sum(_conversions(value, inner[key], (*path, key)) for key, value in given.items() if key in inner)
    if kind is list and isinstance(read, (tuple, list)) and len(given) == len(read):
        return sum(_conversions(a, b, (*path, i)) for i, (a, b) in enumerate(zip(given, read, strict=True)))
    return 0


def _without_titles(schema: Any) -> Any:
    """pydantic's generated titles repeat the names and cost tokens."""
    if isinstance(schema, dict):
        return {
            key: (
                {name: _without_titles(inner) for name, inner in value.items()}
                if key in ("properties", "$defs") and isinstance(value, dict)
                else _without_titles(value)
            )
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    return schema


def parameters_of(function: Callable[..., Any], *, skip_first: bool) -> list[Parameter]:
    """The parameters of a function, annotations resolved where it was written. Raises SignatureProblem.

    Every parameter needs an annotation and a name; `*args` and `**kwargs` have neither a schema nor a meaning here.
    """
    named = f"{function.__qualname__}()"
    signature = inspect.signature(function)
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise SignatureProblem(f"{named} has an annotation that cannot be resolved: {error}") from error
    found = list(signature.parameters.values())[1 if skip_first else 0 :]
    result = []
    for item in found:
        if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD):
            raise SignatureProblem(f"{named} takes *{item.name}; name each parameter")
        if item.kind is item.POSITIONAL_ONLY:
            raise SignatureProblem(f"{named} takes {item.name!r} by position only; arguments are given by name")
        if item.name not in hints:
            raise SignatureProblem(f"{named} has no annotation for {item.name!r}")
        result.append(Parameter(item.name, hints[item.name], item.default))
    return result


def names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's parameters, without `self`."""
    names = tuple(inspect.signature(function).parameters)
    return names[1:] if names[:1] == ("self",) else names


def is_object(annotation: Any) -> bool:
    """True when a value of this type is a JSON object on its own: a pydantic model, a dataclass, a dict, a TypedDict."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return is_object(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return False
    kind = origin or annotation
    if not isinstance(kind, type):
        return False
    return (
        issubclass(kind, Mapping)
        or hasattr(kind, "model_fields")
        or hasattr(kind, "__dataclass_fields__")
        or hasattr(kind, "__required_keys__")
    )
