"""Rubric files: TOML, YAML or JSON with a list of criteria.

version = "1"
goal_text = "Reach the target"

[[criteria]]
id = "reached"
description = "The target was hit exactly."
weight = 3.0
required = false

[[criteria]]
id = "tone"
judge = true                     # a judge scores it, even if an @app.rubric has this name
description = "Is the answer polite?"
choices = ["rude", "plain", "polite"]    # from worst to best; or scale = [0, 10]
call = "style"                   # criteria with the same call are scored in one request

[judge]                          # how this file's judges call models
model = "judge"                  # one role or a list of roles
samples = 1
combine = "mean"
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from taskapp_kit.declare.source_location import shown_path
from taskapp_kit.errors import DeclarationError, Problem

KNOWN_AT_TOP = {"version", "goal_text", "aggregation", "criteria", "judge"}
KNOWN = {"id", "description", "weight", "required", "accumulate", "judge", "choices", "scale", "call"}
KNOWN_OF_JUDGE = {"model", "samples", "combine", "form", "temperature"}
Aggregation = Literal["weighted_sum", "sum", "custom"]
AGGREGATIONS: tuple[Aggregation, ...] = ("weighted_sum", "sum", "custom")
Combination = Literal["mean", "median", "majority"]
COMBINATIONS: tuple[Combination, ...] = ("mean", "median", "majority")
MOST_BYTES = 1 << 20
"""The maximum size of a rubric file. People write these files by hand, so a larger file is a mistake."""
ROLE = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True, slots=True)
class Criterion:
    """One entry of a rubric file.

    Attributes:
        weight: Finite weight, at least 0.
        accumulate: Whether the scores of all steps are summed. If not, only the score of the last step counts.
        place: Location of the entry.
        judge: Whether a model scores the criterion. If it is None, the @app.rubric of the same name scores it, or a
            model if no such rubric exists.
        choices: Labels from which the model chooses instead of returning a number, from worst to best.
        scale: Lowest and highest score. None means 0 to 1.
        call: Name of a request to the model. Criteria with the same name are scored in one request.
    """

    id: str
    description: str
    weight: float
    required: bool
    accumulate: bool
    place: str
    judge: bool | None = None
    choices: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None
    call: str | None = None

    @property
    def of_a_judge(self) -> bool:
        """Whether the entry sets an option that only judges use."""
        return bool(self.choices) or self.scale is not None or self.call is not None


@dataclass(frozen=True, slots=True)
class JudgeTable:
    """The options of the judges in a file; see `@app.judge`. `source` is the file's path in messages."""

    source: str
    models: tuple[str, ...] = ("judge",)
    samples: int = 1
    combine: Combination = "mean"
    form: Literal["json_schema", "text"] = "json_schema"
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class RubricFile:
    """A rubric file: its criteria, the aggregation of outcome criteria, and the options of its judges."""

    criteria: tuple[Criterion, ...]
    aggregation: Aggregation
    judge: JudgeTable


def is_role(name: object) -> bool:
    """Return whether the name is a valid role of a model."""
    return isinstance(name, str) and ROLE.fullmatch(name) is not None and name != "policy"


def wrong_choices(choices: object) -> str | None:
    """Return a description of valid choices if `choices` is invalid, or None if it is valid or empty."""
    if isinstance(choices, (list, tuple)):
        labels = [label for label in choices if isinstance(label, str) and label.strip()]
        if not choices or (len(choices) >= 2 and len(labels) == len(choices) == len(set(labels))):
            return None
    return "at least two distinct labels, from worst to best"


def read_rubric_file(path: Path, app: str) -> RubricFile:
    """Read and check a rubric file. Raises DeclarationError with the location of each problem."""
    place = shown_path(str(path))
    data = _parse(path, place, app)
    entries = data.get("criteria") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not entries:
        raise DeclarationError(
            app, [Problem(place, "has no list `criteria`", "a list of {id, description, weight}", "add [[criteria]]")]
        )
    problems = _unknown_keys(data, KNOWN_AT_TOP, place)
    criteria: list[Criterion] = []
    aggregation = data.get("aggregation", "weighted_sum")
    if aggregation not in AGGREGATIONS:
        problems.append(
            Problem(place, f"has aggregation {aggregation!r}", f"one of {', '.join(AGGREGATIONS)}", "change the value")
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
                entry.get("description", ""),
                float(entry.get("weight", 1.0)),
                entry.get("required", False),
                entry.get("accumulate", True),
                where,
                entry.get("judge"),
                tuple(entry.get("choices", ())),
                _scale(entry),
                entry.get("call"),
            )
        )
    table = _judge_table(data.get("judge", {}), place, problems)
    if problems:
        raise DeclarationError(app, problems)
    return RubricFile(tuple(criteria), aggregation, table)


def _scale(entry: dict[str, Any]) -> tuple[float, float] | None:
    scale = entry.get("scale")
    return None if scale is None else (float(scale[0]), float(scale[1]))


def _unknown_keys(table: dict[str, Any], known: set[str], where: str) -> list[Problem]:
    """Return a list with the problem of the first unknown key, or an empty list if all keys are known."""
    return [
        Problem(where, f"has the unknown key {name!r}", ", ".join(sorted(known)), "rename or remove it")
        for name in sorted(map(str, set(table) - known))[:1]
    ]


def _judge_table(table: Any, place: str, problems: list[Problem]) -> JudgeTable:
    where = f"{place} (judge)"
    if not isinstance(table, dict):
        problems.append(Problem(where, f"has judge {table!r}", "a table", "use a table [judge]"))
        return JudgeTable(place)
    before = len(problems)
    problems += _unknown_keys(table, KNOWN_OF_JUDGE, where)
    models = table.get("model", "judge")
    models = (models,) if isinstance(models, str) else models
    if not isinstance(models, (list, tuple)) or not models or not all(map(is_role, models)):
        problems.append(Problem(where, f"has model {table['model']!r}", "one role or a list of roles", "change model"))
    samples = table.get("samples", 1)
    if type(samples) is not int or samples < 1:
        problems.append(Problem(where, f"has samples {samples!r}", "an integer ≥ 1", "change samples"))
    for name, accepted in (("combine", COMBINATIONS), ("form", ("json_schema", "text"))):
        if table.get(name, accepted[0]) not in accepted:
            problems.append(Problem(where, f"has {name} {table[name]!r}", f"one of {', '.join(accepted)}", "change it"))
    temperature = table.get("temperature")
    if temperature is not None and (not _number(temperature) or temperature < 0):
        problems.append(Problem(where, f"has temperature {temperature!r}", "a number ≥ 0", "change temperature"))
    if len(problems) > before:
        return JudgeTable(place)
    combine, form = table.get("combine", "mean"), table.get("form", "json_schema")
    return JudgeTable(place, tuple(models), samples, combine, form, temperature)


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _wrong(entry: Any, where: str, seen: set[str]) -> Problem | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or not entry["id"]:
        return Problem(where, "has no id", "a table with id, description and weight", "add an id")
    unknown = _unknown_keys(entry, KNOWN, where)
    if unknown:
        return unknown[0]
    if entry["id"] in seen:
        return Problem(where, f"repeats the id {entry['id']!r}", "one entry for each id", "rename or remove one")
    if not isinstance(entry.get("description", ""), str):
        found = f"has a description that is a {type(entry['description']).__name__}"
        return Problem(where, found, "a string", "write the description as a string")
    for name in ("required", "accumulate"):
        if not isinstance(entry.get(name, False), bool):
            return Problem(where, f"has {name} {entry[name]!r}", "true or false", f"change {name}")
    weight = entry.get("weight", 1.0)
    if not _number(weight) or weight < 0:
        return Problem(where, f"has weight {weight!r}", "a finite number ≥ 0", "change weight")
    if entry.get("required") and weight == 0:
        return Problem(where, "is required but has weight 0", "a weight > 0", "set weight, or remove required")
    return _wrong_for_a_judge(entry, where)


def _wrong_for_a_judge(entry: dict[str, Any], where: str) -> Problem | None:
    judge, call, scale = entry.get("judge"), entry.get("call"), entry.get("scale")
    if judge is not None and not isinstance(judge, bool):
        return Problem(where, f"has judge {judge!r}", "true or false", "change judge")
    expected_choices = wrong_choices(entry.get("choices", ()))
    if expected_choices is not None:
        return Problem(where, f"has choices {entry['choices']!r}", expected_choices, "change choices")
    if scale is not None and not (
        isinstance(scale, list) and len(scale) == 2 and all(map(_number, scale)) and scale[0] < scale[1]
    ):
        return Problem(where, f"has scale {scale!r}", "[lowest, highest], finite, lowest < highest", "change scale")
    if call is not None and (not isinstance(call, str) or not call):
        return Problem(where, f"has call {call!r}", "a non-empty string", "change call")
    return None


def _parse(path: Path, place: str, app: str) -> Any:
    try:
        if path.exists() and (not path.is_file() or path.stat().st_size > MOST_BYTES):
            found = f"is not a regular file of at most {MOST_BYTES} bytes"
            raise DeclarationError(app, [Problem(place, found, "a rubric file", "check the path")])
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
            return _without_aliases()(text).get_single_data()
    except (ValueError, RecursionError) as error:
        raise DeclarationError(
            app, [Problem(place, f"does not parse: {error}", f"valid {suffix[1:].upper()}", "fix the file")]
        ) from error
    except Exception as error:
        if type(error).__module__.startswith("yaml"):
            raise DeclarationError(
                app, [Problem(place, f"does not parse: {error}", "valid YAML", "fix the file")]
            ) from error
        raise
    raise DeclarationError(app, [Problem(place, f"ends in {suffix!r}", ".toml, .yaml or .json", "rename the file")])


def _without_aliases() -> Any:
    """Return PyYAML's safe loader, which rejects aliases, because they can expand a few hundred bytes to terabytes."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()  # type: ignore[no-untyped-call]
                raise yaml.composer.ComposerError(
                    None, None, f"the alias *{event.anchor} is not supported", event.start_mark
                )
            return super().compose_node(parent, index)

    return Loader
