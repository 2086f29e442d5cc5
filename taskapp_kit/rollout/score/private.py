"""Masks a task's private fields in what is stored and shown of a judge: its prompts, reasons and answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.declare.tasks import TaskSource, row_json
from taskapp_kit.records.content import Json, NotJson

SHORT = 4
"""A shorter value, and every number, is replaced only as a whole word: 7 is not replaced in 17."""
_MISSING = object()


def masker(spec: AppSpec, environment: str, task: Any) -> Callable[[str], str]:
    """Return a function that replaces every private value of the task, in upper or lower case, by `[private: FIELD]`.

    The values true and false are not replaced.
    """
    source = spec.environments[environment].tasks if environment in spec.environments else None
    if source is None or task is None:
        return _unchanged
    values: dict[str, str] = {}
    try:
        leaves = list(private_values(source, task))
    # which parts are private is unknown, so nothing is shown
    except NotJson:
        return _hidden
    for field, value in leaves:
        for written in _spellings(value):
            values.setdefault(written.casefold(), field)
    return _replacing(values)


def final_state_masker(final_state: Json) -> Callable[[str], str]:
    """Return a function that replaces the end state's strings and numbers of SHORT characters or more, ignoring case.

    Shorter ones stay: they occur everywhere.
    """
    values: dict[str, str] = {}
    for _, value in _leaves("", {"final_state": final_state}, {}):
        for written in _spellings(value):
            if len(written) >= SHORT:
                values.setdefault(written.casefold(), "final_state")
    return _replacing(values)


def _replacing(values: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces these values (in lower case) by `[private: FIELD]`. values: to their fields."""
    if not values:
        return _unchanged
    # longest first, or a part of a private value would be masked and the rest shown
    ordered = sorted(values, key=len, reverse=True)

    def mask(text: str) -> str:
        folded = text.casefold()
        there = [
            value for value in ordered if value in folded
        ]  # a row may have thousands, and a text contains few of them
        if not there:
            return text
        pattern = re.compile("|".join(map(_pattern, there)), re.IGNORECASE)
        return pattern.sub(lambda found: f"[private: {values.get(found[0].casefold(), 'field')}]", text)

    return mask


def private_values(source: TaskSource, task: Any) -> Iterator[tuple[str, Json]]:
    """Yield the strings and numbers in a row's private fields, each with the name of its outermost private field.

    Raises NotJson for a row that is not JSON.
    """
    yield from _leaves("", row_json(task), source.public(task))


def _unchanged(text: str) -> str:
    return text


def _hidden(_: str) -> str:
    """Replace the whole text: the private values of a row that is not JSON are unknown."""
    return "[not kept: the task's row is not JSON]"


def _leaves(name: str, full: Json, public: Any) -> Iterator[tuple[str, Json]]:
    """Yield the values that are in `full` but not in `public`, with the name of their outermost private field."""
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
    """Return the forms in which a value may occur in text: unchanged, on one line, as JSON or Python; also its longer lines."""
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
