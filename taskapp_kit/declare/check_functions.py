"""Checks of declared functions: their parameters, environments and docstrings.

This module checks policies, metrics, aggregates and the rollout function. `check_scoring.py` checks criteria and
judges.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from taskapp_kit.declare.declarations import Declaration, Declarations, Problems, is_number, one_of
from taskapp_kit.declare.signature import names_of, needed_names
from taskapp_kit.declare.source_location import docstring, line_of
from taskapp_kit.declare.specs import AggregateSpec, AuthorPolicySpec, MetricSpec
from taskapp_kit.records.trajectory import RESERVED_METRICS

OUTCOME_NAMES = ("trajectory", "task", "config", "answer_text")
"""The parameters that the kit can pass to a function that reads a finished episode."""
POLICY_NAMES = ("observation", "rng")
"""The parameters that the kit can pass to a policy. The policy `gold` also receives `task`."""


# Each pair is (what the kit accepts, what to change), the last two fields of a Problem.
ONE_PARAMETER = ("one parameter, which receives the summaries of the rollouts", "write it like def score(rollouts)")
FIGURES = ('finite numbers by name under each heading, e.g. {"a paper": {"score": 1.5}}', "change published=")
ASYNC_FUNCTION = ("async def play(env, model, task)", "declare it with `async def`")


def check_policy(app: Declarations, declared: Declaration, problems: Problems) -> AuthorPolicySpec | None:
    """Return the spec of one `@app.policy`, or None if it is invalid."""
    before = len(problems)
    allowed = (*POLICY_NAMES, "task") if declared.name == "gold" else POLICY_NAMES
    members = _members(
        app,
        declared,
        allowed,
        problems,
        otherwise="remove it, or name the policy gold, which receives the row with its Private fields as `task`",
    )
    return AuthorPolicySpec(**members) if len(problems) == before else None


def check_metric(app: Declarations, declared: Declaration, problems: Problems) -> MetricSpec | None:
    """Return the spec of one `@app.metric`, or None if it is invalid."""
    before = len(problems)
    if declared.name in RESERVED_METRICS:
        place, found = line_of(declared.target, declared.place), "has a name that the kit reserves"
        expected = f"a name other than {', '.join(sorted(RESERVED_METRICS))}"
        problems.add(place, f"metric {declared.name!r} {found}", expected, "rename it, or set name=")
    members = _members(app, declared, OUTCOME_NAMES, problems)
    return MetricSpec(**members) if len(problems) == before else None


def _members(
    app: Declarations, declared: Declaration, allowed: Sequence[str], problems: Problems, otherwise: str = "rename it"
) -> dict[str, Any]:
    """Return the checked values for the fields of a `FunctionSpec`, and report problems."""
    place = line_of(declared.target, declared.place)
    return {
        "name": declared.name,
        "description": described(declared.target, declared.name),
        "function": declared.target,
        "parameters": taken_names(declared, place, allowed, problems, otherwise=otherwise),
        "environments": chosen_environments(app, declared, place, problems),
        "place": place,
    }


def check_aggregate(app: Declarations, declared: Declaration, problems: Problems) -> AggregateSpec | None:
    """Return the spec of one `@app.aggregate`, or None if it is invalid."""
    place = line_of(declared.target, declared.place)
    before = len(problems)
    names = readable_names(declared.target, place, f"aggregate {declared.name!r}", problems)
    if len(names) != 1:
        problems.add(place, f"aggregate {declared.name!r} takes {', '.join(names) or 'nothing'}", *ONE_PARAMETER)
    environments = chosen_environments(app, declared, place, problems)
    published = declared.options["published"]
    if not _are_figures(published):
        problems.add(place, f"aggregate {declared.name!r} has published={published!r}"[:200], *FIGURES)
    if len(problems) > before:
        return None
    return AggregateSpec(
        name=declared.name,
        description=described(declared.target, declared.name),
        environments=environments,
        function=declared.target,
        parameters=names,
        place=place,
        published={heading: dict(figures) for heading, figures in published.items()},
    )


def _are_figures(published: Any) -> bool:
    """Return whether the value maps headings to mappings from name to finite number."""
    return isinstance(published, Mapping) and all(
        isinstance(heading, str)
        and isinstance(figures, Mapping)
        and all(isinstance(name, str) and is_number(value) for name, value in figures.items())
        for heading, figures in published.items()
    )


def check_rollout(declared: Declaration, problems: Problems) -> None:
    """Check that `@app.rollout` decorates an async function. A lambda is accepted, as its result may be awaitable."""
    target, called = declared.target, getattr(declared.target, "__call__", None)  # noqa: B004  the method itself
    if not any(map(inspect.iscoroutinefunction, (target, called))) and getattr(target, "__name__", "") != "<lambda>":
        problems.add(line_of(declared.target, declared.place), "@app.rollout needs an async function", *ASYNC_FUNCTION)


def taken_names(
    declared: Declaration, place: str, allowed: Sequence[str], problems: Problems, *, otherwise: str = "rename it"
) -> tuple[str, ...]:
    """Return the names of the parameters that the kit passes to the function.

    A parameter that is not in `allowed` is excluded if it has a default. If it has no default, it is reported as a
    problem whose fix is `otherwise`.
    """
    if not callable(declared.target):
        problems.add(place, f"{declared.kind} {declared.name!r} is {declared.target!r}", "a function", "use a function")
        return ()
    names = readable_names(declared.target, place, f"{declared.kind} {declared.name!r}", problems)
    needed = needed_names(declared.target) if names else ()
    names = tuple(name for name in names if name in allowed or name in needed)
    for name in names:
        if name not in allowed:
            problems.add_untaken(place, f"{declared.kind} {declared.name!r}", name, allowed, otherwise)
    return names


def readable_names(function: Any, place: str, what: str, problems: Problems) -> tuple[str, ...]:
    """Return the names of a function's parameters.

    If its signature is not readable, report a problem that names `what`.
    """
    try:
        return names_of(function)
    except (TypeError, ValueError) as error:
        problems.add(place, f"{what} has no readable signature: {error}", "a plain function", "define it with def")
        return ()


def chosen_environments(
    app: Declarations, declared: Declaration, place: str, problems: Problems
) -> tuple[str, ...] | None:
    """Return the environments of a declaration, or None for all. An environment that is not declared is reported."""
    names = named_environments(declared)
    known = [item.name for item in app.declared if item.kind in ("environment", "tasks")]
    for name in names or ():
        if name not in known:
            found = f"{declared.kind} {declared.name!r} is for environment {name!r}, which is not declared"
            problems.add(place, found, *one_of(name, known or ["(no environment is declared)"], "one of"))
    return names


def named_environments(declared: Declaration) -> tuple[str, ...] | None:
    """Return the value of `environment=` as a tuple, or None for all environments."""
    names = declared.environments
    return (names,) if isinstance(names, str) else None if names is None else tuple(names)


def meet(first: tuple[str, ...] | None, second: tuple[str, ...] | None) -> bool:
    """Return whether the environments of two declarations overlap. None means all environments."""
    return first is None or second is None or not set(first).isdisjoint(second)


def own_docstring(function: Any) -> str:
    """Return the docstring of a function. The docstring of a callable object's class does not count."""
    return docstring(getattr(function, "__doc__", None)) if hasattr(function, "__code__") else ""


def described(function: Any, name: str) -> str:
    """Return the function's docstring, or its name with spaces if it has no docstring."""
    return own_docstring(function) or name.replace("_", " ")
