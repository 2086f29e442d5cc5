"""`freeze`, which checks every declaration, reports all problems together, and builds the frozen AppSpec.

`check_environment.py` and `check_actions.py` check environments. `single_turn.py` checks `app.tasks`.
`check_scoring.py` checks criteria, judges, rubric files and the blend. `check_functions.py` checks all other
functions. Each check adds its problems to a shared list, `Problems` in `declarations.py`, and returns a spec, or None
if the declaration is invalid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from taskapp_kit.declare.check_environment import check_environment
from taskapp_kit.declare.check_functions import (
    check_aggregate,
    check_metric,
    check_policy,
    check_rollout,
    meet,
    named_environments,
)
from taskapp_kit.declare.check_scoring import check_blend, check_criterion, check_judge, check_rubric_file
from taskapp_kit.declare.declarations import Declaration, Declarations, Problems, check_keywords
from taskapp_kit.declare.rubric_file import Aggregation
from taskapp_kit.declare.single_turn import check_questions
from taskapp_kit.declare.source_location import docstring, in_order, line_of
from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import DeclarationError

T = TypeVar("T")
ONE_NAME_EACH = (("environment", "tasks"), ("rubric", "judge"), ("policy",), ("metric",), ("aggregate",), ("rollout",))
"""Groups of declaration kinds; names must be unique within a group. An app has at most one rollout function."""


# The pair is (what the kit accepts, what to change), the last two fields of a Problem.
AN_ENVIRONMENT = ("one environment or one set of tasks", 'add @app.environment("name") to a class, or app.tasks(...)')


def freeze(app: Declarations) -> AppSpec:
    """Return the checked spec of an app. Raises DeclarationError with all problems, sorted by location."""
    problems = Problems()
    _duplicates(app, problems)
    for declared in app.declared:
        if declared.unknown:
            decorator, shown = getattr(type(app), declared.kind), f"@app.{declared.kind}"
            check_keywords(decorator, shown, declared.unknown, declared.place, problems)
    environments = _environments(app, problems)
    criteria = _checked(app, "rubric", check_criterion, problems)
    judges = _checked(app, "judge", check_judge, problems)
    aggregation: Aggregation = "weighted_sum"
    for declared in _declared(app, "rubric_file"):
        file, criteria, judges = check_rubric_file(app, declared, criteria, judges, problems)
        if file is not None:
            aggregation = file.aggregation
    policies = _checked(app, "policy", check_policy, problems)
    metrics = _checked(app, "metric", check_metric, problems)
    aggregates = _checked(app, "aggregate", check_aggregate, problems)
    for declared in _declared(app, "rollout"):
        check_rollout(declared, problems)
    reward = check_blend(app, problems)
    if problems:
        raise DeclarationError(app.name, sorted(problems, key=lambda problem: in_order(problem.place)))
    return AppSpec(
        name=app.name,
        version=app.version,
        description=app.description or docstring(app.docstring) or app.name,
        environments=environments,
        criteria=tuple(criteria),
        judges=tuple(judges),
        policies=tuple(policies),
        metrics=tuple(metrics),
        aggregates=tuple(aggregates),
        reward=reward,
        aggregation=aggregation,
        system_prompt=app.system_prompt,
        rollout_function=next((declared.target for declared in _declared(app, "rollout")), None),
    )


def _environments(app: Declarations, problems: Problems) -> dict[str, EnvironmentSpec]:
    """Return the environments by name, in declaration order. Having no environment is reported as a problem."""
    environments: dict[str, EnvironmentSpec] = {}
    declarations = _declared(app, "environment", "tasks")
    for declared in declarations:
        check = check_questions if declared.kind == "tasks" else check_environment
        spec = check(app, declared, problems)
        if spec is not None:
            environments.setdefault(spec.name, spec)
    if not declarations:
        problems.add(app.place, "the app declares no environment", *AN_ENVIRONMENT)
    return environments


def _checked(
    app: Declarations, kind: str, check: Callable[[Declarations, Declaration, Problems], T | None], problems: Problems
) -> list[T]:
    """Return the specs of all valid declarations of a kind."""
    specs = [check(app, declared, problems) for declared in _declared(app, kind)]
    return [spec for spec in specs if spec is not None]


def _duplicates(app: Declarations, problems: Problems) -> None:
    """Report declarations with the same name for the same environment. Different environments may reuse a name."""
    for kinds in ONE_NAME_EACH:
        seen: dict[str, list[Declaration]] = {}
        for declared in _declared(app, *kinds):
            others = seen.setdefault("@app.rollout" if kinds == ("rollout",) else declared.name, [])
            own = named_environments(declared)
            first = next((other for other in others if meet(named_environments(other), own)), None)
            others.append(declared)
            if first is not None:
                place, taken = (line_of(each.target, each.place) for each in (declared, first))
                problems.add_second(place, f"{declared.kind} {declared.name!r}", taken)


def _declared(app: Declarations, *kinds: str) -> list[Declaration]:
    return [declared for declared in app.declared if declared.kind in kinds]
