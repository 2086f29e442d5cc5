"""Checks of each declared function: its parameters, its environments, its docstring.

Policies, metrics, aggregates and the rollout function are checked here; criteria and judges in `check_scoring.py`.
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
"""The parameters available to a function that reads a finished episode."""
POLICY_NAMES = ("observation", "rng")
"""The parameters available to a policy; `gold` may also take `task`."""


# What the kit accepts, and what to change: the second half of each problem.
ONE_PARAMETER = ("one parameter: the rollouts' summaries", "def score(rollouts)")
FIGURES = ('finite numbers by name, for each heading, e.g. {"a paper": {"score": 1.5}}', "fix published")
ASYNC_FUNCTION = ("async def play(env, model, task)", "write `async def`")


def check_policy(app: Declarations, declared: Declaration, problems: Problems) -> AuthorPolicySpec | None:
    """Return the spec of one `@app.policy`; None if it is invalid."""
    before = len(problems)
    allowed = (*POLICY_NAMES, "task") if declared.name == "gold" else POLICY_NAMES
    members = _members(
        app,
        declared,
        allowed,
        problems,
        otherwise="what a policy needs to know beside observations goes into rows (tasks=) as Private fields, which the "
        "policy named gold takes as `task`",
    )
    return AuthorPolicySpec(**members) if len(problems) == before else None


def check_metric(app: Declarations, declared: Declaration, problems: Problems) -> MetricSpec | None:
    """Return the spec of one `@app.metric`; None if it is invalid."""
    before = len(problems)
    if declared.name in RESERVED_METRICS:
        place, found = line_of(declared.target, declared.place), "has a name that the kit reserves"
        expected = f"another name than {', '.join(sorted(RESERVED_METRICS))}"
        problems.add(place, f"metric {declared.name!r} {found}", expected, "rename it, or give name=")
    members = _members(app, declared, OUTCOME_NAMES, problems)
    return MetricSpec(**members) if len(problems) == before else None


def _members(
    app: Declarations, declared: Declaration, allowed: Sequence[str], problems: Problems, otherwise: str = "rename it"
) -> dict[str, Any]:
    """Return the members of a `FunctionSpec`, checked."""
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
    """Return the spec of one `@app.aggregate`; None if it is invalid."""
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
    """Return True for a mapping of headings to mappings of names to finite numbers."""
    return isinstance(published, Mapping) and all(
        isinstance(heading, str)
        and isinstance(figures, Mapping)
        and all(isinstance(name, str) and is_number(value) for name, value in figures.items())
        for heading, figures in published.items()
    )


def check_rollout(declared: Declaration, problems: Problems) -> None:
    """Check that `@app.rollout` decorates an async function, in any form; what a lambda returns is seen when it is called."""
    target, called = declared.target, getattr(declared.target, "__call__", None)  # noqa: B004  the method itself
    if not any(map(inspect.iscoroutinefunction, (target, called))) and getattr(target, "__name__", "") != "<lambda>":
        problems.add(line_of(declared.target, declared.place), "@app.rollout needs an async function", *ASYNC_FUNCTION)


def taken_names(
    declared: Declaration, place: str, allowed: Sequence[str], problems: Problems, *, otherwise: str = "rename it"
) -> tuple[str, ...]:
    """Return the parameters that the function receives. allowed: those available; otherwise: what else the author can do."""
    if not callable(declared.target):
        problems.add(place, f"{declared.kind} {declared.name!r} is {declared.target!r}", "a function", "fix it")
        return ()
    names = readable_names(declared.target, place, f"{declared.kind} {declared.name!r}", problems)
    needed = needed_names(declared.target) if names else ()
    names = tuple(name for name in names if name in allowed or name in needed)  # other parameters use their defaults
    for name in names:
        if name not in allowed:
            problems.add_untaken(place, f"{declared.kind} {declared.name!r}", name, allowed, otherwise)
    return names


def readable_names(function: Any, place: str, what: str, problems: Problems) -> tuple[str, ...]:
    """Parameter names; a callable without a readable signature is a problem. what: describes the function in messages."""
    try:
        return names_of(function)
    except (TypeError, ValueError) as error:
        problems.add(place, f"{what} has no signature to read: {error}", "a plain function", "write a def")
        return ()


def chosen_environments(
    app: Declarations, declared: Declaration, place: str, problems: Problems
) -> tuple[str, ...] | None:
    """Return the environments that a declaration is for, None for all; each has to be declared."""
    names = named_environments(declared)
    known = [item.name for item in app.declared if item.kind in ("environment", "tasks")]
    for name in names or ():
        if name not in known:
            found = f"{declared.kind} {declared.name!r} is for environment {name!r}, which is not declared"
            problems.add(place, found, *one_of(name, known or ["(none is declared)"], "one of"))
    return names


def named_environments(declared: Declaration) -> tuple[str, ...] | None:
    """`environment=` as it was given: one name, several, or None for all."""
    given = declared.environments
    return (given,) if isinstance(given, str) else None if given is None else tuple(given)


def meet(one: tuple[str, ...] | None, two: tuple[str, ...] | None) -> bool:
    """Return whether two declarations share an environment; None is for all."""
    return one is None or two is None or not set(one).isdisjoint(two)


def own_docstring(function: Any) -> str:
    """Return the docstring that the author wrote; a callable object's class does not count."""
    return docstring(getattr(function, "__doc__", None)) if hasattr(function, "__code__") else ""


def described(function: Any, name: str) -> str:
    """Return the function's description: its docstring, else its name in words."""
    return own_docstring(function) or name.replace("_", " ")
