"""Builds an environment class from `app.tasks(...)`, so that all other code handles a single kind of environment."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from taskapp_kit.declare.check_actions import check_actions
from taskapp_kit.declare.check_environment import accepted_checks, check_limit, declared_models
from taskapp_kit.declare.declarations import Declaration, Declarations, Problems, check_name, check_splits, one_of
from taskapp_kit.declare.marks import action
from taskapp_kit.declare.private_fields import private_fields
from taskapp_kit.declare.signature import Arguments, finished
from taskapp_kit.declare.source_location import did_you_mean, line_of
from taskapp_kit.declare.specs import MAX_REFUSALS, EnvironmentSpec
from taskapp_kit.declare.tasks import TaskSource
from taskapp_kit.errors import DeclarationError
from taskapp_kit.records.trajectory import Step

# Each pair is (what the kit accepts, what to change), the last two fields of a Problem.
A_SPLIT = ("at least one split, e.g. train=[…]", 'add train=[...] or train="train.jsonl"')
A_PROMPT = ("a str or fn(row) -> str", 'set prompt="…{field}…"')
EACH_ONCE = ("each split only once", "remove one of the two")
FORMAT_STRING = ("{name} for each field of the row, {{ and }} for literal braces", "write literal braces as {{ and }}")
PUBLIC_FIELDS = ("public fields only", "remove it from the prompt, or make the field public")
FITTING_PROMPT = ("public fields that every row has, and {field[name]} for a nested value", "fix the prompt or the row")


def check_questions(app: Declarations, declared: Declaration, problems: Problems) -> EnvironmentSpec | None:
    """Return the environment of one `app.tasks`, or None if the declaration is invalid."""
    options, place = declared.options, declared.place
    before = len(problems)
    check_name(declared, problems)
    check_limit("max_turns", options["max_turns"], place, problems)
    if not check_splits("splits=", options["tasks"], place, problems):
        return None
    source = app.task_source(declared)
    misspelt = _keywords(app, declared, problems)
    source = replace(source, sources={name: rows for name, rows in source.sources.items() if name not in misspelt})
    if not source.sources and not misspelt:
        problems.add(place, f"tasks {declared.name!r} has no split", *A_SPLIT)
    rows_problems = source.check()
    problems.extend(rows_problems)
    prompt = options["prompt"]
    if not isinstance(prompt, str) and not callable(prompt):
        found = "no prompt" if prompt is None else f"prompt={prompt!r}"
        problems.add(place, f"tasks {declared.name!r} has {found}", *A_PROMPT)
    elif (not isinstance(prompt, str) or _names_fit(declared, source, prompt, problems)) and not rows_problems:
        _try_prompt(declared, source, prompt, problems)
    models = declared_models(options["models"], place, problems)
    if len(problems) > before:
        return None
    one_answer = options["max_turns"] == 1
    cls = question_class(declared.name, source, prompt)
    return EnvironmentSpec(
        name=declared.name,
        cls=cls,
        description=app.description or f"Answer one question of {declared.name}.",
        version=str(options["version"]),
        place=place,
        config=Arguments(f"{declared.name}_config", ()),
        actions={name: replace(spec, place=place) for name, spec in check_actions(cls, place, problems).items()},
        reset_parameters=("task",),
        splits={},
        tasks=source,
        max_turns=None if one_answer else options["max_turns"],
        max_refusals=None if options["max_turns"] else MAX_REFUSALS,  # all turns but the last are rejected answers
        one_answer=one_answer,
        models=models,
        accept=accepted_checks(options["accept"], place, problems),
        tags=options["tags"],
    )


def _keywords(app: Declarations, declared: Declaration, problems: Problems) -> set[str]:
    """Report the keywords that are misspelled options, and return them.

    A keyword counts as misspelled if it resembles an option and its value cannot be the rows of a split. A keyword that
    repeats a key of `splits=` is also reported.
    """
    options = inspect.signature(getattr(type(app), declared.kind)).parameters.values()
    known = [item.name for item in options if item.kind is item.KEYWORD_ONLY]
    misspelt = set()
    for keyword, value in declared.options["keywords"].items():
        if keyword in (declared.options["tasks"] or {}):
            found = f"split {keyword!r} of tasks {declared.name!r} is both a key of splits= and a keyword argument"
            problems.add(declared.place, found, *EACH_ONCE)
        if isinstance(value, (str, Path)):
            rows = (app.file.parent / value).is_file()
        else:
            rows = not isinstance(value, type) and (isinstance(value, Iterable) or callable(value))
        suggestion = did_you_mean(keyword, known, "")
        if suggestion and not rows:
            misspelt.add(keyword)
            found = f"app.tasks was called with {keyword}={value!r}, which cannot be the rows of a split"
            problems.add(declared.place, found, f"rows for each split, or an option: {', '.join(known)}", suggestion)
    return misspelt


def question_class(name: str, source: TaskSource, prompt: str | Callable[[Any], str]) -> type:
    """Return an environment class that shows the prompt of a row and ends the episode at the first answer."""

    class Questions:
        def reset(self, task: Any) -> Any:
            return _shown(source, prompt, task)

        @action(text=True)
        def answer(self, text: str) -> Step:
            """Give the answer."""
            return Step(observation=None, terminated=True, info={"characters": len(text)})

    Questions.__name__ = Questions.__qualname__ = f"Questions_{name}"
    return Questions


def _shown(source: TaskSource, prompt: str | Callable[[Any], Any], row: Any) -> Any:
    """Return the prompt of a row, built from its public fields."""
    if isinstance(prompt, str):
        return prompt.format(**source.public(row))
    return finished(prompt(source.without_private(row)))


def _names_fit(declared: Declaration, source: TaskSource, prompt: str, problems: Problems) -> bool:
    """Return whether a format string is valid and names only public fields of the rows."""
    try:
        names = {
            name.split(".")[0].split("[")[0] for _, name, _, _ in string.Formatter().parse(prompt) if name is not None
        }
    except ValueError as error:
        problems.add(declared.place, f"the prompt of {declared.name!r} is not a format string: {error}", *FORMAT_STRING)
        return False
    before = len(problems)
    hidden = private_fields(source.row)
    for name in sorted(names & hidden)[:1]:
        problems.add(declared.place, f"the prompt of {declared.name!r} has the private field {name!r}", *PUBLIC_FIELDS)
    fields = set(getattr(source.row, "model_fields", {}) or getattr(source.row, "__dataclass_fields__", {}))
    public = fields - hidden
    for name in sorted(names - fields) if fields else ():
        found = f"the prompt of {declared.name!r} contains {name!r}, which is not a field of the rows"
        problems.add(declared.place, found, *one_of(name, sorted(public), "one of"))
    return len(problems) == before


def _try_prompt(
    declared: Declaration, source: TaskSource, prompt: str | Callable[[Any], str], problems: Problems
) -> None:
    """Format the prompt for every row, and report the first row for which formatting fails."""
    for split in source.splits:
        for index, row in enumerate(source.rows(split)):
            where = f"row {index} of split {split!r}"
            try:
                _shown(source, prompt, row)
            except DeclarationError as error:  # the prompt function reads a private field
                for problem in error.problems:
                    found = f"the prompt of {declared.name!r} {problem.found} ({where})"
                    problems.append(replace(problem, found=found))
                return
            except Exception as error:
                found = f"the prompt of {declared.name!r} failed for {where}: {type(error).__name__}: {error}"
                problems.add(line_of(prompt, declared.place), found, *FITTING_PROMPT)
                return
