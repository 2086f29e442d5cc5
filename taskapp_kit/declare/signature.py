"""JSON Schemas and argument parsers from Python signatures.

The parser accepts mistakes that models often make, such as "2" for 2. It rejects values where a conversion would hide
an error, such as a bool for an int. pydantic is imported at first use, so that `import taskapp_kit` is fast.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from taskapp_kit.records.content import Json

if TYPE_CHECKING:
    import asyncio


class BadArguments(ValueError):
    """Arguments are invalid. `fields` contains (path, message) pairs, and str() is the message for a model."""

    def __init__(self, fields: list[tuple[tuple[str | int, ...], str]]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, path)) or 'arguments'}: {text}" for path, text in fields))
        self.fields = fields


class SignatureProblem(ValueError):
    """JSON Schema cannot describe a signature. The message names the parameter and what to write instead."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function. `default` is `inspect.Parameter.empty` if the parameter has no default."""

    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True)
class Arguments:
    """The JSON Schema and the parser of one function's arguments.

    Attributes:
        owner: Name of the function, for messages.
        parameters: The function's parameters.
        whole: Whether the arguments are the fields of the only parameter, as in `step(self, action: Model)`.
    """

    owner: str
    parameters: tuple[Parameter, ...]
    whole: bool = False

    @cached_property
    def _adapter(self) -> Any:
        """The pydantic adapter. Its fields have neutral names, because a parameter may be named `copy` or `schema`."""
        import pydantic
        from pydantic.fields import FieldInfo

        if self.whole:
            return pydantic.TypeAdapter(self.parameters[0].annotation)
        fields: dict[str, Any] = {}
        for index, item in enumerate(self.parameters):
            annotation, default = item.annotation, item.default
            if isinstance(default, FieldInfo):  # `amount: int = Field(1, ge=1)`
                annotation, default = typing.Annotated[annotation, default], inspect.Parameter.empty
            options = {} if default is inspect.Parameter.empty else {"default": default}
            fields[f"a{index}"] = (annotation, pydantic.Field(alias=item.name, **options))
        config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False, coerce_numbers_to_str=True)
        return pydantic.TypeAdapter(pydantic.create_model(self.owner, __config__=config, **fields))

    @cached_property
    def schema(self) -> Mapping[str, Json]:
        """JSON Schema of an object with one property for each parameter.

        Raises:
            SignatureProblem: JSON cannot represent a parameter.
        """
        try:
            schema = _without_titles(self._adapter.json_schema())
        except Exception as error:  # annotations are the author's code and may raise any exception
            lines = str(error).strip().splitlines() or [type(error).__name__]
            reason = lines[-1].strip() if lines[0].startswith("Error building") else lines[0]
            raise SignatureProblem(f"{self.owner} has a parameter that JSON cannot represent: {reason}") from error
        if self._closed:
            schema.setdefault("additionalProperties", False)
        return typing.cast("dict[str, Json]", schema)

    @cached_property
    def _closed(self) -> frozenset[str] | None:
        """The names that a `whole` model accepts, or None if the model itself configures how to treat extra fields."""
        annotation = self.parameters[0].annotation if self.whole else None
        fields = getattr(annotation, "model_fields", None)
        if fields is None or getattr(annotation, "model_config", {}).get("extra") is not None:
            return None
        return frozenset(
            name
            for key, info in fields.items()
            for name in (key, info.alias, info.validation_alias)
            if isinstance(name, str)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in order."""
        return tuple(item.name for item in self.parameters)

    @cached_property
    def _field_names(self) -> tuple[tuple[str, str], ...]:
        return tuple((item.name, f"a{index}") for index, item in enumerate(self.parameters))

    @cached_property
    def _validate(self) -> Callable[[Any], Any]:
        return typing.cast("Callable[[Any], Any]", self._adapter.validator.validate_python)

    def read(self, raw: Json) -> tuple[dict[str, Any], int]:
        """Return the parsed arguments and the number of values that were converted to another type.

        Raises:
            BadArguments: The arguments do not match the parameters.
        """
        if not isinstance(raw, Mapping):
            members = ", ".join(self.schema.get("properties", ())) or "no members"
            raise BadArguments([((), f"expected an object with {members}, got {type(raw).__name__}")])
        values: dict[str, Any] = raw if type(raw) is dict else dict(raw)
        if self.whole:
            return self._read_whole(values)
        coerced = 0
        try:
            model = self._validate(values)
        except ValueError:
            model, values, coerced = self._validated(values)
        fields = model.__dict__
        result: dict[str, Any] = {}
        for name, member in self._field_names:
            result[name] = read = fields[member]
            if name in values:
                value = values[name]
                kind = type(value)
                if kind is not type(read) or kind is list or kind is dict:
                    coerced += _conversions(value, read, (name,))
        return result, coerced

    def _read_whole(self, values: dict[str, Any]) -> tuple[dict[str, Any], int]:
        if self._closed is not None:
            unknown = [name for name in values if name not in self._closed]
            if unknown:
                raise BadArguments([((name,), "there is no such argument") for name in unknown])
        read, values, coerced = self._validated(values)
        return {self.parameters[0].name: read}, coerced + _conversions(values, read, ())

    def _validated(self, values: dict[str, Any]) -> tuple[Any, dict[str, Any], int]:
        """Return the validated object, the repaired values, and the number of repairs."""
        coerced = 0
        while True:
            try:
                return self._validate(values), values, coerced
            except ValueError as error:  # pydantic's ValidationError, without importing it here
                values, repaired = _repair_choices(values, error)
                coerced += repaired
                if not repaired or coerced > 1000:
                    raise BadArguments([(tuple(item["loc"]), _sentence(item)) for item in _errors(error)]) from None


def _errors(error: Any) -> list[dict[str, Any]]:
    """Return the errors of a pydantic ValidationError."""
    return typing.cast("list[dict[str, Any]]", error.errors(include_url=False))


def _sentence(item: Mapping[str, Any]) -> str:
    kind = item["type"]
    if kind == "extra_forbidden":
        return "there is no such argument"
    if kind == "missing":
        return "is missing"
    text = str(item["msg"])
    return f"{text[:1].lower()}{text[1:]}"


def _repair_choices(values: dict[str, Any], error: Any) -> tuple[dict[str, Any], int]:
    """Replace `"2"` with 2 if the choices are 1, 2 and 3, because pydantic compares choices exactly.

    Returns the new values and the number of replacements.
    """
    count = 0
    for item in _errors(error):
        value = item["input"]
        if item["type"] not in ("literal_error", "enum") or type(value) not in (str, int):
            continue
        expected = str(item["ctx"]["expected"])
        for choice in expected.replace(" or ", ", ").split(", "):
            literal: Any = choice[1:-1] if choice[:1] in ("'", '"') else _number(choice)
            if literal is not None and type(literal) is not type(value) and str(literal) == str(value).strip():
                repaired = _replaced(values, item["loc"], literal)
                if repaired is not None:
                    values, count = repaired, count + 1
                break
    return values, count


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
    return None  # the path contains a branch of a union, so no value is replaced


def _conversions(raw: Any, read: Any, path: tuple[str | int, ...]) -> int:
    """Return how many values were converted during parsing.

    Raises BadArguments if a bool was converted to a number or a str.
    """
    kind = type(raw)
    if kind is list:
        return _list_conversions(raw, read, path)
    if kind is dict:
        members = _members(read)
        if members is None:
            return 0
        in_order = list(members.values())  # the keys of dict[int, T] are also converted
        return sum(
            _conversions(value, members[key] if key in members else in_order[index], (*path, key))
            for index, (key, value) in enumerate(raw.items())
            if key in members or len(in_order) == len(raw)
        )
    if hasattr(type(read), "__members__"):  # choosing a member of an Enum by its value is not a conversion
        read = read.value
    if kind is type(read):
        return 0
    if kind is bool and isinstance(read, (int, float, str)):
        raise BadArguments([(path, f"expected {'words' if isinstance(read, str) else 'a number'}, got a boolean")])
    if kind is str:
        return 1 if isinstance(read, (int, float)) else 0
    if kind is float:
        return 1 if isinstance(read, (int, str)) else 0
    return int(kind is int and isinstance(read, (bool, str)))


def _list_conversions(raw: list[Any], read: Any, path: tuple[str | int, ...]) -> int:
    if isinstance(read, (list, tuple)) and len(raw) == len(read):
        return sum(_conversions(a, b, (*path, i)) for i, (a, b) in enumerate(zip(raw, read, strict=True)))
    bools = [index for index, item in enumerate(raw) if type(item) is bool]
    if bools and isinstance(read, (set, frozenset)) and not any(type(item) is bool for item in read):
        raise BadArguments([((*path, bools[0]), "expected a number, got a boolean")])
    return 0


def _members(read: Any) -> Mapping[str, Any] | None:
    """Return the fields of a parsed object under all names that a caller may use, or None if it has no fields."""
    if isinstance(read, dict):
        return read
    fields = getattr(type(read), "model_fields", None)
    if fields is not None:
        own = {name: getattr(read, name) for name in fields}
        return own | {info.alias: own[name] for name, info in fields.items() if info.alias is not None}
    names = getattr(type(read), "__dataclass_fields__", None)
    return None if names is None else {name: getattr(read, name) for name in names}


def _without_titles(schema: Any) -> Any:
    """Return the schema without the titles that pydantic generates. They repeat the names and cost tokens."""
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
    """Return the parameters of a function, with annotations resolved in its module.

    Raises:
        SignatureProblem: A parameter has no annotation, its annotation cannot be resolved, or it cannot be passed by
            name.
    """
    named = f"{getattr(function, '__qualname__', function)}()"
    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # an annotation is the author's code and may raise any exception
        raise SignatureProblem(f"{named} has an annotation that cannot be resolved: {error}") from error
    result = []
    for item in list(signature.parameters.values())[1 if skip_first else 0 :]:
        if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD):
            stars = "*" if item.kind is item.VAR_POSITIONAL else "**"
            raise SignatureProblem(f"{named} has the parameter {stars}{item.name}. Declare each parameter by name")
        if item.kind is item.POSITIONAL_ONLY:
            raise SignatureProblem(f"{named} has {item.name!r} as a positional-only parameter. Remove the / after it")
        if item.name not in hints:
            raise SignatureProblem(f"{named} has no annotation for {item.name!r}")
        result.append(Parameter(item.name, hints[item.name], item.default))
    return result


def needed_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters that have no default, except `self`."""
    parameters = inspect.signature(function).parameters
    return tuple(name for name in names_of(function) if parameters[name].default is inspect.Parameter.empty)


def names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters, except `self`."""
    names = tuple(inspect.signature(function).parameters)
    return names[1:] if names[:1] == ("self",) else names


def is_object(annotation: Any) -> bool:
    """Return whether values of this type are JSON objects: a pydantic model, a dataclass, a dict or a TypedDict."""
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


_DATA = frozenset({type(None), bool, int, float, str, dict, list, tuple})


def finished(returned: Any, runner: asyncio.Runner | None = None) -> Any:
    """Return the final result of an author's function, which may be async.

    An awaitable is awaited, the items of an async generator are collected in a list, and any other value is returned
    unchanged. Inspecting the value instead of the function also covers partials, lambdas and objects with an async
    `__call__`.

    Args:
        returned: The value that the function returned.
        runner: The runner whose event loop is used; by default, a new loop. With a runner, no event loop may be
            running in this thread.
    """
    if type(returned) in _DATA:
        return returned
    if not inspect.isasyncgen(returned) and not inspect.isawaitable(returned):
        return returned

    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def awaited() -> Any:
        return [item async for item in returned] if inspect.isasyncgen(returned) else await returned

    if runner is not None:
        return runner.run(awaited())
    if asyncio._get_running_loop() is None:
        return asyncio.run(awaited())
    with ThreadPoolExecutor(1, "taskapp-author-call") as thread:  # a thread runs one loop at a time
        return thread.submit(asyncio.run, awaited()).result()
