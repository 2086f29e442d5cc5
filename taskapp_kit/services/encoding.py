"""Encoding of services' arguments and results as JSON, without pickle. Types that JSON lacks are marked.

None, bool, int, float (including infinity and NaN), str, bytes, list, tuple, dict and dataclasses keep their types.
NumPy numbers and arrays become numbers and lists, and enum members become their values. A dataclass is encoded with its
module and name. Decoding creates no objects of other classes. A replica's response may only contain dataclasses that
its caller has imported.
"""

from __future__ import annotations

import base64
import importlib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import orjson

from taskapp_kit.errors import BadArgument, ServiceError
from taskapp_kit.services.replicas import MAIN, MAIN_OF_REPLICA

MARK = "\0"
"""Key that marks a JSON object as an encoded value of another type. The key's value is the type's name."""
MOST_DEEP = 200
"""Maximum nesting of JSON arrays and objects. orjson supports 254."""
INT_LIMIT = 2**63


def encode(value: Any) -> bytes:
    """Encode a value as bytes. If a part cannot be sent, raise BadArgument with the location of the part."""
    return orjson.dumps(_written(value, "", 0))


def encode_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Encode `(args, kwargs)` as bytes, as `encode` does. Error messages name the argument."""
    positional = [_written(value, f"argument {number}", 3) for number, value in enumerate(args, 1)]
    named = {name: _written(value, f"argument {name}", 3) for name, value in kwargs.items()}
    return orjson.dumps([positional, named])


def decode(data: bytes | bytearray | memoryview, *, imports: bool = False) -> Any:
    """Return the decoded value.

    Args:
        data: The encoded value.
        imports: Whether decoding may import the modules of dataclasses. If false, they must already be imported.

    Raises:
        ServiceError: A dataclass does not exist in this process, or cannot be created from the received fields.
    """
    return _read(orjson.loads(data), imports)


def _written(value: Any, place: str, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if value.isascii() else _text(value)
    if kind is int:
        return value if -INT_LIMIT <= value < INT_LIMIT else {MARK: "int", "hex": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {MARK: "float", "value": repr(value)}
    if depth > MOST_DEEP:
        raise BadArgument(f"An argument or result is nested more than {MOST_DEEP} levels deep at {place or 'the top'}.")
    if kind is list:
        return [_written(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
    if kind is tuple:
        return {MARK: "tuple", "items": _written(list(value), place, depth + 1)}
    if kind is dict:
        if all(type(key) is str and key != MARK and key.isascii() for key in value):
            return {key: _written(item, f"{place}.{key}", depth + 1) for key, item in value.items()}
        return {MARK: "dict", "items": [_written([*pair], place, depth + 3) for pair in value.items()]}
    if kind is bytes:
        return {MARK: "bytes", "base64": base64.b64encode(value).decode()}
    if is_dataclass(kind):
        if _loaded(kind.__module__, kind.__qualname__) is not kind:
            raise BadArgument(
                f"A {kind.__qualname__} at {place.lstrip('.') or 'the top of a value'} cannot be sent to or from a service, "
                "because the other process cannot import its class.",
                hint="Define the class at the top level of a module.",
            )
        module = MAIN if kind.__module__ == MAIN_OF_REPLICA else kind.__module__
        members = {
            each.name: _written(getattr(value, each.name), f"{place}.{each.name}", depth + 2)
            for each in fields(kind)
            if each.init
        }
        return {MARK: "dataclass", "module": module, "name": kind.__qualname__, "members": members}
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        return _written(value.tolist(), place, depth)
    if isinstance(value, Mapping):
        return _written(dict(value), place, depth)
    if isinstance(value, Enum):
        return _written(value.value, place, depth)
    if isinstance(value, str):
        return _text(str.__str__(value))
    if isinstance(value, (int, float)):
        return _written(int(value) if isinstance(value, int) else float(value), place, depth)
    raise BadArgument(
        f"A {kind.__module__}.{kind.__qualname__} at {place.lstrip('.') or 'the top of a value'} cannot be sent to or from a "
        "service. Expected None, bool, int, float, str, bytes, a list, tuple or dict, or a dataclass of these types.",
        hint="Write the tensor to a file and send the path." if kind.__module__ == "torch" else "",
    )


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:  # lone surrogates, which UTF-8 cannot encode
        return {MARK: "str", "base64": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}
    return value


def _read(value: Any, imports: bool) -> Any:
    if type(value) is list:
        return [_read(item, imports) for item in value]
    if type(value) is not dict:
        return value
    kind = value.get(MARK)
    if kind is None:
        return {key: _read(item, imports) for key, item in value.items()}
    if kind == "tuple":
        return tuple(_read(value["items"], imports))
    if kind == "dict":
        return {_read(key, imports): _read(item, imports) for key, item in value["items"]}
    if kind == "bytes":
        return base64.b64decode(value["base64"])
    if kind == "str":
        return base64.b64decode(value["base64"]).decode("utf-8", "surrogatepass")
    if kind == "int":
        return int(value["hex"], 16)
    if kind == "float":
        return float(value["value"])
    cls = _dataclass(value["module"], value["name"], imports)
    members = {name: _read(item, imports) for name, item in value["members"].items()}
    try:
        return cls(**members)
    except TypeError as error:
        raise ServiceError(
            f"A received {cls.__name__} cannot be created from its fields ({', '.join(members)}): {error}."
        ) from error


def _dataclass(module_name: str, name: str, imports: bool) -> type[Any]:
    if imports and module_name not in sys.modules:
        try:
            importlib.import_module(module_name)
        except ImportError as error:
            raise ServiceError(f"This process cannot import {module_name}, which defines a received {name}.") from error
    cls = _loaded(module_name, name)
    if not isinstance(cls, type) or not is_dataclass(cls):
        raise ServiceError(
            f"A received {name} cannot be decoded, because the module {module_name} in this process has no such dataclass.",
            hint="Define the dataclass at the top level of a module that both processes import.",
        )
    return cls


def _loaded(module: str, name: str) -> Any:
    """Return an attribute of a module, or None if the module is not imported or has no such attribute."""
    target: Any = sys.modules.get(module)
    for part in name.split("."):
        target = getattr(target, part, None)
    return target
