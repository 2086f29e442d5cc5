"""All problems and warnings of a config, each with the path of its key. A config with problems is rejected.

`schema` declares the sections and keys, and `cross_section_checks` compares them with each other. This module validates
a document, turns pydantic's errors into sentences, and adds what pydantic does not report: missing or unknown names,
values that look like API keys, and values that JSON cannot represent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from taskapp_kit.errors import closest
from taskapp_kit.jobs.client.config.schema import (
    LOCAL_SECTIONS,
    SMOKE_TEST_SECTIONS,
    ConfigSection,
    example_of,
    expected,
    inner_section,
    is_required,
    keys_of,
    sections_of,
)
from taskapp_kit.jobs.client.config.value_types import MAX_INTEGER
from taskapp_kit.jobs.client.config.values import Place, is_key_like, last_name, name_shown, place_shown, shown

Document = dict[str, Any]
Config = TypeVar("Config", bound=ConfigSection)

MAX_ERRORS_PER_LIST = 5
"""How many invalid elements of one list are reported."""
MAX_LEVELS = 64
NEAR_MISSING = 0.75
"""How similar an unknown name and a missing name must be for a suggestion."""


@dataclass(slots=True)
class Review:
    """The problems and warnings of a document, and the file's line for each key.

    A key or section has at most one problem and one warning.
    """

    problems: dict[Place, str] = field(default_factory=dict)
    warnings: dict[Place, str] = field(default_factory=dict)
    lines: Mapping[Place, int] = field(default_factory=dict)

    def problem(self, place: Place, text: str) -> None:
        """Add a problem, unless this key or section already has one."""
        self.problems.setdefault(place, text)

    def warn(self, place: Place, text: str) -> None:
        """Add a warning."""
        earlier = self.warnings.get(place)
        self.warnings[place] = text if earlier is None else f"{earlier} {text}"

    def mismatch(self, place: Place, value: Any, expectation: str, action: str) -> None:
        """Add the problem `[section] key: found X; expected Y. Do Z.`"""
        self.problem(place, mismatch(place, value, expectation, action))

    def in_line(self, place: Place) -> str:
        """Return ` in line N` for a key or section in a message, or an empty string if its line is unknown."""
        return f" in line {self.lines[place]}" if place in self.lines else ""

    def fits(self, *place: str) -> bool:
        """Return whether this key or section, and everything inside it, has no problems."""
        return not any(other[: len(place)] == place for other in self.problems)


def mismatch(place: Place, value: Any, expectation: str, action: str) -> str:
    """Return `[section] key: found X; expected Y. Do Z.`"""
    return f"{place_shown(place)}: found {shown(last_name(place), value)}; expected {expectation}. {action}"


def is_smoke_test(document: Document) -> bool:
    """Return whether a document has the smoke-test form: no [algorithm], but [trainer], [env] or [job]."""
    return "algorithm" not in document and any(name in document for name in SMOKE_TEST_SECTIONS)


def needs_gpus(document: Document) -> bool:
    """Return whether the config has to specify GPUs. The smoke-test form and configs for a local trainer don't."""
    services = document.get("services")
    local = isinstance(services, dict) and "task_app" in services
    return not (is_smoke_test(document) or local or any(name in document for name in LOCAL_SECTIONS))


def read_document(schema: type[Config], document: Document) -> tuple[Config, dict[Place, str]]:
    """Parse a document. Return the values that are valid, and a problem for each invalid value.

    In the result, a missing or invalid key is None, and a missing or invalid section has no keys.
    """
    try:
        return schema.model_validate(document), {}
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_context=False)
    problems: dict[Place, str] = {}
    unfit: set[Place] = set()
    per_key: Counter[Place] = Counter()
    for error in errors:
        if error["type"] == "string_unicode":  # only in overrides, because TOML and JSON have no lone surrogates
            place = error["loc"]
            unfit.add(place)
            where = place_shown(place) if place else "The document"
            problems[place] = f"{where}: found a name with a lone surrogate; expected valid Unicode. Rename this key."
            continue
        place, value = _existing(document, error["loc"])
        path, key = _key_at(schema, place)
        unfit.add(path)
        if place not in problems and per_key[path] < MAX_ERRORS_PER_LIST:
            per_key[path] += 1
            problems[place] = _unfit(place, value, str(path[-1]), key)
    return schema.model_validate({} if () in unfit else _without(document, unfit)), problems


def _existing(document: Document, location: Place) -> tuple[Place, Any]:
    """Convert a location in pydantic's error to a path in the document. Return the path and its value."""
    place: Place = ()
    value: Any = document
    for part in location:
        is_there = isinstance(value, list) if isinstance(part, int) else isinstance(value, dict) and part in value
        if not is_there:
            break  # the remaining parts name an alternative of a union
        place, value = (*place, part), value[part]
        if isinstance(part, int):
            break
    return place, value


def _key_at(schema: type[ConfigSection], place: Place) -> tuple[Place, FieldInfo | None]:
    """Return the path of the key that is at `place` or contains it, and the key's field in the schema.

    If there is a section at `place`, return `place` and None.
    """
    for depth, name in enumerate(place, start=1):
        key = schema.model_fields[str(name)]
        inner = inner_section(key)
        if inner is None:
            return place[:depth], key
        schema = inner
    return place, None


def _unfit(place: Place, value: Any, name: str, key: FieldInfo | None) -> str:
    if key is None:
        header = ".".join(map(str, place))
        return mismatch(place, value, "a section", f"Write [{header}] on a separate line, followed by its keys.")
    words = expected(key)
    expectation = words.element if isinstance(place[-1], int) else words.words
    return mismatch(place, value, expectation, f"Write, for example, {name} = {example_of(key)}.")


def _without(document: Document, places: set[Place]) -> Document:
    made = dict(document)
    for *above, name in sorted(places, key=len, reverse=True):
        table: Any = made
        for part in above:
            table[part] = dict(table[part])
            table = table[part]
        del table[name]
    return made


@dataclass(frozen=True, slots=True)
class NameCheck:
    """Adds a problem for each missing name, and a warning for each unknown or deprecated name.

    Attributes:
        needed: A function that returns whether the section at a path must be present with its required keys.
        unknown: The end of a sentence about an unknown name, such as `is sent with the job unchanged`.
    """

    review: Review
    schema: type[ConfigSection]
    needed: Callable[[Place], bool]
    unknown: str

    def check(self, document: Document, whole: Document) -> None:
        """Check a document.

        whole: The same document, with shared keys copied to every section that may contain them.
        """
        self._check(self.schema, document, whole, ())

    def _check(self, section: type[ConfigSection], table: Document, whole: Document, path: Place) -> None:
        for name, key in section.model_fields.items():
            place = (*path, name)
            if name not in whole and is_required(key) and self.needed(path or place):
                self._add_missing(section, name, key, table, whole, path)
        for name, value in table.items():
            if name not in section.model_fields:
                self._add_unknown(section, name, value, whole, path)
                continue
            place, key = (*path, name), section.model_fields[name]
            inner = inner_section(key)
            if inner is not None and isinstance(value, dict):
                if key.deprecated:
                    self.review.warn(place, f"[{name}] is deprecated. {key.deprecated}.")
                self._check(inner, value, whole[name], place)
            suggested = () if inner is not None else expected(key).suggested
            if suggested and isinstance(value, str) and value not in suggested:
                words = ", ".join(suggested)
                self.review.warn(place, f"{place_shown(place)} is not one of {words}. Some trainers may reject it.")

    def _add_missing(
        self, section: type[ConfigSection], name: str, key: FieldInfo, table: Document, whole: Document, path: Place
    ) -> None:
        inner = inner_section(key)
        if inner is not None:
            keys = ", ".join(name for name, each in keys_of(inner).items() if is_required(each))
            what, add, form = f"[{name}]: missing; expected a section with {keys}", "Add it.", "[{}]"
        else:
            add = f"Add, for example, {name} = {example_of(key)}."
            what, form = f"{place_shown((*path, name))}: missing; expected {expected(key).words}", "{}"
        near = closest(name, [each for each in whole if each not in section.model_fields], cutoff=NEAR_MISSING)
        if near and near not in table:
            return  # the problem is reported for the similar name instead
        action = f"If {form.format(name_shown(near))} is a misspelling of this name, correct it." if near else add
        self.review.problem((*path, near or name), f"{what}. {action}")

    def _add_unknown(self, section: type[ConfigSection], name: str, value: Any, whole: Document, path: Place) -> None:
        shown_name = name_shown(name)
        if not path and isinstance(value, dict):
            near = closest(name, section.model_fields)
            hint = f"; did you mean [{near}]?" if near else f", and {self.unknown}."
            text = f"[{shown_name}] is not a known section{hint}"
        elif not path:
            text = f"{shown_name} is not in a section, so no trainer reads it{self._section_with(name)}"
        else:
            unused = sorted(set(section.model_fields) - set(whole))
            near = closest(name, unused, cutoff=0.8 if section.free else 0.6)
            if section.free and not near:
                return
            header = ".".join(map(str, path))
            hint = f"; did you mean {near}?" if near else self._section_with(name, outside=header)
            text = f"[{header}] {shown_name} is unknown, and {self.unknown}{hint}"
        self.review.warn((*path, name), text)

    def _section_with(self, name: str, *, outside: str = "") -> str:
        """Return the end of a sentence about an unknown key.

        It suggests the section that has a key with this name, if any.
        """
        sections = sections_of(self.schema)
        home = next((header for header, section in sections if header != outside and name in keys_of(section)), None)
        return "." if home is None else f"; did you mean [{home}] {name}?"


def check_values(review: Review, document: Document) -> None:
    """Add a problem for each value that cannot be sent as JSON or looks like an API key."""
    warned: set[Place] = set()
    for place, value in _leaves(document):
        spot = place[: MAX_LEVELS // 2]
        if spot not in warned and is_key_like(last_name(place), value):
            warned.add(spot)
            review.warn(
                spot,
                f"{place_shown(spot)} looks like an API key, but the whole config is sent to the backend with the job. "
                "Remove it, and set the key in the environment or in an env file.",
            )
        if isinstance(value, (dict, list)):
            if value:
                review.problem(
                    place[:2],
                    f"{place_shown(place[:2])}: nested deeper than {MAX_LEVELS} levels; expected fewer. Flatten it.",
                )
        elif isinstance(value, (int, float)):
            if not (abs(value) <= MAX_INTEGER if isinstance(value, int) else math.isfinite(value)):
                other = "Infinity, NaN and larger integers cannot be sent as JSON."
                review.mismatch(place, value, "a finite number of at most 64 bits", other)
        elif not isinstance(value, str):
            action = "Put it in quotes: JSON has no dates." if hasattr(value, "isoformat") else "JSON has no such type."
            review.mismatch(place, value, "a string, a number, true or false, a list or a table", action)


def _leaves(document: Document) -> Iterator[tuple[Place, Any]]:
    """Yield every value that is not a table or a list, with its path.

    Values nested deeper than `MAX_LEVELS` are not split.
    """
    waiting: list[tuple[Place, Any]] = [((), document)]
    while waiting:
        place, value = waiting.pop()
        if len(place) < MAX_LEVELS and isinstance(value, dict):
            waiting += [((*place, name), inner) for name, inner in value.items()]
        elif len(place) < MAX_LEVELS and isinstance(value, list):
            waiting += [((*place, index), inner) for index, inner in enumerate(value)]
        else:
            yield place, value
