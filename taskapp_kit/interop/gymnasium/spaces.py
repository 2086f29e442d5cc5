"""Gymnasium spaces as Python annotations, and conversion of their values from and to JSON.

Spaces are distinguished by their class names, so this module does not need Gymnasium; only
`interop/gymnasium/importer.py` imports it. Written against Gymnasium 1.4.0, `gymnasium/spaces`.

| space | annotation of the action | sampled by |
|---|---|---|
| Discrete(n, start) | Literal (up to 32 values), else int with bounds | schema |
| MultiDiscrete | a (nested) tuple of such ints | schema |
| MultiBinary | a (nested) list of 0 and 1 | schema |
| Box, bounded | float or int with bounds, in (nested) lists of the space's shape | schema |
| Box, a side without bound | the same without that bound | the space itself |
| Text | str with its lengths (the space checks its characters) | the space itself |
| Tuple, Dict | tuple, TypedDict | its parts |
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

from taskapp_kit.records.content import INT_LIMIT, Json

CHOICES_LIMIT = 32
"""The largest Discrete space whose values are listed. A larger space is a range."""
ELEMENTS_LIMIT = 256
"""The largest Box with different bounds per element whose bounds are listed."""


class UnknownSpace(ValueError):
    """A space whose values have no JSON form. The message names the space and its part."""


def kind_of(space: Any) -> str:
    """Return the name of a space's Gymnasium class, e.g. "Box". Subclasses count as their base."""
    for cls in type(space).__mro__:
        if cls.__module__.startswith("gymnasium.spaces"):
            return str(cls.__name__)
    return type(space).__name__


def annotation_of(space: Any, path: str = "action") -> Any:
    """Return the annotation for an action's JSON Schema. Raises UnknownSpace."""
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
    raise UnknownSpace(f"{path.replace('_', '.')} is a {kind} space ({space}), whose values have no JSON form")


def needs_sampler(space: Any) -> bool:
    """Return whether the space itself must sample, because its schema cannot be sampled uniformly."""
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
    """Return `fn(rng) -> {"action": value}`, which samples the space. Only `rng` determines the sample."""

    def sample(rng: random.Random) -> dict[str, Json]:
        own = deepcopy(space)
        own.seed(rng.getrandbits(31))
        return {"action": write(own.sample())}

    return sample


def value_in(space: Any, value: Any) -> Any:
    """Convert a JSON value to the space's own type (numpy with its dtype). Raises ValueError."""
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
    """Convert numpy arrays and scalars to copied lists and numbers. float32 keeps its own shortest digits.

    Other values are unchanged. Values that are not JSON are rejected when recorded, or left out of `info`.
    """
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        if value.dtype.kind == "f" and value.dtype.itemsize < 8:  # 0.1, where tolist() returns 0.10000000149011612
            return value.astype(str).astype(float).tolist()
        return value.tolist()
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    return value


def is_image(value: Any) -> bool:
    """Return whether a value is an image: an array of shape (H, W, 3), dtype uint8, at least 8 pixels wide and high."""
    shape: tuple[int, ...] = getattr(value, "shape", ())
    return len(shape) == 3 and shape[2] == 3 and min(shape[:2]) >= 8 and str(value.dtype) == "uint8"


def description_of(space: Any) -> str:
    """Return a short description of the space's values, for a tool's description."""
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
    """Return the lowest and highest value of each element of a MultiDiscrete: an array of shape (*shape, 2)."""
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
    """Return the annotation of an element of a Box. An infinite bound is omitted from the schema."""
    if space.dtype.kind in "iu":
        return Annotated[int, Field(ge=int(low), le=int(high))]
    bounds: dict[str, Any] = {"allow_inf_nan": False}
    if low > -float("inf"):
        bounds["ge"] = low
    if high < float("inf"):
        bounds["le"] = high
    return Annotated[float, Field(**bounds)]


def _lists(item: Any, shape: tuple[int, ...]) -> Any:
    """Return nested lists with the lengths of the shape."""
    for length in reversed(shape):
        item = Annotated[list[item], Field(min_length=length, max_length=length)]
    return item


def _nested(ends: Any, leaf: Callable[[Any], Any], depth: int) -> Any:
    """Return nested tuples with an annotation for each leaf."""
    if depth == 0:
        return leaf(ends)
    return tuple[tuple(_nested(item, leaf, depth - 1) for item in ends)]  # type: ignore[misc]


def _record(space: Any, path: str) -> Any:
    fields = {}
    for name, part in space.spaces.items():
        if not isinstance(name, str):
            raise UnknownSpace(f"{path} has the key {name!r}; the keys of a JSON object are strings")
        fields[name] = annotation_of(part, f"{path}_{name}")
    typed: Any = TypedDict  # its fields are only known at run time
    record = typed(path, fields)
    record.__pydantic_config__ = ConfigDict(extra="forbid")
    return record
