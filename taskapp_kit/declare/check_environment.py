"""Checks of `@app.environment`: the constructor, reset and hooks of the class, and the declared splits and limits."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from taskapp_kit.declare.check_actions import KIT_METHODS, check_actions
from taskapp_kit.declare.check_functions import readable_names
from taskapp_kit.declare.declarations import (
    NOT_GIVEN,
    Declaration,
    Declarations,
    Problems,
    check_name,
    check_splits,
    is_number,
)
from taskapp_kit.declare.marks import ATTRIBUTE, PROBLEMS
from taskapp_kit.declare.rubric_file import is_role
from taskapp_kit.declare.signature import Arguments, SignatureProblem, needed_names, parameters_of
from taskapp_kit.declare.source_location import did_you_mean, docstring, line_of
from taskapp_kit.declare.specs import DEFAULT_MAX_TURNS, EnvironmentSpec
from taskapp_kit.records.seeds import SEED_LIMIT, overlap

RESET_NAMES = ("seed", "task", "split", "context")
STEP_LIMIT = "step_limit"
"""Class attribute with the number of steps after which the class itself ends episodes, like Gymnasium's time limit."""
MODELS = "auxiliary_models"
"""Class attribute with the roles of models that an adapter calls in addition to the declared roles."""
RESERVED_CONFIG = ("split", "index")


# Each pair is (what the kit accepts, what to change), the last two fields of a Problem.
A_CLASS = ("a class", "decorate a class with @app.environment(...)")
SPLITS_OR_TASKS = ("either splits= or tasks=", "remove splits=, because the keys of tasks= are the splits")
PARAMETERS = (
    "annotated parameters with defaults that JSON can represent",
    "annotate each parameter of __init__, because requests set them with env.config",
)
NOT_RESERVED = ("a different name", "rename it, because `split` and `index` in env.config select the task")
A_RESET = ("def reset(self, seed: int) -> observation", "add reset; its parameters are seed, task, split, context")
ROWS = ("tasks= on @app.environment", "add tasks={...}, or replace 'task' with 'seed'")
CLASS_METHOD = ("a classmethod, because it runs once per process, before any instance exists", "add @classmethod")
SPLITS = ("a mapping from the name of each split to its range of seeds", 'write splits={"train": range(0, 100)}')
SEEDS = ("a non-empty range of seeds, starting at 0 or above", 'write splits={"train": range(0, 100)}')
DISJOINT = ("disjoint ranges, because the seed determines the split", "change one of the ranges")
ROLES = ("distinct roles in lowercase letters, digits and _, other than policy", 'write models=("user",)')
ACCEPT = ("a mapping from the name of a doctor check to a reason", 'write accept={"private": "…"}')
BASELINES = ("the highest acceptable mean reward of each policy, by name", 'write baselines={"random": 0.2}')


def check_environment(app: Declarations, declared: Declaration, problems: Problems) -> EnvironmentSpec | None:
    """Return the spec of one `@app.environment`, or None if it is invalid."""
    cls, options = declared.target, declared.options
    place = line_of(cls, declared.place)
    before = len(problems)
    if not isinstance(cls, type):
        problems.add(place, f"environment {declared.name!r} is declared on {cls!r}", *A_CLASS)
        return None
    check_name(declared, problems)
    if hasattr(cls, PROBLEMS):
        problems.extend(getattr(cls, PROBLEMS))
        return None
    config = _config(cls, place, problems)
    has_rows = options["tasks"] is not None and check_splits("tasks=", options["tasks"], place, problems)
    tasks = app.task_source(declared) if has_rows else None
    reset_parameters = _reset(cls, place, problems, rows=tasks is not None)
    actions = check_actions(cls, place, problems)
    splits = _splits(declared, place, problems)
    if tasks is not None:
        if options["splits"] is not None:
            problems.add(place, f"environment {declared.name!r} has both splits= and tasks=", *SPLITS_OR_TASKS)
        problems.extend(tasks.check())
    _limits(options, place, problems)
    models = declared_models(options["models"], place, problems) + tuple(getattr(cls, MODELS, ()))
    _steps_parameter(options["max_steps"], config, place, problems)
    _hooks(cls, problems)
    if len(problems) > before or config is None:
        return None
    return EnvironmentSpec(
        name=declared.name,
        cls=cls,
        description=docstring(cls.__doc__),
        version=str(options["version"]),
        place=place,
        config=config,
        actions=actions,
        reset_parameters=reset_parameters,
        splits=splits,
        tasks=tasks,
        max_steps=_most_steps(options["max_steps"], config),
        max_steps_parameter=options["max_steps"] if isinstance(options["max_steps"], str) else None,
        max_turns=None if options["max_turns"] is NOT_GIVEN else options["max_turns"],
        max_refusals=options["max_refusals"],
        default_max_turns=None if _has_limit(cls, options) else DEFAULT_MAX_TURNS,
        step_timeout_seconds=options["step_timeout_seconds"],
        isolation=options["isolation"],
        models=models,
        reward_range=options["reward_range"],
        baselines=dict(options["baselines"] or {}),
        accept=accepted_checks(options["accept"], place, problems),
        tags=options["tags"],
        system_prompt=options["prompt"],
        has_final_state=callable(getattr(cls, "final_state", None)),
        has_actions=callable(getattr(cls, "actions", None)),
        has_close=callable(getattr(cls, "close", None)),
        has_setup_worker=callable(getattr(cls, "setup_worker", None)),
    )


def _config(cls: type, place: str, problems: Problems) -> Arguments | None:
    """Return the constructor's parameters, which become `env.config`."""
    init = cls.__dict__.get("__init__") or next(
        (vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base) and base is not object), None
    )
    if init is None:
        return Arguments(f"{cls.__name__}_config", ())
    where = line_of(init, place)
    for name in ("__new__", "__init__", "__post_init__"):
        if inspect.iscoroutinefunction(getattr(cls, name, None)):
            found = f"{cls.__name__}.{name} is async, but Python never awaits it"
            place = line_of(getattr(cls, name), where)
            problems.add(place, found, f"def {name}(self, ...)", "move the await to reset, which may be async")
            return None
    try:
        parameters = parameters_of(init, skip_first=True)
        arguments = Arguments(f"{cls.__name__}_config", tuple(parameters))
        arguments.schema  # noqa: B018  building the schema raises the SignatureProblem
    except SignatureProblem as error:
        problems.add(where, str(error), *PARAMETERS)
        return None
    for item in parameters:
        if item.name in RESERVED_CONFIG:
            problems.add(where, f"__init__ takes {item.name!r}", *NOT_RESERVED)
        if item.default is inspect.Parameter.empty:
            expected = "a default for each parameter, because requests may omit env.config"
            problems.add(where, f"__init__ has no default for {item.name!r}", expected, f"give {item.name!r} a default")
    return arguments


def _reset(cls: type, place: str, problems: Problems, *, rows: bool) -> tuple[str, ...]:
    """Return the names of the parameters of `reset`."""
    reset = getattr(cls, "reset", None)
    if not callable(reset):
        problems.add(place, f"{cls.__name__} has no reset", *A_RESET)
        return ()
    names = readable_names(reset, place, f"{cls.__name__}.reset", problems)
    for name in names:
        if name not in RESET_NAMES:
            problems.add_untaken(line_of(reset, place), f"{cls.__name__}.reset", name, RESET_NAMES)
    if "task" in names and not rows:
        problems.add(line_of(reset, place), f"{cls.__name__}.reset has 'task', but the environment has no rows", *ROWS)
    return names


def _hooks(cls: type, problems: Problems) -> None:
    """Check the optional methods, which the kit calls without arguments."""
    for name in KIT_METHODS[1:]:
        hook = getattr(cls, name, None)
        if hook is None or getattr(hook, ATTRIBUTE, None) is not None or not callable(hook):
            continue
        place = line_of(hook, "")
        of_class = isinstance(inspect.getattr_static(cls, name), (staticmethod, classmethod))
        if name == "setup_worker" and not of_class:
            problems.add(place, f"{cls.__name__}.setup_worker is not a classmethod", *CLASS_METHOD)
            continue
        needed = needed_names(hook) if place else ()
        if needed:
            found = f"{cls.__name__}.{name} requires {needed[0]!r}, but the kit calls it without arguments"
            problems.add(place, found, "no required parameters", f"write def {name}({'cls' if of_class else 'self'})")


def _splits(declared: Declaration, place: str, problems: Problems) -> dict[str, range]:
    """Return the seeds of each split. The default is one split with all seeds. Empty if the environment has rows."""
    splits: Any = declared.options["splits"]
    if declared.options["tasks"] is not None:
        return {}
    if splits is None:
        return {"default": range(SEED_LIMIT)}
    if not callable(getattr(splits, "items", None)):
        problems.add(place, f"splits={splits!r}", *SPLITS)
        return {}
    result: dict[str, range] = {}
    for name, seeds in splits.items():
        ends = (seeds[0], seeds[-1]) if isinstance(seeds, range) and seeds else (-1, -1)
        if min(ends) < 0 or max(ends) >= SEED_LIMIT:
            problems.add(place, f"split {name!r} is {seeds!r}", *SEEDS)
        else:
            result[str(name)] = seeds
    if not splits:
        problems.add(place, "splits={} is empty", "at least one split", "add a split, or remove splits=")
    shared = overlap(result)
    if shared is not None:
        first, second, seed = shared
        problems.add(place, f"splits {first!r} and {second!r} overlap: both contain seed {seed}", *DISJOINT)
    return result


def declared_models(roles: Sequence[str] | str, place: str, problems: Problems) -> tuple[str, ...]:
    """Return the roles in `models=`, and report invalid ones."""
    models = (roles,) if isinstance(roles, str) else tuple(roles)
    if len(set(models)) < len(models) or not all(map(is_role, models)):
        problems.add(place, f"models={roles!r}", *ROLES)
    return models


def check_limit(name: str, value: Any, place: str, problems: Problems) -> None:
    """Check a limit on steps, turns or refusals."""
    if value is not None and (type(value) is not int or value < 1):
        problems.add(place, f"{name}={value!r}", "an integer ≥ 1, or None", f"change {name}=")


def _has_limit(cls: type, options: Mapping[str, Any]) -> bool:
    """Return whether the author or the class limits the length of an episode. `max_turns=None` counts as a limit."""
    own = getattr(cls, STEP_LIMIT, None)
    return options["max_steps"] is not None or options["max_turns"] is not NOT_GIVEN or own is not None


def _steps_parameter(max_steps: Any, config: Arguments | None, place: str, problems: Problems) -> None:
    """If `max_steps=` names a constructor parameter, check that its default is an integer of at least 1."""
    if not isinstance(max_steps, str) or config is None:
        return
    steps = _most_steps(max_steps, config)
    if steps is None or steps < 1:
        expected = "an integer ≥ 1, None, or the name of an __init__ parameter whose default is such an integer"
        problems.add(place, f"max_steps={max_steps!r}", expected, did_you_mean(max_steps, config.names))


def _most_steps(max_steps: Any, config: Arguments) -> int | None:
    """Return the step limit of episodes whose env.config does not set one, or None if they have no limit."""
    if not isinstance(max_steps, str):
        return None if max_steps is None else int(max_steps)
    default = next((item.default for item in config.parameters if item.name == max_steps), None)
    return default if type(default) is int else None


def accepted_checks(accept: Any, place: str, problems: Problems) -> dict[str, str]:
    """Return the value of `accept=`, or an empty dict after reporting that it is invalid."""
    if accept is None:
        return {}
    if isinstance(accept, Mapping) and all(
        isinstance(text, str) and text.strip() for pair in accept.items() for text in pair
    ):
        return dict(accept)
    problems.add(place, f"accept={accept!r}", *ACCEPT)
    return {}


def _limits(options: Mapping[str, Any], place: str, problems: Problems) -> None:
    """Check the declaration's limits, reward range, baselines and isolation."""
    for name in ("max_steps", "max_turns", "max_refusals"):
        if options[name] is not NOT_GIVEN and not (name == "max_steps" and isinstance(options[name], str)):
            check_limit(name, options[name], place, problems)
    seconds = options["step_timeout_seconds"]
    if seconds is not None and not (is_number(seconds) and seconds > 0):
        problems.add(place, f"step_timeout_seconds={seconds!r}", "seconds > 0, or None", "change step_timeout_seconds=")
    if options["isolation"] not in ("thread", "process"):
        fix = did_you_mean(str(options["isolation"]), ("thread", "process"))
        problems.add(place, f"isolation={options['isolation']!r}", '"thread" or "process"', fix)
    bounds = options["reward_range"]
    if bounds is not None and not (
        isinstance(bounds, (tuple, list))
        and len(bounds) == 2
        and all(map(is_number, bounds))
        and bounds[0] <= bounds[1]
    ):
        problems.add(place, f"reward_range={bounds!r}", "(lowest, highest), both finite", "change reward_range=")
    baselines = options["baselines"]
    if baselines is not None and not (isinstance(baselines, Mapping) and all(map(is_number, baselines.values()))):
        problems.add(place, f"baselines={baselines!r}", *BASELINES)
