"""Masks a task's private fields in the prompts, reasons and replies of judges that are stored and shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.declare.tasks import TaskSource, row_json
from taskapp_kit.records.content import Json, NotJson

SHORT = 4
"""A shorter value, and any number, is only replaced as a whole word, so that 7 is not replaced in 17."""
_MISSING = object()


def masker(spec: AppSpec, environment: str, task: Any) -> Callable[[str], str]:
    """Return a function that replaces all private values of the task in a string with `[private: FIELD]`, ignoring case.

    The values true and false are not replaced.
    """
    source = spec.environments[environment].tasks if environment in spec.environments else None
    if source is None or task is None:
        return _unchanged
    values: dict[str, str] = {}
    try:
        leaves = list(private_values(source, task))
    # the private parts are unknown, so nothing is shown
    except NotJson:
        return _hidden
    for field, value in leaves:
        for written in _spellings(value):
            values.setdefault(written.casefold(), field)
    return _replacing(values)


def final_state_masker(final_state: Json) -> Callable[[str], str]:
    """Return a function that masks the strings and numbers of the final state in a string, ignoring case.

    Values of fewer than SHORT characters are not replaced, because they occur everywhere.
    """
    values: dict[str, str] = {}
    for _, value in _leaves("", {"final_state": final_state}, {}):
        for written in _spellings(value):
            if len(written) >= SHORT:
                values.setdefault(written.casefold(), "final_state")
    return _replacing(values)


def _replacing(values: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces values with `[private: FIELD]`. values: maps lower-case values to fields."""
    if not values:
        return _unchanged
    # longest first, or only a part of a private value might be masked
    ordered = sorted(values, key=len, reverse=True)

    def mask(text: str) -> str:
        folded = text.casefold()
        there = [
            value for value in ordered if value in folded
        ]  # a row may have thousands of values, but a string contains few of them
        if not there:
            return text
        pattern = re.compile("|".join(map(_pattern, there)), re.IGNORECASE)
        return pattern.sub(lambda found: f"[private: {values.get(found[0].casefold(), 'field')}]", text)

    return mask


def private_values(source: TaskSource, task: Any) -> Iterator[tuple[str, Json]]:
    """Yield (field, value) for each string and number in a row's private fields. field: the outermost private field.

    Raises NotJson if the row is not JSON.
    """
    yield from _leaves("", row_json(task), source.public(task))


def _unchanged(text: str) -> str:
    return text


def _hidden(_: str) -> str:
    """Replace the whole string, because the private values of a row that is not JSON are unknown."""
    return "[not kept: the task's row is not JSON]"


def _leaves(name: str, full: Json, public: Any) -> Iterator[tuple[str, Json]]:
    """Yield (field, value) for each value in `full` that is missing in `public`. field: the outermost private field."""
    if isinstance(full, dict):
        inside = public if isinstance(public, dict) else {}
        for key, value in full.items():
            yield from _leaves(name if public is _MISSING else key, value, inside.get(key, _MISSING))
    elif isinstance(full, list):
        matched = isinstance(public, list) and len(public) == len(full)
        for at, value in enumerate(full):
            yield from _leaves(name, value, public[at] if matched else public)
    elif public is _MISSING and full is not None and not isinstance(full, bool):
        yield name, full


def _spellings(value: Json) -> set[str]:
    """Return the spellings of a value in text: unchanged, on one line, as JSON, as Python, and each long line separately."""
    if not isinstance(value, str):
        return {json.dumps(value), str(value)} | ({f"{value:g}"} if isinstance(value, float) else set())
    lines = [line.strip() for line in value.splitlines()]
    written = {value, value.strip(), json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    written |= {repr(value)[1:-1], " ".join(value.split()), *(line for line in lines if len(line) >= 2 * SHORT)}
    return {item for item in written if item.strip()}


def _pattern(value: str) -> str:
    quoted = re.escape(value)
    if len(value) >= SHORT and not re.fullmatch(r"-?[\d.]+(?:e[-+]?\d+)?", value):
        return quoted
    return rf"(?<![\w.]){quoted}(?![\w]|\.\d)"
