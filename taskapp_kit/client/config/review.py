"""All problems of an RL config, for which it is refused, and all warnings, found in one pass.

`schema` decides what fits a section and a key, `consistency` what fits together. Here pydantic's errors become sentences,
and what pydantic accepts silently is added: unknown names, values that look like keys, values that JSON cannot carry.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from taskapp_kit.client.config.schema import (
    LOCAL_SECTIONS,
    MAX_INTEGER,
    SMOKE_TEST_SECTIONS,
    ConfigSection,
    RlDocument,
    Suggested,
    example_of,
    expected,
    inner_section,
    keys_of,
    sections_of,
)
from taskapp_kit.client.config.values import Place, is_key_like, last_name, name_shown, place_shown, shown
from taskapp_kit.errors import closest

Document = dict[str, Any]

MAX_ERRORS_PER_LIST = 5
"""Elements of one list that are reported one by one."""
MAX_LEVELS = 64
NEAR_MISSING = 0.75
"""How near the name of an unknown key has to be to that of a missing one."""


@dataclass(slots=True)
class Review:
    """The problems and the warnings of a document: place to sentence, one of each per place. schema: of the whole document."""

    document: Document
    schema: type[ConfigSection] = RlDocument
    unknown: str = "goes with the job as it stands"
    """What happens to a key or section that the schema does not have."""
    lines: Mapping[Place, int] = field(default_factory=dict)
    """The line of each place in the file."""
    problems: dict[Place, str] = field(default_factory=dict)
    warnings: dict[Place, str] = field(default_factory=dict)
    refused: set[Place] = field(default_factory=set)
    """Places of sections and keys whose value does not fit the schema."""

    def problem(self, place: Place, text: str) -> None:
        """Add a problem; the first one of a place counts."""
        self.problems.setdefault(place, text)

    def warn(self, place: Place, text: str) -> None:
        """Add a warning."""
        known = self.warnings.get(place)
        self.warnings[place] = text if known is None else f"{known} {text}"

    def mismatch(self, place: Place, value: Any, expectation: str, action: str) -> None:
        """Add the problem `[section] key: found X; expected Y. Do Z.`"""
        found = shown(last_name(place), value)
        self.problem(place, f"{place_shown(place)}: found {found}; expected {expectation}. {action}")

    def in_line(self, place: Place) -> str:
        """Return ` in line N` for another place that a sentence names; "" where it has no line."""
        return f" in line {self.lines[place]}" if place in self.lines else ""

    def at(self, *place: str) -> Any:
        """The value at a place; None where there is none, or where it does not fit the schema."""
        if any(place[:end] in self.refused for end in range(1, len(place) + 1)):
            return None
        value: Any = self.document
        for part in place:
            value = value.get(part) if isinstance(value, dict) else None
        return value


def is_smoke_test(document: Document) -> bool:
    """Whether it is the smoke-test form: no [algorithm], and one of [trainer], [env], [job]."""
    return "algorithm" not in document and any(name in document for name in SMOKE_TEST_SECTIONS)


def needs_gpus(document: Document) -> bool:
    """Whether the config has to say which GPUs it uses: not the smoke-test form, nor one for a trainer on this machine."""
    services = document.get("services")
    local = isinstance(services, dict) and "task_app" in services
    return not (is_smoke_test(document) or local or any(name in document for name in LOCAL_SECTIONS))


def check_schema(review: Review, *, required_in: Callable[[tuple[str, ...]], bool]) -> None:
    """Add what does not fit the schema. required_in: whether the keys that a section (its path) requires must be there."""
    try:
        review.schema.model_validate(review.document)
    except ValidationError as error:
        _add_errors(review, error, required_in)


def _add_errors(review: Review, error: ValidationError, required_in: Callable[[tuple[str, ...]], bool]) -> None:
    per_list: Counter[Place] = Counter()
    for one in error.errors(include_url=False, include_context=False):
        place: Place = one["loc"]
        if one["type"] == "string_unicode":  # of overrides only: neither TOML nor JSON has lone surrogates
            where = place_shown(place) if place else "The document"
            review.problem(place, f"{where}: found a name that is not Unicode text; expected text. Rename it.")
            continue
        in_a_list = isinstance(place[-1], int)
        if in_a_list:
            per_list[place[:-1]] += 1
            if per_list[place[:-1]] > MAX_ERRORS_PER_LIST:
                continue
        section, path, key = _schema_at(review.schema, place)
        if one["type"] == "missing":
            if required_in(path):
                _add_missing(review, section, path, key)
        elif not key:
            review.refused.add(path)
            header = ".".join(path)
            review.mismatch(place, one["input"], "a section", f"Write [{header}] in a line of its own, its keys below.")
        else:
            review.refused.add((*path, key))
            words = expected(section.model_fields[key])
            write = f"Write for example {key} = {example_of(section.model_fields[key])}."
            review.mismatch(place, one["input"], words.element if in_a_list else words.words, write)


def _schema_at(schema: type[ConfigSection], place: Place) -> tuple[type[ConfigSection], tuple[str, ...], str]:
    """The section that an error belongs to, its path, and the key in it; "" where the section as a whole is meant."""
    section = schema
    for depth, part in enumerate(place):
        inner = inner_section(section.model_fields[str(part)])
        if inner is None:
            return section, tuple(map(str, place[:depth])), str(part)
        section = inner
    return section, tuple(map(str, place)), ""


def _add_missing(review: Review, section: type[ConfigSection], path: tuple[str, ...], key: str) -> None:
    if not key:  # a whole section of the full form
        known, name, there = tuple(review.schema.model_fields), path[0], review.document
        keys = ", ".join(name for name, one in keys_of(section).items() if one.is_required())
        what, add, form = f"[{name}]: missing; expected a section with {keys}", "Add it.", "[{}]"
        above: tuple[str, ...] = ()
    else:
        known, name, there = tuple(section.model_fields), key, review.at(*path)
        field_of_key = section.model_fields[key]
        add = f"Add for example {key} = {example_of(field_of_key)}."
        what, form, above = f"[{'.'.join(path)}] {key}: missing; expected {expected(field_of_key).words}", "{}", path
    near = closest(name, [unknown for unknown in there if unknown not in known], cutoff=NEAR_MISSING)
    action = f"Did you mean it by {form.format(name_shown(near))}?" if near else add
    review.problem((*above, near or name), f"{what}. {action}")


def check_names(review: Review) -> None:
    """Add a warning for each name that the schema does not have, and for a name or value that it advises against."""
    _check_names(review, review.schema, review.document, ())


def _check_names(review: Review, section: type[ConfigSection], table: Document, path: tuple[str, ...]) -> None:
    for name, value in table.items():
        place = (*path, name)
        key = section.model_fields.get(name)
        if key is None:
            if path:
                _add_unknown_key(review, section, name, set(section.model_fields) - set(table), path)
            else:
                _add_unknown_top_level(review, name, value)
            continue
        inner = inner_section(key)
        if inner is not None and isinstance(value, dict):
            if key.deprecated:
                review.warn(place, f"[{name}] is deprecated. {key.deprecated}.")
            _check_names(review, inner, value, place)
        suggested = next((one.values for one in key.metadata if isinstance(one, Suggested)), ())
        if suggested and isinstance(value, str) and value not in suggested:
            words = ", ".join(suggested)
            review.warn(place, f"{place_shown(place)} is none of {words}: not every trainer accepts it.")


def _add_unknown_top_level(review: Review, name: str, value: Any) -> None:
    if not isinstance(value, dict):
        review.warn(
            (name,), f"{name_shown(name)} stands in no section, and no trainer reads it{_section_with(review, name)}"
        )
        return
    near = closest(name, review.schema.model_fields)
    hint = f"; did you mean [{near}]?" if near else f", and {review.unknown}."
    review.warn((name,), f"[{name_shown(name)}] is no section that is known{hint}")


def _add_unknown_key(
    review: Review, section: type[ConfigSection], name: str, unused: set[str], path: tuple[str, ...]
) -> None:
    near = closest(name, sorted(unused), cutoff=0.8 if section.free else 0.6)
    if section.free and not near:
        return
    hint = f"; did you mean {near}?" if near else _section_with(review, name, outside=".".join(path))
    review.warn(
        (*path, name),
        f"[{'.'.join(path)}] {name_shown(name)} is unknown, and {review.unknown}{hint}",
    )


def _section_with(review: Review, name: str, *, outside: str = "") -> str:
    """The end of a sentence about an unknown key: which section has one of that name."""
    homes = [header for header, section in sections_of(review.schema) if header != outside and name in keys_of(section)]
    return f"; did you mean [{homes[0]}] {name}?" if homes else "."


def check_values(review: Review) -> None:
    """Add what cannot be sent as JSON and what looks like a key, wherever it is."""
    warned: set[Place] = set()
    for place, value in _leaves(review.document):
        spot = place[: MAX_LEVELS // 2]
        if spot not in warned and is_key_like(last_name(place), value):
            warned.add(spot)
            review.warn(
                spot,
                f"{place_shown(spot)} looks like an API key, and the whole config goes to the backend with the job. Take "
                "it out: keys come from the environment or an env file.",
            )
        if place in review.problems:
            continue
        if isinstance(value, (dict, list)):
            if value:
                review.problem(
                    place[:2],
                    f"{place_shown(place[:2])}: nested deeper than {MAX_LEVELS} levels; expected fewer. Make it flatter.",
                )
        elif isinstance(value, (int, float)):
            if not (abs(value) <= MAX_INTEGER if isinstance(value, int) else math.isfinite(value)):
                other = "Other numbers cannot be sent as JSON."
                review.mismatch(place, value, "a finite number of at most 64 bits", other)
        elif not isinstance(value, str):
            action = "Put it in quotes: JSON has no dates." if hasattr(value, "isoformat") else "JSON has no such type."
            review.mismatch(place, value, "text, a number, true or false, a list or a table", action)


def _leaves(document: Document) -> Iterator[tuple[Place, Any]]:
    """Every value that is no table and no list, with its place; what is deeper than `MAX_LEVELS` as a whole."""
    waiting: list[tuple[Place, Any]] = [((), document)]
    while waiting:
        place, value = waiting.pop()
        if len(place) < MAX_LEVELS and isinstance(value, dict):
            waiting += [((*place, name), inner) for name, inner in value.items()]
        elif len(place) < MAX_LEVELS and isinstance(value, list):
            waiting += [((*place, index), inner) for index, inner in enumerate(value)]
        else:
            yield place, value
