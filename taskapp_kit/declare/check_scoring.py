"""Everything that makes a score, checked: criteria, judges, rubric files and the blend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taskapp_kit.contract.scorecard import Blend
from taskapp_kit.declare.check_functions import (
    OUTCOME_NAMES,
    chosen_environments,
    described,
    meet,
    own_docstring,
    taken_names,
)
from taskapp_kit.declare.places import did_you_mean, line_of
from taskapp_kit.declare.problems import Problems, is_number
from taskapp_kit.declare.rubric_file import Criterion, RubricFile, read_rubric_file
from taskapp_kit.declare.specs import CriterionSpec, JudgeSpec
from taskapp_kit.declare.taskapp import Declared, TaskApp
from taskapp_kit.errors import DeclarationError

EVENT_NAMES = ("step", "trajectory", "task", "config")
"""What a criterion of events may take."""


def check_criterion(app: TaskApp, declared: Declared, problems: Problems) -> CriterionSpec | None:
    """The spec of one `@app.rubric`; None when something is wrong with it."""
    function, options = declared.target, declared.options
    place = line_of(function, declared.place)
    before = len(problems)
    if options["of"] not in ("outcome", "events"):
        problems.add(place, f"rubric {declared.name!r} has of={options['of']!r}", '"outcome" or "events"',
                     did_you_mean(str(options["of"]), ("outcome", "events")))  # fmt: skip
    parameters = taken_names(declared, place, EVENT_NAMES if options["of"] == "events" else OUTCOME_NAMES, problems)
    _weight(declared, place, problems)
    if options["required"] and options["weight"] == 0:
        problems.add(place, f"rubric {declared.name!r} is required and has weight 0", "a weight > 0: 0 only measures",
                     "give it a weight, or drop required=True")  # fmt: skip
    scale = _scale(declared, place, problems)
    environments = chosen_environments(app, declared, place, problems)
    if len(problems) > before:
        return None
    return CriterionSpec(
        name=declared.name,
        of=options["of"],
        description=described(function, declared.name),
        weight=float(options["weight"]),
        required=bool(options["required"]),
        environments=environments,
        function=function,
        parameters=parameters,
        place=place,
        scale=(float(scale[0]), float(scale[1])),
    )


def check_judge(app: TaskApp, declared: Declared, problems: Problems) -> JudgeSpec | None:
    """The spec of one `@app.judge`; None when something is wrong with it."""
    function, options = declared.target, declared.options
    place = line_of(function, declared.place)
    before = len(problems)
    parameters = taken_names(declared, place, OUTCOME_NAMES, problems)
    _weight(declared, place, problems)
    environments = chosen_environments(app, declared, place, problems)
    scale = _scale(declared, place, problems)
    if type(options["samples"]) is not int or options["samples"] < 1:
        problems.add(place, f"judge {declared.name!r} has samples={options['samples']!r}", "a whole number ≥ 1",
                     "mend samples")  # fmt: skip
    if not own_docstring(function):
        problems.add(place, f"judge {declared.name!r} has no docstring", "the question that the model is asked",
                     "write the question as the docstring")  # fmt: skip
    if len(problems) > before:
        return None
    return JudgeSpec(
        name=declared.name,
        description=described(function, declared.name),
        weight=float(options["weight"]),
        scale=(float(scale[0]), float(scale[1])),
        samples=options["samples"],
        group=bool(options["group"]),
        environments=environments,
        function=function,
        parameters=parameters,
        place=place,
    )


def check_rubric_file(
    app: TaskApp, declared: Declared, criteria: list[CriterionSpec], problems: Problems
) -> tuple[RubricFile | None, list[CriterionSpec], list[JudgeSpec]]:
    """One `app.load_rubric`: the file (None when it cannot be used), the criteria with what it says of them, its judges.

    An entry with the name of a declared criterion gives that one its weight; any other one becomes a judge's question.
    """
    file: RubricFile | None = None
    try:
        file = read_rubric_file(declared.target, app.name)
    except DeclarationError as error:
        problems.extend(error.problems)
    environments = chosen_environments(app, declared, declared.place, problems)
    told, judges = list(criteria), []
    for entry in file.criteria if file is not None else ():
        own = [at for at, spec in enumerate(told) if spec.name == entry.id and meet(spec.environments, environments)]
        for at in own:
            told[at] = replace(
                told[at], description=entry.description or told[at].description, weight=entry.weight,
                required=entry.required, accumulate=entry.accumulate,
            )  # fmt: skip
        if not own and not entry.description:
            problems.add(entry.place, f"criterion {entry.id!r} has no description, and no @app.rubric has its name",
                         "the question that a judge is asked", "give it a description, or declare the rubric")  # fmt: skip
        elif not own:
            judges.append(_judge_of(entry, environments))
    return file, told, judges


def _judge_of(entry: Criterion, environments: tuple[str, ...] | None) -> JudgeSpec:
    return JudgeSpec(
        name=entry.id,
        description=entry.description,
        weight=entry.weight,
        scale=(0.0, 1.0),
        samples=1,
        group=False,
        environments=environments,
        function=None,
        parameters=(),
        place=entry.place,
    )


def check_blend(app: TaskApp, problems: Problems) -> Blend | None:
    """The app's `reward=`, None when it has none."""
    blend = app.reward
    if blend is None:
        return None
    parts = (blend.env, blend.event, blend.outcome)
    if not all(is_number(part) and part >= 0 for part in parts) or not any(parts):
        problems.add(app.place, f"reward={blend!r}", "weights that are finite, ≥ 0 and not all 0",
                     "e.g. Blend(env=1.0)")  # fmt: skip
    return blend


def _weight(declared: Declared, place: str, problems: Problems) -> None:
    weight = declared.options["weight"]
    if not is_number(weight) or weight < 0:
        problems.add(place, f"{declared.kind} {declared.name!r} has weight={weight!r}", "a finite number ≥ 0",
                     "0 only measures; a penalty is a criterion that scores low")  # fmt: skip


def _scale(declared: Declared, place: str, problems: Problems) -> Sequence[float]:
    scale = declared.options["scale"]
    if not (
        isinstance(scale, (tuple, list)) and len(scale) == 2 and all(map(is_number, scale)) and scale[0] < scale[1]
    ):
        problems.add(place, f"{declared.kind} {declared.name!r} has scale={scale!r}", "(lowest, highest), finite",
                     "mend scale")  # fmt: skip
        return (0.0, 1.0)
    return scale
