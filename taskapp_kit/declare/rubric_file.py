"""Rubric files: TOML, YAML or JSON with a list of criteria.

version = "1"
goal_text = "Reach the target"

[[criteria]]
id = "reached"
description = "The target was hit exactly."
weight = 3.0
required = false
"""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from taskapp_kit.declare.places import shown_path
from taskapp_kit.errors import DeclarationError, Problem, Unavailable

KNOWN = {"id", "description", "weight", "required", "accumulate"}
Aggregation = Literal["weighted_sum", "sum", "custom"]
AGGREGATIONS: tuple[Aggregation, ...] = ("weighted_sum", "sum", "custom")


@dataclass(frozen=True, slots=True)
class Criterion:
    """One entry of a rubric file. weight ≥ 0 and finite; accumulate False: the last event counts, not the sum."""

    id: str
    description: str
    weight: float
    required: bool
    accumulate: bool
    place: str


@dataclass(frozen=True, slots=True)
class RubricFile:
    """A rubric file: its criteria and how outcome criteria become one score."""

    criteria: tuple[Criterion, ...]
    aggregation: Aggregation


def read_rubric_file(path: Path, app: str) -> RubricFile:
    """The file, checked. Raises DeclarationError naming the file and the entry of each problem."""
    place = shown_path(str(path))
    data = _parse(path, place, app)
    entries = data.get("criteria") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not entries:
        raise DeclarationError(
            app, [Problem(place, "has no list 'criteria'", "a list of {id, description, weight}", "add [[criteria]]")]
        )
    problems: list[Problem] = []
    criteria: list[Criterion] = []
    aggregation = data.get("aggregation", "weighted_sum")
    if aggregation not in AGGREGATIONS:
        problems.append(
            Problem(place, f"has aggregation {aggregation!r}", f"one of {', '.join(AGGREGATIONS)}", "mend it")
        )
    for index, entry in enumerate(entries):
        where = f"{place} (criteria[{index}])"
        problem = _wrong(entry, where, {item.id for item in criteria})
        if problem is not None:
            problems.append(problem)
            continue
        criteria.append(
            Criterion(
                entry["id"],
                str(entry.get("description", "")),
                float(entry.get("weight", 1.0)),
                bool(entry.get("required", False)),
                bool(entry.get("accumulate", True)),
                where,
            )
        )
    if problems:
        raise DeclarationError(app, problems)
    return RubricFile(tuple(criteria), aggregation)


def _wrong(entry: Any, where: str, seen: set[str]) -> Problem | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or not entry["id"]:
        return Problem(where, "has no id", "a table with id, description, weight", "give it an id")
    unknown = sorted(set(entry) - KNOWN)
    if unknown:
        return Problem(where, f"has {unknown[0]!r}, which nothing reads", ", ".join(sorted(KNOWN)), "rename or drop it")
    if entry["id"] in seen:
        return Problem(where, f"repeats the id {entry['id']!r}", "one entry for each id", "rename or remove one")
    weight = entry.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight) or weight < 0:
        return Problem(where, f"has weight {weight!r}", "a finite number ≥ 0", "mend the weight")
    if entry.get("required") and weight == 0:
        return Problem(where, "is required and has weight 0", "a weight > 0: 0 only measures", "give it a weight")
    return None


def _parse(path: Path, place: str, app: str) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DeclarationError(
            app, [Problem(place, f"cannot be read ({error.strerror})", "a rubric file", "check the path")]
        ) from error
    suffix = path.suffix.lower()
    try:
        if suffix == ".toml":
            return tomllib.loads(text)
        if suffix == ".json":
            return json.loads(text)
        if suffix in (".yaml", ".yml"):
            try:
                import yaml
            except ImportError as error:
                raise Unavailable(f"{place} is YAML, which needs the package pyyaml.") from error
            return yaml.safe_load(text)
    except ValueError as error:
        raise DeclarationError(
            app, [Problem(place, f"does not parse: {error}", f"valid {suffix[1:]}", "mend the file")]
        ) from error
    except Exception as error:
        if type(error).__module__.startswith("yaml"):
            raise DeclarationError(
                app, [Problem(place, f"does not parse: {error}", "valid YAML", "mend the file")]
            ) from error
        raise
    raise DeclarationError(app, [Problem(place, f"ends in {suffix!r}", ".toml, .yaml or .json", "rename the file")])
