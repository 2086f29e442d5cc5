"""Converts Gymnasium spaces to Python annotations, and values of spaces from and to JSON.

This module recognizes spaces by their class names, so it does not need Gymnasium. Only `interop/gymnasium/importer.py`
imports Gymnasium. Written against Gymnasium 1.4.0, `gymnasium/spaces`.

| space | annotation of the action | sampled by |
|---|---|---|
| Discrete(n, start) | Literal (up to 32 values), or int with bounds | the schema |
| MultiDiscrete | (nested) tuples of ints with bounds | the schema |
| MultiBinary | (nested) lists of 0 and 1 | the schema |
| Box with all bounds | float or int with bounds, in (nested) lists with the space's shape | the schema |
| Box without a bound | float or int without the missing bound, in such lists | the space |
| Text | str with minimum and maximum length; the space checks the characters | the space |
| Tuple, Dict | tuple, TypedDict | as for each part |
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict  # pydantic requires this TypedDict before Python 3.12

from taskapp_kit.records.content import INT_LIMIT, Json

CHOICES_LIMIT = 32
"""The largest Discrete space whose values are listed. A larger space becomes an int with bounds."""
ELEMENTS_LIMIT = 256
"""The largest Box with different bounds per element whose bounds are in the schema."""


class UnknownSpace(ValueError):
    """The values of a space cannot be converted to JSON. The message names the part of the space."""


def kind_of(space: Any) -> str:
    """Return the name of a space's Gymnasium class, such as "Box".

    For a subclass of a Gymnasium class, return the name of the Gymnasium class.
    """
    for cls in type(space).__mro__:
        if cls.__module__.startswith("gymnasium.spaces"):
            return str(cls.__name__)
    return type(space).__name__


def annotation_of(space: Any, path: str = "action") -> Any:
    """Return a Python annotation for the values of a space. Raises UnknownSpace if JSON cannot represent the values.

    path: the position in the action, for messages.
    """
    kind = kind_of(space)
    if kind == "Discrete":
        return _integers(int(space.start), int(space.start) + int(space.n) - 1)
    if kind == "MultiDiscrete":
        return _nested(
            _shifted(space).tolist(), lambda ends: _integers(int(ends[0]), int(ends[1])), depth=len(space.shape)
        )
    if kind == "MultiBinary":
        return _lists(Literal[0, 1], space.shape)
    if kind == "Box":
        return _box(space)
    if kind == "Text":
        return Annotated[str, Field(min_length=space.min_length, max_length=space.max_length)]
    if kind == "Tuple":
        parts = tuple(annotation_of(part, f"{path}_{index}") for index, part in enumerate(space.spaces))
        return tuple[parts]  # type: ignore[valid-type]
    if kind == "Dict":
        return _record(space, path)
    raise UnknownSpace(f"{path.replace('_', '.')} is a {kind} space ({space}), whose values have no JSON format")


def needs_sampler(space: Any) -> bool:
    """Return whether the space must sample its values itself, because its schema cannot be sampled uniformly."""
    kind = kind_of(space)
    if kind == "Box":
        if space.dtype.kind in "iu":
            wide = space.low.size > 0 and int(space.high.max()) - int(space.low.min()) >= INT_LIMIT
        else:
            wide = not space.is_bounded()
        return wide or (_uneven(space) and space.low.size > ELEMENTS_LIMIT)
    if kind == "Tuple":
        return any(needs_sampler(part) for part in space.spaces)
    if kind == "Dict":
        return any(needs_sampler(part) for part in space.spaces.values())
    return kind == "Text"


def sampler_of(space: Any, write: Callable[[Any], Json]) -> Callable[[random.Random], dict[str, Json]]:
    """Return `fn(rng) -> {"action": value}`, which samples the space. The value depends only on `rng`."""

    def sample(rng: random.Random) -> dict[str, Json]:
        own = deepcopy(space)
        own.seed(rng.getrandbits(31))
        return {"action": write(own.sample())}

    return sample


def value_in(space: Any, value: Any) -> Any:
    """Convert a JSON value to a value of the space, such as a numpy array. Raises ValueError if this is impossible."""
    import numpy

    kind = kind_of(space)
    if kind == "Discrete":
        return space.dtype.type(value)
    if kind in ("Box", "MultiDiscrete", "MultiBinary"):
        return numpy.asarray(value, dtype=space.dtype).reshape(space.shape)
    if kind == "Tuple":
        return tuple(value_in(part, item) for part, item in zip(space.spaces, value, strict=True))
    if kind == "Dict":
        return {name: value_in(part, value[name]) for name, part in space.spaces.items()}
    return value


def json_value(value: Any) -> Any:
    """Copy a value, with numpy arrays and scalars converted to lists and numbers.

    float32 values are converted with their shortest digits. Other values are unchanged; if they are not JSON, they are
    rejected later, or omitted from `info`.
    """
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        if value.dtype.kind == "f" and value.dtype.itemsize < 8:  # 0.1, not 0.10000000149011612 from tolist()
            return value.astype(str).astype(float).tolist()
        return value.tolist()
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    return value


def is_image(value: Any) -> bool:
    """Return whether a value is an image: a uint8 array with shape (H, W, 3), at least 8 pixels wide and high."""
    shape: tuple[int, ...] = getattr(value, "shape", ())
    return len(shape) == 3 and shape[2] == 3 and min(shape[:2]) >= 8 and str(value.dtype) == "uint8"


def description_of(space: Any) -> str:
    """Return a short description of a space's values, which becomes part of a tool's description."""
    kind = kind_of(space)
    if kind == "Discrete":
        first, last = int(space.start), int(space.start) + int(space.n) - 1
        return f"a whole number from {first} to {last}"
    if kind == "Box" and space.shape == (1,):
        return f"a list of one number from {space.low[0]:g} to {space.high[0]:g}"
    return f"a value of {space}"


# -- parts of annotation_of ---------------------------------------------------------------------------------------


def _integers(low: int, high: int) -> Any:
    if high - low < CHOICES_LIMIT:
        return Literal[tuple(range(low, high + 1))]
    return Annotated[int, Field(ge=low, le=high)]


def _shifted(space: Any) -> Any:
    """Return the lowest and highest value of each element of a MultiDiscrete, as an array with shape (*shape, 2)."""
    import numpy

    start = numpy.asarray(getattr(space, "start", 0)) + numpy.zeros_like(space.nvec)
    return numpy.stack([start, start + space.nvec - 1], axis=-1)


def _uneven(space: Any) -> bool:
    return bool(
        space.low.size > 1 and ((space.low != space.low.flat[0]).any() or (space.high != space.high.flat[0]).any())
    )


def _box(space: Any) -> Any:
    import numpy

    if _uneven(space) and space.low.size <= ELEMENTS_LIMIT:
        ends = numpy.stack([space.low, space.high], axis=-1).tolist()
        return _nested(ends, lambda pair: _number(space, pair[0], pair[1]), depth=len(space.shape))
    low, high = (space.low.min(), space.high.max()) if space.low.size else (-numpy.inf, numpy.inf)
    return _lists(_number(space, float(low), float(high)), space.shape)


def _number(space: Any, low: float, high: float) -> Any:
    """Return the annotation for an element of a Box. Infinite bounds are omitted."""
    if space.dtype.kind in "iu":
        return Annotated[int, Field(ge=int(low), le=int(high))]
    bounds: dict[str, Any] = {"allow_inf_nan": False}
    if low > -float("inf"):
        bounds["ge"] = low
    if high < float("inf"):
        bounds["le"] = high
    return Annotated[float, Field(**bounds)]


def _lists(item: Any, shape: tuple[int, ...]) -> Any:
    """Return the annotation of nested lists with this shape, whose elements have the annotation `item`."""
    for length in reversed(shape):
        item = Annotated[list[item], Field(min_length=length, max_length=length)]
    return item


def _nested(ends: Any, leaf: Callable[[Any], Any], depth: int) -> Any:
    """Return the annotation of nested tuples. leaf: returns the annotation of an element, given its bounds."""
    if depth == 0:
        return leaf(ends)
    return tuple[tuple(_nested(item, leaf, depth - 1) for item in ends)]  # type: ignore[misc]


def _record(space: Any, path: str) -> Any:
    fields = {}
    for name, part in space.spaces.items():
        if not isinstance(name, str):
            raise UnknownSpace(f"{path} has the key {name!r}, but keys of JSON objects must be strings")
        fields[name] = annotation_of(part, f"{path}_{name}")
    typed: Any = TypedDict  # the fields are only known at run time
    record = typed(path, fields)
    record.__pydantic_config__ = ConfigDict(extra="forbid")
    return record
