"""Draws values for a JSON Schema, for the policy `random` and the mock model, and builds examples for prompts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from taskapp_kit.records.content import Json
from taskapp_kit.records.json_schema import FORMATS, Schema, read_schema

if TYPE_CHECKING:
    from taskapp_kit.records.protocols import Tool

Draw = Callable[[random.Random], Json]

SPAN_LIMIT = 2**63
"""A range of integers wider than this counts as unbounded."""
DEEP = 5
"""Below this depth, a free sampler only draws required parts, so that a recursive schema ends."""
MAX_DEPTH = 50
EXAMPLE_DEPTH = 12
"""The depth to which an example follows a recursive schema. References count."""
OPEN_RANGE = 100
"""The width that is used for a range of numbers with only one bound or none."""
MAX_TEXT, MAX_LIST = 10_000, 1_000
"""The maximum lengths that are drawn even if a schema requires more."""
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "hazel", "iris", "juniper", "kelp", "larch")
PATTERN_TEXTS = ("amber", "Amber", "AMBER", "a", "A", "7", "42", "123", "1234", "AB123", "ab-12", "a1", "1.0", "1.0.0")
"""The strings that a free sampler tries for a `pattern`. If none matches, the sampler ignores the pattern."""
MORE_FORMATS: Mapping[str, str] = {
    "duration": "P1D",
    "url": FORMATS["uri"],
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}


class Unbounded(ValueError):
    """A field has no bounds, so no uniform value can be drawn. The message names the field."""


def compile_sampler(schema: Mapping[str, Json], name: str = "arguments") -> Draw:
    """Return a function that draws one value for the schema, each field uniformly.

    Optional fields without bounds are omitted and so have their defaults. Raises Unbounded, which names the field, for a
    required field without bounds.
    """
    return UniformSampler().compiled(read_schema(schema), name, 0)


def draw(schema: Json, rng: random.Random) -> Json:
    """Draw one value for the schema, which may have no bounds. If bounds exclude every value, return the nearest value.

    Raises ValueError if the schema requires an endless value, and other errors for an invalid schema.
    """
    return FreeSampler().compiled(read_schema(schema), "value", 0)(rng)


def sentence(rng: random.Random, least: int = 3, most: int = 8) -> str:
    """Return a few words with an initial capital and a full stop."""
    return " ".join(rng.choices(WORDS, k=rng.randint(least, most))).capitalize() + "."


class UniformSampler:
    """Compiles a schema to a function that draws values uniformly. Raises Unbounded for parts without bounds."""

    def compiled(self, schema: Schema, name: str, depth: int) -> Draw:
        """Return the function for one part of the schema. name: the name of the part in errors."""
        if "const" in schema.keywords:
            constant = schema.keywords["const"]
            return lambda rng: constant
        if choices := schema.choices:
            return lambda rng: rng.choice(choices)
        if branches := [self.part(branch, name, depth) for branch in self.branches(schema, depth)]:
            return lambda rng: rng.choice(branches)(rng)
        match schema.kind:
            case "boolean":
                return lambda rng: rng.random() < 0.5
            case "null":
                return lambda rng: None
            case "integer" | "number":
                return self._number(schema, name)
            case "array":
                return self._list(schema, name, depth)
            case "object":
                return self.of_object(schema, name, depth)
            case _:
                return self.of_text(schema, name)

    def part(self, schema: Schema, name: str, depth: int) -> Draw:
        """Return the function for a part of the schema."""
        # a uniform distribution over values of unlimited size does not exist
        if schema.recursive:
            raise Unbounded(f"{name} ({schema.recursive}) can contain itself without limit")
        return self.compiled(schema, name, depth + 1)

    def branches(self, schema: Schema, depth: int) -> list[Schema]:
        """Return the branches that may be drawn."""
        return schema.branches

    def bounds(self, low: float | None, high: float | None, kind: str, name: str) -> tuple[float, float]:
        """Return the bounds of a range of numbers. Raises Unbounded if a bound is missing or the range is too wide."""
        if low is None or high is None or (kind == "integer" and high - low >= SPAN_LIMIT):
            raise Unbounded(f"{name} ({kind}) has no minimum, no maximum, or too wide a range")
        if kind == "integer" and low > high:
            raise Unbounded(f"{name} (integer) has no value between its bounds")
        return low, high

    def lengths(self, schema: Schema, name: str, depth: int) -> tuple[int, int]:
        """Return the minimum and maximum number of items after the prefix items."""
        if schema.first_items:
            return 0, 0
        if "maxItems" not in schema.keywords:
            raise Unbounded(f"{name} (list) has no maximum length")
        return int(schema.keywords.get("minItems", 0)), int(schema.keywords["maxItems"])

    def of_text(self, schema: Schema, name: str) -> Draw:
        """Raise Unbounded, because strings and values of any type have no bounds."""
        raise Unbounded(f"{name} ({schema.kind or 'any JSON'}) has no bounds, so no value can be drawn")

    def of_object(self, schema: Schema, name: str, depth: int) -> Draw:
        """Return the function for an object."""
        members, required = schema.members, schema.required
        fields: dict[str, Draw] = {}
        for key, part in members.items():
            try:
                fields[key] = self.part(part, f"{name}.{key}", depth)
            # an omitted field has its default
            except Unbounded:
                if key in required:
                    raise
        if not members and schema.keywords.get("additionalProperties") not in (False, None):
            raise Unbounded(f"{name} (object) has no named properties")
        if len(fields) == 1:
            ((only, drawn),) = fields.items()
            return lambda rng: {only: drawn(rng)}
        return lambda rng: {key: drawn(rng) for key, drawn in fields.items()}

    def _number(self, schema: Schema, name: str) -> Draw:
        keywords, kind = schema.keywords, str(schema.kind)
        least, above = keywords.get("minimum"), keywords.get("exclusiveMinimum")
        most, below = keywords.get("maximum"), keywords.get("exclusiveMaximum")
        step = keywords.get("multipleOf")
        if kind == "integer":
            # an integer is a multiple of 1, so it also fits every `multipleOf` that divides 1
            step = max(1, int(step or 1))
        if step:  # the bounds, counted in steps
            least = None if least is None else int(-(-least // step))
            above = None if above is None else int(above // step) + 1
            most = None if most is None else int(most // step)
            below = None if below is None else int(-(-below // step)) - 1
        lows, highs = ([end for end in ends if end is not None] for ends in ((least, above), (most, below)))
        low, high = self.bounds(max(lows, default=None), min(highs, default=None), kind, name)
        if step:
            return lambda rng: rng.randint(int(low), int(high)) * step
        # `uniform` may round to a bound that is not part of the range
        return lambda rng: value if (value := rng.uniform(low, high)) not in (above, below) else (low + high) / 2

    def _list(self, schema: Schema, name: str, depth: int) -> Draw:
        first = [self.part(item, f"{name}[{at}]", depth) for at, item in enumerate(schema.first_items)]
        low, high = self.lengths(schema, name, depth)
        # only the prefix items are drawn, because further items rarely have bounds
        if first and high == 0:
            return lambda rng: [part(rng) for part in first]
        item = self.part(schema.items, f"{name}[]", depth)
        # drawn until enough items differ, because equal items count once in a set
        if schema.keywords.get("uniqueItems"):
            return lambda rng: _distinct(item, rng, rng.randint(low, high))
        return lambda rng: [*(part(rng) for part in first), *(item(rng) for _ in range(rng.randint(low, high)))]


class FreeSampler(UniformSampler):
    """Draws values for any schema, like a model that follows the schema. A part is compiled when it is drawn."""

    def part(self, schema: Schema, name: str, depth: int) -> Draw:
        """Return the function for a part of the schema, which may contain the schema itself."""
        if depth > MAX_DEPTH:
            raise ValueError("the schema requires a value that contains itself without end")

        # compiled on demand, because the schema may contain itself
        def drawn(rng: random.Random) -> Json:
            return self.compiled(schema, name, depth + 1)(rng)

        return drawn

    def branches(self, schema: Schema, depth: int) -> list[Schema]:
        """Return the branches that may be drawn. Deep in a schema, return only the branch that ends first."""
        # deep in a schema, drawing any branch could make a tree grow without end
        branches = sorted(schema.branches, key=_depth_ahead)
        return branches if depth < DEEP else branches[:1]

    def bounds(self, low: float | None, high: float | None, kind: str, name: str) -> tuple[float, float]:
        """Return the bounds of a range of numbers, or the lower bound twice if no value lies between them."""
        if low is None:
            low = 0 if high is None else high - OPEN_RANGE
        return low, low + OPEN_RANGE if high is None else max(low, high)

    def lengths(self, schema: Schema, name: str, depth: int) -> tuple[int, int]:
        """Return the minimum and maximum number of items after the prefix items."""
        first = len(schema.first_items)
        least = max(0, min(int(schema.keywords.get("minItems", 0)), MAX_LIST) - first)
        most = least if first or depth >= DEEP else least + 3
        return least, max(least, min(most, int(schema.keywords.get("maxItems", most))))

    def of_text(self, schema: Schema, name: str) -> Draw:
        """Return the function for a string, or for any JSON."""
        keywords = schema.keywords
        shortest, longest = min(int(keywords.get("minLength", 0)), MAX_TEXT), int(keywords.get("maxLength", MAX_TEXT))
        fixed = FORMATS.get(str(keywords.get("format"))) or MORE_FORMATS.get(str(keywords.get("format")))
        if "pattern" in keywords:
            # Libraries that generate strings for patterns are unmaintained. Most patterns of tools match one of these strings.
            texts = [text for text in PATTERN_TEXTS if shortest <= len(text) <= longest]
            with suppress(re.error):  # not a valid regular expression in Python
                fixed = next((text for text in texts if re.search(str(keywords["pattern"]), text)), fixed)

        def text(rng: random.Random) -> str:
            drawn = fixed or rng.choice(WORDS)
            while len(drawn) < shortest:
                drawn += " " + rng.choice(WORDS)
            return drawn[: max(0, longest)]

        return text

    def of_object(self, schema: Schema, name: str, depth: int) -> Draw:
        """Return the function for an object with the required fields and random optional fields."""
        keywords, members, required = schema.keywords, schema.members, schema.required
        others = schema.part(keywords.get("additionalProperties"))
        least, most = min(int(keywords.get("minProperties", 0)), MAX_LIST), int(keywords.get("maxProperties", MAX_LIST))
        optional = [key for key in members if key not in required]
        more = [] if keywords.get("additionalProperties") is False else [f"key{number + 1}" for number in range(least)]

        def object_of(rng: random.Random) -> Json:
            chosen = [key for key in optional if depth < DEEP and rng.random() < 0.5]
            keys = [*required, *chosen[: max(0, most - len(required))]]
            spare = [key for key in dict.fromkeys((*optional, *more)) if key not in keys]
            keys += spare[: max(0, least - len(keys))]
            return {key: self.part(members.get(key, others), key, depth)(rng) for key in keys}

        return object_of


def _depth_ahead(schema: Schema) -> int:
    """Rank a branch by its possible recursion. Plain values end a recursive schema, and references continue it."""
    return 2 if schema.recursive else 1 if schema.kind in ("object", "array") else 0


def _distinct(item: Draw, rng: random.Random, count: int) -> list[Json]:
    """Return `count` different values, or fewer if a hundred consecutive draws repeat earlier values."""
    drawn: list[Json] = []
    misses = 0
    while len(drawn) < count and misses < 100:
        value = item(rng)
        misses = misses + 1 if value in drawn else 0
        if not misses:
            drawn.append(value)
    return drawn


# -- an example to show -----------------------------------------------------------------------------------------------


def example_call(tool: Tool) -> dict[str, Json]:
    """Return a valid call of the tool in the format of output mode `text`."""
    return {"tool": tool.name, "arguments": example_arguments(tool)}


def example_text(tool: Tool) -> str:
    """Return a valid call of the tool as a JSON string."""
    return orjson.dumps(example_call(tool), default=dict).decode()


def example_arguments(tool: Tool) -> dict[str, Json]:
    """Return arguments that the tool accepts: all required ones, or the first if none is required."""
    schema = read_schema(tool.parameters)
    example = _example(schema, 0)
    if not isinstance(example, dict):
        return {}
    if not example and schema.members:
        name, part = next(iter(schema.members.items()))
        example = {name: _example(part, 0)}
    return example


def _example(schema: Schema, depth: int) -> Json:
    keywords = schema.keywords
    if depth + len(schema.followed) >= EXAMPLE_DEPTH:
        return None
    if isinstance(keywords.get("examples"), list) and keywords["examples"]:
        return keywords["examples"][0]
    if keywords.get("default") is not None:
        return keywords["default"]
    if "const" in keywords or schema.choices:
        return schema.choices[0]
    for branch in schema.branches:
        if branch.kind != "null":
            return _example(branch, depth + 1)
    match schema.kind:
        case "integer" | "number":
            return _example_number(keywords, whole=schema.kind == "integer")
        case "string":
            return _example_text(keywords)
        case "boolean":
            return True
        case "array":
            return _example_list(schema, depth)
        case "object":
            members = schema.members
            return {name: _example(members[name], depth + 1) if name in members else None for name in schema.required}
        case _:
            return None


def _example_number(schema: Mapping[str, Any], *, whole: bool) -> int | float:
    """Return the number within the bounds that is nearest to 1."""
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    step = schema.get("multipleOf") or (1 if whole else 0)
    least = low if low is not None else above + (step or 1e-3 * max(1.0, abs(above))) if above is not None else None
    most = high if high is not None else below - (step or 1e-3 * max(1.0, abs(below))) if below is not None else None
    if above is not None and below is not None and not step:
        return float((above + below) / 2)
    value: float = step or 1
    if least is not None and value < least:
        value = -(-least // step) * step if step else least
    if most is not None and value > most:
        value = most // step * step if step else most
    return int(value) if whole else value


def _example_text(schema: Mapping[str, Any]) -> str:
    if schema.get("format") in FORMATS:
        return FORMATS[schema["format"]]
    least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", 1000))
    return ("..." + "." * min(1000, max(0, least - 3)))[:most]


def _example_list(schema: Schema, depth: int) -> list[Json]:
    if schema.first_items:
        return [_example(item, depth + 1) for item in schema.first_items]
    if schema.keywords.get("maxItems") == 0:
        return []
    item = _example(schema.items, depth + 1) if "items" in schema.keywords else None
    least = min(8, int(schema.keywords.get("minItems", 0)))
    return [item] * max(least, 1 if item is not None else 0)
