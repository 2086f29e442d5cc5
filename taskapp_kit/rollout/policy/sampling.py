"""Uniform random values of a JSON Schema, for the `random` policy."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from taskapp_kit.contract.content import Json

Draw = Callable[[random.Random], Json]

SPAN_LIMIT = 2**63
"""A range of integers wider than this counts as unbounded."""


class Unbounded(ValueError):
    """A field has no bounds, so no uniform value can be drawn. The message names it."""


def compile_sampler(schema: Mapping[str, Json], name: str = "arguments") -> Draw:
    """Returns a function that draws one value of the schema, each field uniformly. Raises Unbounded naming the field.

    An optional field without bounds is left out, so it has its default.
    """
    return _compile(schema, name, schema.get("$defs", {}))


def _compile(schema: Mapping[str, Any], name: str, definitions: Mapping[str, Any]) -> Draw:
    if "$ref" in schema:
        target = str(schema["$ref"]).rsplit("/", 1)[-1]
        if target not in definitions:
            raise Unbounded(f"{name} ({target}) can contain itself without limit")
        return _compile(definitions[target], name, {key: part for key, part in definitions.items() if key != target})
    if "const" in schema:
        constant = schema["const"]
        return lambda rng: constant
    if "enum" in schema:
        choices = list(schema["enum"])
        return lambda rng: rng.choice(choices)
    if len(schema.get("allOf", ())) == 1:  # a reference with other keywords beside it
        return _compile(schema["allOf"][0], name, definitions)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            branches = [_compile(branch, name, definitions) for branch in schema[word]]
            return lambda rng: rng.choice(branches)(rng)
    kind = schema.get("type")
    if kind == "boolean":
        return lambda rng: rng.random() < 0.5
    if kind == "null":
        return lambda rng: None
    if kind == "integer":
        return _integers(schema, name)
    if kind == "number":
        return _numbers(schema, name)
    if kind == "array":
        return _arrays(schema, name, definitions)
    if kind == "object":
        return _objects(schema, name, definitions)
    raise Unbounded(f"{name} ({kind or 'any JSON'}) has no bounds to draw from")


def _integers(schema: Mapping[str, Any], name: str) -> Draw:
    lows = [math.ceil(schema["minimum"])] if "minimum" in schema else []
    lows += [math.floor(schema["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in schema else []
    highs = [math.floor(schema["maximum"])] if "maximum" in schema else []
    highs += [math.ceil(schema["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in schema else []
    if not lows or not highs or min(highs) - max(lows) >= SPAN_LIMIT:
        raise Unbounded(f"{name} (integer) has no minimum and maximum")
    step = max(1, int(schema.get("multipleOf", 1)))
    first, last = -(-max(lows) // step), min(highs) // step
    if first > last:
        raise Unbounded(f"{name} (integer) has no value between its bounds")
    return lambda rng: rng.randint(first, last) * step


def _numbers(schema: Mapping[str, Any], name: str) -> Draw:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None or high is None:
        raise Unbounded(f"{name} (number) has no minimum and maximum")
    return lambda rng: rng.uniform(float(low), float(high))


def _arrays(schema: Mapping[str, Any], name: str, definitions: Mapping[str, Any]) -> Draw:
    if "prefixItems" in schema:
        parts = [_compile(item, f"{name}[{i}]", definitions) for i, item in enumerate(schema["prefixItems"])]
        return lambda rng: [part(rng) for part in parts]
    low, high = int(schema.get("minItems", 0)), schema.get("maxItems")
    if high is None:
        raise Unbounded(f"{name} (list) has no maximum length")
    item = _compile(schema.get("items", {}), f"{name}[]", definitions)
    if schema.get("uniqueItems"):
        return lambda rng: _distinct(item, rng, rng.randint(low, int(high)))
    return lambda rng: [item(rng) for _ in range(rng.randint(low, int(high)))]


def _distinct(item: Draw, rng: random.Random, count: int) -> list[Json]:
    """`count` different values; fewer when a hundred draws in a row repeat earlier ones."""
    drawn: list[Json] = []
    misses = 0
    while len(drawn) < count and misses < 100:
        value = item(rng)
        misses = misses + 1 if value in drawn else 0
        if not misses:
            drawn.append(value)
    return drawn


def _objects(schema: Mapping[str, Any], name: str, definitions: Mapping[str, Any]) -> Draw:
    required = set(schema.get("required", ()))
    fields: dict[str, Draw] = {}
    for key, part in schema.get("properties", {}).items():
        try:
            fields[key] = _compile(part, f"{name}.{key}", definitions)
        except Unbounded:
            if key in required:
                raise
    if not schema.get("properties") and schema.get("additionalProperties") not in (False, None):
        raise Unbounded(f"{name} (object) has no named properties")
    if len(fields) == 1:
        ((only, drawn),) = fields.items()
        return lambda rng: {only: drawn(rng)}
    return lambda rng: {key: draw(rng) for key, draw in fields.items()}
