"""Random values of a JSON Schema, unbounded fields included, as from a model that follows its tools' schemas.

The `random` policy's sampler (`rollout/policy/sampling.py`) is uniform and refuses what has no bounds; this one always answers.
Supported are type, const, enum, $ref, allOf, anyOf, oneOf (the chosen branch), and the bounds of numbers, strings (pattern
and the usual formats too), lists and objects. `not`, `if` and `dependent…` are not looked at.
"""

from __future__ import annotations

import math
import random
import string
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from taskapp_kit.contract.content import Json
from taskapp_kit.testing.mock_model.regex_sampling import draw_match

Schema = Mapping[str, Any]

DEEPEST = 5
"""Below this depth only required parts are drawn, so that a recursive schema comes to an end."""
LONGEST_TEXT, LONGEST_LIST = 10_000, 1_000
"""The limit on a drawn length where a schema requires more."""
ENDLESS = 50
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "hazel", "iris", "juniper", "kelp", "larch")
_LARGEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_BRANCHES = ("anyOf", "oneOf")
_KEYWORDS = (
    ("object", ("properties", "required", "additionalProperties", "minProperties")),
    ("array", ("items", "prefixItems", "minItems", "maxItems", "uniqueItems")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    ("string", ("pattern", "format", "minLength", "maxLength")),
)


def draw(schema: Json, rng: random.Random) -> Json:
    """One value of the schema; where bounds leave none, the nearest.

    Raises ValueError where only an endless value would fit, and other errors where the schema is no schema.
    """
    return _value(schema, rng, schema if isinstance(schema, Mapping) else {}, 0)


def sentence(rng: random.Random, least: int = 3, most: int = 8) -> str:
    """A few words, with a capital and a full stop."""
    return " ".join(rng.choices(WORDS, k=rng.randint(least, most))).capitalize() + "."


def _value(schema: Any, rng: random.Random, root: Schema, depth: int) -> Json:
    if not isinstance(schema, Mapping):  # true, or nothing said
        return rng.choice(WORDS)
    if depth > ENDLESS:
        raise ValueError("it asks for a value that holds itself without end")
    schema = _resolved(schema, rng, root, depth)
    if "const" in schema:
        constant: Json = schema["const"]
        return constant
    if schema.get("enum"):
        choice: Json = rng.choice(_allowed(schema))
        return choice
    match _kind(schema, rng, depth):
        case "null":
            return None
        case "boolean":
            return rng.random() < 0.5
        case "integer":
            return _integer(schema, rng)
        case "number":
            return _number(schema, rng)
        case "array":
            return _array(schema, rng, root, depth)
        case "object":
            return _object(schema, rng, root, depth)
        case _:
            return _text(schema, rng)


def _resolved(schema: Schema, rng: random.Random, root: Schema, depth: int) -> Schema:
    """The schema without references and branches: each is followed, or one is chosen, and merged with what stands beside."""
    for _ in range(50):  # references that only refer to each other end here
        if "$ref" in schema:
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            schema = _merged(_target(str(schema["$ref"]), root), rest)
        elif schema.get("allOf"):
            merged: Schema = {key: value for key, value in schema.items() if key != "allOf"}
            for part in schema["allOf"]:
                merged = _merged(merged, part if isinstance(part, Mapping) else {})
            schema = merged
        elif word := next((name for name in _BRANCHES if schema.get(name)), None):
            rest = {key: value for key, value in schema.items() if key != word}
            branches = [part if isinstance(part, Mapping) else {} for part in schema[word]]
            if depth >= DEEPEST:
                branches = sorted(branches, key=_weight)[:1]
            schema = _merged(rest, rng.choice(branches))
        else:
            return schema
    return {}


def _target(reference: str, root: Schema) -> Schema:
    found: Any = root
    for name in reference.removeprefix("#").split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        found = found.get(name, {}) if isinstance(found, Mapping) else {}
    return found if isinstance(found, Mapping) else {}


def _merged(one: Schema, two: Schema) -> Schema:
    """What both ask for."""
    merged = dict(one)
    for key, value in two.items():
        if key not in merged:
            merged[key] = value
        elif key in _LARGEST:
            merged[key] = max(merged[key], value)
        elif key in _SMALLEST:
            merged[key] = min(merged[key], value)
        elif key == "properties":
            both = {name: _merged(merged[key][name], value[name]) for name in merged[key].keys() & value.keys()}
            merged[key] = {**merged[key], **value, **both}
        elif key == "required":
            merged[key] = [*merged[key], *(name for name in value if name not in merged[key])]
        elif key == "enum":
            merged[key] = [item for item in merged[key] if item in value] or value
        else:
            merged[key] = value
    return merged


def _weight(schema: Schema) -> int:
    """How far a branch may lead: values end a schema that holds itself, references go on with it."""
    return 2 if "$ref" in schema else 1 if schema.get("type") in ("object", "array") else 0


def _allowed(schema: Schema) -> Sequence[Json]:
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    fitting = [value for value in schema["enum"] if not kinds or any(_is(value, kind) for kind in kinds)]
    return fitting or list(schema["enum"])


def _is(value: Any, kind: str) -> bool:
    types: dict[str, type | tuple[type, ...]] = {
        "string": str,
        "boolean": bool,
        "array": list,
        "object": dict,
        "null": type(None),
        "integer": int,
        "number": (int, float),
    }
    return isinstance(value, types.get(kind, object)) and (kind == "boolean" or not isinstance(value, bool))


def _kind(schema: Schema, rng: random.Random, depth: int) -> str:
    kind = schema.get("type")
    if isinstance(kind, list) and kind:
        ends = [name for name in kind if name not in ("object", "array")]
        return str(rng.choice(ends if depth >= DEEPEST and ends else kind))
    if isinstance(kind, str):
        return kind
    return next((name for name, words in _KEYWORDS if any(word in schema for word in words)), "string")


def _bounds(schema: Schema) -> tuple[float | None, float | None]:
    lows = [schema[name] for name in ("minimum", "exclusiveMinimum") if _is(schema.get(name), "number")]
    highs = [schema[name] for name in ("maximum", "exclusiveMaximum") if _is(schema.get(name), "number")]
    return max(lows, default=None), min(highs, default=None)


def _open(low: float | None, high: float | None) -> tuple[float, float]:
    """A range of a hundred where a side is open."""
    if low is None and high is None:
        return 0, 100
    return (high - 100 if low is None and high is not None else low or 0), (
        low + 100 if high is None and low is not None else high or 0
    )


def _integer(schema: Schema, rng: random.Random) -> int:
    low, high = _open(*_bounds(schema))
    least, most = math.ceil(low), math.floor(high)
    least += least == schema.get("exclusiveMinimum")
    most -= most == schema.get("exclusiveMaximum")
    step = schema.get("multipleOf", 1)
    if step > 1 and step == int(step):
        step = int(step)
        least, most = -(-least // step), most // step
        if "maximum" not in schema and "exclusiveMaximum" not in schema:
            most = max(most, least)
        return rng.randint(least, max(least, most)) * step
    return rng.randint(least, max(least, most))


def _number(schema: Schema, rng: random.Random) -> float:
    low, high = _open(*_bounds(schema))
    step = schema.get("multipleOf")
    if step:
        least, most = math.ceil(low / step), math.floor(high / step)
        least += least * step == schema.get("exclusiveMinimum")
        most -= most * step == schema.get("exclusiveMaximum")
        return float(rng.randint(least, max(least, most)) * step)
    for _ in range(20):
        value = rng.uniform(low, high)
        rounded = round(value, 3)
        value = rounded if low <= rounded <= high else value
        if value != schema.get("exclusiveMinimum") and value != schema.get("exclusiveMaximum"):
            return value
    return (low + high) / 2


def _text(schema: Schema, rng: random.Random) -> str:
    shortest, longest = min(int(schema.get("minLength", 0)), LONGEST_TEXT), schema.get("maxLength")
    if "pattern" in schema:
        found = draw_match(str(schema["pattern"]), rng, shortest, longest)
        if found is not None:
            return found
    text = _formatted(str(schema.get("format", "")), rng)
    while len(text) < shortest:
        text += " " + rng.choice(WORDS)
    return text if longest is None else text[: max(0, int(longest))]


def _formatted(name: str, rng: random.Random) -> str:
    year, month, day = rng.randint(1990, 2035), rng.randint(1, 12), rng.randint(1, 28)
    hour, minute, second = rng.randint(0, 23), rng.randint(0, 59), rng.randint(0, 59)
    date, time = f"{year}-{month:02}-{day:02}", f"{hour:02}:{minute:02}:{second:02}Z"
    word = rng.choice(WORDS)
    match name:
        case "date":
            return date
        case "time":
            return time
        case "date-time":
            return f"{date}T{time}"
        case "duration":
            return f"P{day}D"
        case "email":
            return f"{word}@example.com"
        case "uri" | "url":
            return f"https://example.com/{word}"
        case "hostname":
            return f"{word}.example.com"
        case "ipv4":
            return f"192.0.2.{rng.randint(1, 254)}"
        case "ipv6":
            return f"2001:db8::{rng.randint(1, 9999):x}"
        case "uuid":
            return str(uuid.UUID(int=rng.getrandbits(128), version=4))
        case "byte" | "binary":
            return "".join(rng.choices(string.ascii_letters, k=8))
        case _:
            return word


def _array(schema: Schema, rng: random.Random, root: Schema, depth: int) -> list[Json]:
    first = schema.get("prefixItems", ())
    least, most = min(int(schema.get("minItems", 0)), LONGEST_LIST), schema.get("maxItems")
    least = max(least, len(first)) if most is None or len(first) <= int(most) else least
    longest = least if depth >= DEEPEST else least + 3
    count = rng.randint(least, longest if most is None else max(least, min(longest, int(most))))
    rest = schema.get("items", True)
    if rest is False:
        count = min(count, len(first))
    drawn: list[Json] = []
    misses = 0
    while len(drawn) < count and misses < 100:
        part = first[len(drawn)] if len(drawn) < len(first) else rest
        value = _value(part, rng, root, depth + 1)
        if schema.get("uniqueItems") and value in drawn:
            misses += 1
        else:
            drawn.append(value)
    return drawn


def _object(schema: Schema, rng: random.Random, root: Schema, depth: int) -> dict[str, Json]:
    listed = schema.get("required", ())
    required = [name for name in listed if isinstance(name, str)] if isinstance(listed, list | tuple) else []
    properties: Schema = schema.get("properties", {})
    least, most = min(int(schema.get("minProperties", 0)), LONGEST_LIST), schema.get("maxProperties")
    drawn: dict[str, Json] = {}
    for name, part in properties.items():
        full = most is not None and len(drawn) + len([key for key in required if key not in drawn]) >= int(most)
        if name in required or (not full and part is not False and depth < DEEPEST and rng.random() < 0.5):
            drawn[name] = _value(part, rng, root, depth + 1)
    for name in required:
        if name not in drawn:
            drawn[name] = _value(schema.get("additionalProperties", True), rng, root, depth + 1)
    for name, part in properties.items():
        if len(drawn) < least and name not in drawn:
            drawn[name] = _value(part, rng, root, depth + 1)
    number = 0
    while len(drawn) < least and schema.get("additionalProperties", True) is not False:
        number += 1
        if f"key{number}" not in properties:
            drawn[f"key{number}"] = _value(schema.get("additionalProperties", True), rng, root, depth + 1)
    return drawn
