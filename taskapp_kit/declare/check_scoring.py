"""Checks of criteria, judges, rubric files and the blend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taskapp_kit.declare.check_functions import (
    OUTCOME_NAMES,
    chosen_environments,
    described,
    meet,
    own_docstring,
    taken_names,
)
from taskapp_kit.declare.declarations import Declaration, Declarations, Problems, is_number, one_of
from taskapp_kit.declare.rubric_file import (
    COMBINATIONS,
    Criterion,
    JudgeTable,
    RubricFile,
    is_role,
    read_rubric_file,
    wrong_choices,
)
from taskapp_kit.declare.source_location import did_you_mean, line_of
from taskapp_kit.declare.specs import CriterionSpec, JudgeSpec
from taskapp_kit.errors import DeclarationError
from taskapp_kit.records.scorecard import Blend

EVENT_NAMES = ("step", "trajectory", "task", "config")
"""The parameters that the kit can pass to a criterion of events."""
GROUP_NAMES = ("trajectories", "task", "config")
"""The parameters that the kit can pass to a group judge."""


# Each pair is (what the kit accepts, what to change), the last two fields of a Problem.
WEIGHT_IF_REQUIRED = ("a weight > 0, because weight 0 only reports the score", "set weight=, or remove required=True")
NO_SCALE = ("no scale, because the scores of steps are summed", "remove scale=, or use weight=")
GROUP_FUNCTION = ("def rank(trajectories), with one string returned for each", "add the parameter trajectories")
NO_GROUP = ("no group= or choices=, because it scores one rollout with a number", "remove group= and choices=")
QUESTION = ("a docstring, which is the question to the model", "add the question as the docstring")
MODEL_ROLES = ("one role or several, in lowercase letters, digits and _", 'write model="judge"')
OWN_NAME = ("a different id for the judge's question", "change the id, or remove judge, choices, scale and call")
DECLARED_JUDGE = ("neither judge = false nor call", "remove judge = false and call")
RUBRIC = ("an @app.rubric with this name", "declare the rubric, or set judge = true")
DESCRIPTION = ("a description, which is the question to the judge", "add a description, or declare the rubric")
BLEND = ("finite weights ≥ 0, at least one above 0", "write reward=Blend(env=1.0)")
WEIGHT = ("a finite number ≥ 0", "use weight=0 to only report the score; for a penalty, return a low score")
SCALE = ("(lowest, highest), both finite, with lowest < highest", "change scale=")


def check_criterion(app: Declarations, declared: Declaration, problems: Problems) -> CriterionSpec | None:
    """Return the spec of one `@app.rubric`, or None if it is invalid."""
    function, options = declared.target, declared.options
    place = line_of(function, declared.place)
    before = len(problems)
    if options["of"] not in ("outcome", "events"):
        fix = did_you_mean(str(options["of"]), ("outcome", "events"))
        problems.add(place, f"rubric {declared.name!r} has of={options['of']!r}", '"outcome" or "events"', fix)
    parameters = taken_names(declared, place, EVENT_NAMES if options["of"] == "events" else OUTCOME_NAMES, problems)
    _weight(declared, place, problems)
    if options["required"] and options["weight"] == 0:
        problems.add(place, f"rubric {declared.name!r} is required but has weight 0", *WEIGHT_IF_REQUIRED)
    scale = _scale(declared, place, problems)
    if options["of"] == "events" and tuple(scale) != (0, 1):
        problems.add(place, f"rubric {declared.name!r} of events has scale={options['scale']!r}", *NO_SCALE)
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


def check_judge(app: Declarations, declared: Declaration, problems: Problems) -> JudgeSpec | None:
    """Return the spec of one `@app.judge`, or None if it is invalid."""
    function, options = declared.target, declared.options
    place = line_of(function, declared.place)
    before = len(problems)
    parameters = taken_names(declared, place, GROUP_NAMES if options["group"] else OUTCOME_NAMES, problems)
    if options["group"] and "trajectories" not in parameters:
        problems.add(place, f"group judge {declared.name!r} lacks the parameter 'trajectories'", *GROUP_FUNCTION)
    _weight(declared, place, problems)
    environments = chosen_environments(app, declared, place, problems)
    scale = _scale(declared, place, problems)
    call_options = _call_options(declared, place, problems)
    if options["kind"] == "reward_model" and (options["group"] or call_options["choices"]):
        problems.add(place, f"judge {declared.name!r} is a reward model with group= or choices=", *NO_GROUP)
    if not own_docstring(function):
        problems.add(place, f"judge {declared.name!r} has no docstring", *QUESTION)
    if len(problems) > before:
        return None
    return JudgeSpec(
        name=declared.name,
        description=described(function, declared.name),
        weight=float(options["weight"]),
        scale=(float(scale[0]), float(scale[1])),
        group=bool(options["group"]),
        environments=environments,
        function=function,
        parameters=parameters,
        place=place,
        **call_options,
    )


def _call_options(declared: Declaration, place: str, problems: Problems) -> dict[str, Any]:
    """Return the checked options of the judge's model calls."""
    options, what = declared.options, f"judge {declared.name!r}"
    models, choices = options["model"], options["choices"]
    models = (models,) if isinstance(models, str) else tuple(models)
    if type(options["samples"]) is not int or options["samples"] < 1:
        problems.add(place, f"{what} has samples={options['samples']!r}", "an integer ≥ 1", "change samples=")
    if not models or len(set(models)) < len(models) or not all(map(is_role, models)):
        problems.add(place, f"{what} has model={options['model']!r}", *MODEL_ROLES)
    for name, known in (
        ("combine", COMBINATIONS),
        ("kind", ("chat", "reward_model")),
        ("form", ("json_schema", "text")),
    ):
        if options[name] not in known:
            problems.add(place, f"{what} has {name}={options[name]!r}", *one_of(options[name], known, "one of"))
    expected_choices = wrong_choices(choices)
    if expected_choices is not None:
        problems.add(place, f"{what} has choices={choices!r}", expected_choices, "change choices=")
    temperature = options["temperature"]
    if temperature is not None and (not is_number(temperature) or temperature < 0):
        problems.add(place, f"{what} has temperature={temperature!r}", "a number ≥ 0, or None", "change temperature=")
    return {
        "samples": options["samples"],
        "models": models,
        "combine": options["combine"],
        "choices": () if expected_choices is not None else tuple(choices),
        "kind": options["kind"],
        "form": options["form"],
        "temperature": temperature,
    }


def check_rubric_file(
    app: Declarations, declared: Declaration, criteria: list[CriterionSpec], judges: list[JudgeSpec], problems: Problems
) -> tuple[RubricFile | None, list[CriterionSpec], list[JudgeSpec]]:
    """Apply the file of one `app.load_rubric`, and return the file, all criteria and all judges.

    An entry with the name of a declared criterion or judge updates that declaration. Every other entry adds a judge.
    The returned file is None if it is invalid.
    """
    environments = chosen_environments(app, declared, declared.place, problems)
    try:
        file = read_rubric_file(declared.target, app.name)
    except DeclarationError as error:
        problems.extend(error.problems)
        return None, criteria, judges
    updated, updated_judges = list(criteria), list(judges)
    for entry in file.criteria:
        in_code = in_judge = False
        for at, criterion in enumerate(updated):
            if criterion.name == entry.id and meet(criterion.environments, environments):
                in_code = True
                updated[at] = replace(
                    criterion,
                    description=entry.description or criterion.description,
                    weight=entry.weight,
                    required=entry.required,
                    accumulate=entry.accumulate,
                )
        for at, judge in enumerate(updated_judges):
            if judge.name == entry.id and meet(judge.environments, environments):
                in_judge = True
                updated_judges[at] = replace(
                    judge,
                    description=entry.description or judge.description,
                    weight=entry.weight,
                    required=entry.required,
                    scale=entry.scale or judge.scale,
                    choices=entry.choices or judge.choices,
                )
        _check_entry(entry, in_code, in_judge, problems)
        if not in_code and not in_judge:
            updated_judges.append(_judge_of(entry, file.judge, environments))
    return file, updated, updated_judges


def _check_entry(entry: Criterion, in_code: bool, in_judge: bool, problems: Problems) -> None:
    """Check that an entry fits the @app.rubric or @app.judge with the same name."""
    name = f"criterion {entry.id!r}"
    if in_code and (entry.judge or entry.of_a_judge):
        problems.add(entry.place, f"{name} has settings for a judge, but an @app.rubric has this name", *OWN_NAME)
    elif in_judge and (entry.judge is False or entry.call is not None):
        problems.add(entry.place, f"{name} has judge = false or call, but an @app.judge has this name", *DECLARED_JUDGE)
    elif not in_code and not in_judge and entry.judge is False:
        problems.add(entry.place, f"{name} has judge = false, but no @app.rubric has this name", *RUBRIC)
    elif not in_code and not in_judge and not entry.description:
        problems.add(entry.place, f"{name} has no description, and no @app.rubric has this name", *DESCRIPTION)


def _judge_of(entry: Criterion, table: JudgeTable, environments: tuple[str, ...] | None) -> JudgeSpec:
    return JudgeSpec(
        name=entry.id,
        description=entry.description,
        weight=entry.weight,
        scale=entry.scale or (0.0, 1.0),
        samples=table.samples,
        group=False,
        environments=environments,
        function=None,
        parameters=(),
        place=entry.place,
        models=table.models,
        combine=table.combine,
        choices=entry.choices,
        form=table.form,
        temperature=table.temperature,
        required=entry.required,
        call=None if entry.call is None else (table.source, entry.call),
    )


def check_blend(app: Declarations, problems: Problems) -> Blend | None:
    """Return the app's `reward=`, or None if it is not set."""
    blend = app.reward
    if blend is None:
        return None
    parts = (blend.env, blend.event, blend.outcome)
    if not all(is_number(part) and part >= 0 for part in parts) or not any(parts):
        problems.add(app.place, f"reward={blend!r}", *BLEND)
    return blend


def _weight(declared: Declaration, place: str, problems: Problems) -> None:
    weight = declared.options["weight"]
    if not is_number(weight) or weight < 0:
        problems.add(place, f"{declared.kind} {declared.name!r} has weight={weight!r}", *WEIGHT)


def _scale(declared: Declaration, place: str, problems: Problems) -> Sequence[float]:
    scale = declared.options["scale"]
    if not (
        isinstance(scale, (tuple, list)) and len(scale) == 2 and all(map(is_number, scale)) and scale[0] < scale[1]
    ):
        problems.add(place, f"{declared.kind} {declared.name!r} has scale={scale!r}", *SCALE)
        return (0.0, 1.0)
    return scale
